"""`cluster ca`, `cluster nonce-key` and `cluster rekey`."""

import click

from nstance.admin import output
from nstance.admin.event_loop import run
from nstance.admin.help import Command, Group
from nstance.admin.options import Target, dry_run_flag, duration, format_flag, target_flags

SHOW_EXAMPLES = """\
nstance-admin cluster ca show --storage-bucket my-bucket
nstance-admin cluster ca show --storage-bucket my-bucket --pem > ca.crt
kubectl create configmap nstance-cluster-ca --from-file=ca.crt
"""
ROTATE_EXAMPLES = """\
nstance-admin cluster ca rotate --storage-bucket my-bucket --dry-run
nstance-admin cluster ca rotate --storage-bucket my-bucket
nstance-admin cluster ca rotate --storage-bucket my-bucket --life 1825d
"""
NONCE_KEY_SHOW_EXAMPLES = """\
nstance-admin cluster nonce-key show --storage-bucket my-bucket
"""
NONCE_KEY_ROTATE_EXAMPLES = """\
nstance-admin cluster nonce-key rotate --storage-bucket my-bucket
"""
REKEY_EXAMPLES = """\
1. Give all servers the new key as encryption_key and the old one in old_encryption_keys.
2. OLD=... NSTANCE_ENCRYPTION_KEY=... nstance-admin cluster rekey --storage-bucket my-bucket --old-key env:OLD
3. Remove the old key from the servers.
"""


@click.group(cls=Group, examples=SHOW_EXAMPLES)
def ca() -> None:
    """The cluster's certificate authority."""


@ca.command(examples=SHOW_EXAMPLES)
@click.option("--pem", is_flag=True, help="Print the certificates themselves, newest first. Needs no key.")
@format_flag
@target_flags
def show(target: Target, pem: bool, form: str) -> None:
    """Show the CA certificates that clients trust, and which of them signs."""
    from nstance.admin.cluster import authority

    if pem:
        click.echo(run(authority.bundle(target)), nl=False)
    else:
        _show(run(authority.show(target)), form)


@ca.command(examples=ROTATE_EXAMPLES)
@click.option("--life", type=duration, help="Lifetime of the new CA; default: the current one's.")
@format_flag
@target_flags
@dry_run_flag
def rotate(target: Target, life: float | None, form: str) -> None:
    """Create a new CA while everything runs.

    It is published at once and signs a day later, when all clients know it. The old one stays trusted until its last
    certificate has expired."""
    if life is not None and life < 2 * 86400:
        raise click.BadParameter("expected at least 2d", param_hint="'--life'")
    from nstance.admin.cluster import authority

    _show(run(authority.rotate(target, life=life)), form)


def _show(rows: list[output.Row], form: str) -> None:
    output.print_rows(rows, form, columns=("subject", "use", "signs_from", "expires", "sha256"))


@click.group(cls=Group, examples=NONCE_KEY_SHOW_EXAMPLES + NONCE_KEY_ROTATE_EXAMPLES)
def nonce_key() -> None:
    """The key that signs the nonces of agents and operators."""


@nonce_key.command("show", examples=NONCE_KEY_SHOW_EXAMPLES)
@format_flag
@target_flags
def show_nonce_key(target: Target, form: str) -> None:
    """List the keys, and which of them signs."""
    from nstance.admin.cluster import authority

    _show_nonce_keys(run(authority.nonce_keys(target)), form)


@nonce_key.command("rotate", examples=NONCE_KEY_ROTATE_EXAMPLES)
@format_flag
@target_flags
@dry_run_flag
def rotate_nonce_key(target: Target, form: str) -> None:
    """Create a new key while everything runs.

    It is published at once and signs 15 minutes later, when all servers know it. Nonces of the old key are accepted until
    the last of them has expired, which takes a day; until then no further rotation is possible."""
    from nstance.admin.cluster import authority

    _show_nonce_keys(run(authority.rotate_nonce_key(target)), form)


def _show_nonce_keys(rows: list[output.Row], form: str) -> None:
    output.print_rows(rows, form, columns=("kid", "use", "signs_from"))


@click.command(cls=Command, examples=REKEY_EXAMPLES)
@format_flag
@target_flags
@dry_run_flag
def rekey(target: Target, form: str) -> None:
    """Encrypt the CA and all secrets with the current encryption key.

    Can be repeated at any time; what already uses the current key is not changed."""
    from nstance.admin.cluster import authority

    changed = run(authority.rekey(target))
    output.print_rows([{"sealed_anew": key} for key in changed], form, columns=("sealed_anew",))
    if not changed:
        output.note("everything already uses the current key")
