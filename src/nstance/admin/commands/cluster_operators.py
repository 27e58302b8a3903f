"""`cluster nonce`, `register-operator`, `revoke-operator`, `operators`."""

import sys
from pathlib import Path

import click

from nstance.admin import output
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
from nstance.admin.reach import Reach, told_flags
from nstance.admin.running import run
from nstance.model.ids import OperatorId, TenantId

LONGEST = 86400.0  # a nonce key that was rotated is kept for no longer

NONCE_EXAMPLES = """\
nstance-admin cluster nonce --storage-bucket my-bucket --output nonce.jwt
kubectl create secret generic nstance-operator-nonce --from-file=nonce.jwt

NONCE_JWT=$(nstance-admin cluster nonce --cluster-id example-cluster --storage-bucket dev \\
  --key-provider env --expiry 24h --output -)
"""


@click.command(cls=Command, examples=NONCE_EXAMPLES)
@tenant_flags
@click.option("--expiry", type=duration, default="3h", show_default=True, help="How long it can be used.")
@click.option(
    "--output", "path", metavar="PATH|-", default="-", show_default=True, help="A file (mode 0600), or - to print it."
)
@target_flags
def nonce(target: Target, tenant: str, shard_buckets: tuple[str, ...], expiry: float, path: str) -> None:
    """Make a nonce (a JWT) that an operator registers with, once.

    With `--output -` the nonce is all that is printed."""
    if not 1 <= expiry <= LONGEST:
        raise click.BadParameter("expected between 1s and 24h", param_hint="'--expiry'")
    from nstance.admin import files
    from nstance.admin.cluster import operators

    token = run(operators.new_nonce(target, tenant=TenantId(tenant), life=expiry, buckets=shard_buckets))
    if path == "-":
        # A line end only for eyes: the output may become a file that becomes a Kubernetes secret.
        click.echo(token, nl=sys.stdout.isatty())
    else:
        files.write(Path(path), token.encode())
        output.note(f"wrote the nonce to {path}")


REGISTER_EXAMPLES = """\
nstance-admin cluster register-operator --storage-bucket my-bucket --output-dir ~/.nstance/identity

For a key that stays where it was made:
openssl genpkey -algorithm ed25519 -out tls.key && openssl pkey -in tls.key -pubout -out tls.pub
nstance-admin cluster register-operator --storage-bucket my-bucket --public-key-file tls.pub --output-dir .
"""


@click.command("register-operator", cls=Command, examples=REGISTER_EXAMPLES)
@tenant_flags
@click.option("--operator-id", type=operator, help="Left out: a new one. Given again: the same certificate.")
@click.option(
    "--public-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An Ed25519 public key in PEM. Left out: a key is made in the output directory.",
)
@flag(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="For tls.crt, ca.crt and, if it is made here, tls.key (mode 0600).",
)
@click.option(
    "--cert-ttl-hours",
    type=click.IntRange(1, 100 * 8760),
    default=8760,
    show_default=True,
    help="Life of the certificate.",
)
@format_flag
@target_flags
@dry_run_flag
def register(
    target: Target,
    tenant: str,
    shard_buckets: tuple[str, ...],
    operator_id: str | None,
    public_key_file: Path | None,
    output_dir: Path,
    cert_ttl_hours: int,
    form: str,
) -> None:
    """Register an operator and write its client certificate, without a nonce and a running server."""
    from nstance.admin.cluster import operators

    made = run(
        operators.register(
            target,
            tenant=TenantId(tenant),
            operator=OperatorId(operator_id) if operator_id else None,
            public_key_file=public_key_file,
            directory=output_dir,
            life=cert_ttl_hours * 3600.0,
            buckets=shard_buckets,
        )
    )
    record = {
        "operator": operator_id if target.dry_run else made.operator,  # a new one is made when it is done
        "tenant": tenant,
        "serial": None if target.dry_run else made.serial,
        "expires": output.when(made.expires),
        "files": list(made.written),
    }
    output.show_one(record, form)


REVOKE_EXAMPLES = """\
nstance-admin cluster revoke-operator --storage-bucket my-bucket --operator-id opr-01jw51srryegh9snf9cmeh3k4q
nstance-admin cluster revoke-operator --storage-bucket my-bucket --operator-id opr-01jw51srryegh9snf9cmeh3k4q \\
  --servers us-west-2a=10.0.0.1:8993
"""


@click.command("revoke-operator", cls=Command, examples=REVOKE_EXAMPLES)
@flag("--tenant", type=name, help="Whose operator it is; left out: it is looked for.")
@click.option("--operator-id", type=operator, required=True, help="Who; `cluster operators` lists them.")
@told_flags
@target_flags
@dry_run_flag
def revoke(target: Target, reach: Reach | None, tenant: str | None, operator_id: str) -> None:
    """Take an operator's access away, for ever. Servers refuse it within a minute.

    With --servers the named shards refuse it at once and end its connections; an identity of the same tenant is needed
    for that, in --identity-dir."""
    from nstance.admin.cluster import operators

    tenant = run(
        operators.revoke(target, tenant=TenantId(tenant) if tenant else None, operator=OperatorId(operator_id))
    )
    if target.dry_run:
        where = f", at once in {', '.join(reach.shards)}" if reach is not None else ""
        output.note(f"would revoke {operator_id} of tenant {tenant}; servers would refuse it within a minute{where}")
        return
    output.note(f"revoked {operator_id} of tenant {tenant}; servers refuse it within a minute")
    if reach is not None:
        from nstance.admin.shard import revoking

        answers = revoking.tell(reach, tenant=TenantId(tenant), operator=OperatorId(operator_id))
        for shard, _ in answers.good:
            output.note(f"shard {shard} refuses it from now on")
        answers.check()


OPERATORS_EXAMPLES = """\
nstance-admin cluster operators --storage-bucket my-bucket
nstance-admin cluster operators --storage-bucket my-bucket -o json
"""


@click.command(cls=Command, examples=OPERATORS_EXAMPLES)
@format_flag
@target_flags
def operators(target: Target, form: str) -> None:
    """List registered operators, revoked ones too."""
    from nstance.admin.cluster import operators as work

    rows = [
        {
            "operator": each.operator,
            "tenant": each.tenant,
            "issued": output.when(each.issued),
            "expires": output.when(each.expires),
            "revoked": output.when(each.revoked),
        }
        for each in run(work.everybody(target))
    ]
    output.show(rows, form, columns=("operator", "tenant", "issued", "expires", "revoked"))
