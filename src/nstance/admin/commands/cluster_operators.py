"""`cluster nonce`, `register-operator`, `revoke-operator`, `operators`."""

import sys
from pathlib import Path
from typing import Any

import click

from nstance.admin import output
from nstance.admin.event_loop import run
from nstance.admin.help import Command
from nstance.admin.options import (
    Target,
    dry_run_flag,
    duration,
    flag,
    format_flag,
    name,
    operator,
    target_flags,
    tenant_flags,
)
from nstance.admin.shard_flags import ShardSelection, optional_shards_flags
from nstance.model import roles
from nstance.model.ids import OperatorId, TenantId
from nstance.model.roles import Role

MAX_EXPIRY_SECONDS = 86400.0  # rotated nonce keys are kept no longer

role_flag = click.option(
    "--role",
    type=click.Choice(roles.NAMES),
    default=Role.OPERATOR.value,
    show_default=True,
    help="What it may do: viewer reads, drainer also acknowledges drains, admin acts in all tenants.",
)

NONCE_EXAMPLES = """\
nstance-admin cluster nonce --storage-bucket my-bucket --output nonce.jwt
kubectl create secret generic nstance-operator-nonce --from-file=nonce.jwt

NONCE_JWT=$(nstance-admin cluster nonce --cluster-id example-cluster --storage-bucket dev \\
  --key-provider env --expiry 24h --output -)
"""


@click.command(cls=Command, examples=NONCE_EXAMPLES)
@tenant_flags
@role_flag
@click.option("--expiry", type=duration, default="3h", show_default=True, help="Lifetime of the nonce.")
@click.option(
    "--output", "path", metavar="PATH|-", default="-", show_default=True, help="A file (mode 0600), or - to print it."
)
@target_flags
def nonce(target: Target, tenant: str, shard_buckets: tuple[str, ...], expiry: float, path: str, role: str) -> None:
    """Create a nonce (a JWT) with which an operator registers, once.

    With `--output -` only the nonce is printed."""
    if not 1 <= expiry <= MAX_EXPIRY_SECONDS:
        raise click.BadParameter("expected between 1s and 24h", param_hint="'--expiry'")
    from nstance.admin import files
    from nstance.admin.cluster import operators

    token = run(
        operators.new_nonce(target, tenant=TenantId(tenant), life=expiry, buckets=shard_buckets, role=Role(role))
    )
    if path == "-":
        # A line end only on a terminal: the output may become the content of a Kubernetes Secret.
        click.echo(token, nl=sys.stdout.isatty())
    else:
        files.write(Path(path), token.encode())
        output.note(f"wrote the nonce to {path}")


REGISTER_EXAMPLES = """\
nstance-admin cluster register-operator --storage-bucket my-bucket --output-dir ~/.nstance/identity
nstance-admin cluster register-operator --storage-bucket my-bucket --role viewer --output-dir ~/.nstance/viewer

For a key that stays where it was made:
openssl genpkey -algorithm ed25519 -out tls.key && openssl pkey -in tls.key -pubout -out tls.pub
nstance-admin cluster register-operator --storage-bucket my-bucket --public-key-file tls.pub --output-dir .
"""


@click.command("register-operator", cls=Command, examples=REGISTER_EXAMPLES)
@tenant_flags
@role_flag
@click.option("--operator-id", type=operator, help="Default: a new one. With an existing ID: the same certificate.")
@click.option(
    "--public-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An Ed25519 public key in PEM. Default: a key is created in the output directory.",
)
@flag(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="For tls.crt, ca.crt and, if it is created here, tls.key (mode 0600).",
)
@click.option(
    "--cert-ttl-hours",
    type=click.IntRange(1, 100 * 8760),
    default=8760,
    show_default=True,
    help="Lifetime of the certificate, in hours.",
)
@format_flag
@target_flags
@dry_run_flag
def register(
    target: Target, form: str, tenant: str, operator_id: str | None, cert_ttl_hours: int, **flags: Any
) -> None:
    """Register an operator and write its client certificate, without a nonce and without a running server."""
    from nstance.admin.cluster import operators

    wanted = operators.DirectRegistration(
        tenant=TenantId(tenant),
        operator=OperatorId(operator_id) if operator_id else None,
        public_key_file=flags["public_key_file"],
        directory=flags["output_dir"],
        life=cert_ttl_hours * 3600.0,
        buckets=flags["shard_buckets"],
        role=Role(flags["role"]),
    )
    registered = run(operators.register(target, wanted))
    record = {
        "operator": operator_id if target.dry_run else registered.operator,  # a dry run would show a random one
        "tenant": tenant,
        "role": flags["role"],
        "serial": None if target.dry_run else registered.serial,
        "expires": output.timestamp(registered.expires),
        "files": list(registered.written),
    }
    output.print_record(record, form)


REVOKE_EXAMPLES = """\
nstance-admin cluster revoke-operator --storage-bucket my-bucket --operator-id opr-01jw51srryegh9snf9cmeh3k4q
nstance-admin cluster revoke-operator --storage-bucket my-bucket --operator-id opr-01jw51srryegh9snf9cmeh3k4q \\
  --servers us-west-2a=10.0.0.1:8993
"""


@click.command("revoke-operator", cls=Command, examples=REVOKE_EXAMPLES)
@flag("--tenant", type=name, help="The operator's tenant; default: found by its ID.")
@click.option("--operator-id", type=operator, required=True, help="The operator; `cluster operators` lists them.")
@optional_shards_flags
@target_flags
@dry_run_flag
def revoke(target: Target, selection: ShardSelection | None, tenant: str | None, operator_id: str) -> None:
    """Revoke an operator's access for good. Servers reject it within a minute.

    With --servers those shards reject it at once and close its connections. This needs an identity with the role admin
    in --identity-dir."""
    from nstance.admin.cluster import operators

    tenant = run(
        operators.revoke(target, tenant=TenantId(tenant) if tenant else None, operator=OperatorId(operator_id))
    )
    if target.dry_run:
        where = f", at once in {', '.join(selection.shards)}" if selection is not None else ""
        output.note(f"would revoke {operator_id} of tenant {tenant}; servers would reject it within a minute{where}")
        return
    output.note(f"revoked {operator_id} of tenant {tenant}; servers reject it within a minute")
    if selection is not None:
        from nstance.admin.shard import revocation

        answers = revocation.notify(selection, tenant=TenantId(tenant), operator=OperatorId(operator_id))
        for shard, _ in answers.results:
            output.note(f"shard {shard} rejects it from now on")
        answers.check()


OPERATORS_EXAMPLES = """\
nstance-admin cluster operators --storage-bucket my-bucket
nstance-admin cluster operators --storage-bucket my-bucket -o json
"""


@click.command(cls=Command, examples=OPERATORS_EXAMPLES)
@format_flag
@target_flags
def operators(target: Target, form: str) -> None:
    """List registered operators, including revoked ones."""
    from nstance.admin.cluster import operators as work

    rows = [work.record(each) for each in run(work.list_operators(target))]
    output.print_rows(rows, form, columns=("operator", "tenant", "role", "issued", "expires", "revoked"))
