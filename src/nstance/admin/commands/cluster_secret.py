"""`cluster secret`."""

import sys
from pathlib import Path

import click

from nstance.admin import output
from nstance.admin.event_loop import run
from nstance.admin.help import Group
from nstance.admin.options import Target, dry_run_flag, format_flag, target_flags

EXAMPLES = """\
nstance-admin cluster secret put db-password --storage-bucket my-bucket
nstance-admin cluster secret put tls.key --file tls.key --storage-bucket my-bucket
printf %s "$PASSWORD" | nstance-admin cluster secret put db-password --storage-bucket my-bucket
nstance-admin cluster secret get db-password --storage-bucket my-bucket
nstance-admin cluster secret list --storage-bucket my-bucket -o json
nstance-admin cluster secret rm db-password --storage-bucket my-bucket
"""
_PUT, _GET, _LIST, _RM = EXAMPLES.split("nstance-admin cluster secret get")[0], *EXAMPLES.strip().splitlines()[3:]


@click.group(cls=Group, examples=EXAMPLES)
def secret() -> None:
    """The cluster's secrets, for instances' files of kind `secret`."""


@secret.command(examples=_PUT)
@click.argument("name")
@click.option("--file", "path", metavar="FILE|-", help="The value; default: a hidden prompt, or standard input.")
@target_flags
@dry_run_flag
def put(target: Target, name: str, path: str | None) -> None:
    """Store the secret NAME, or replace it.

    The bytes of a file or a pipe are stored unchanged, line ends included."""
    from nstance.admin.cluster import secrets

    secrets.check_name(name)
    value = _read_value(name, path, limit=secrets.MAX_VALUE)
    run(secrets.put(target, name, value))
    output.note(f"{'would store' if target.dry_run else 'stored'} secret {name}")


def _read_value(name: str, path: str | None, *, limit: int) -> bytes:
    if path not in (None, "-"):
        with Path(str(path)).open("rb") as file:
            return file.read(limit + 1)  # the store rejects a longer one
    if path is None and sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return str(value).encode()
    return sys.stdin.buffer.read(limit + 1)


@secret.command(examples=_GET)
@click.argument("name")
@target_flags
def get(target: Target, name: str) -> None:
    """Print the secret NAME, byte for byte."""
    from nstance.admin.cluster import secrets

    click.echo(run(secrets.get(target, name)), nl=False)


@secret.command("list", examples=_LIST)
@format_flag
@target_flags
def list_(target: Target, form: str) -> None:
    """List the names of all secrets."""
    from nstance.admin.cluster import secrets

    output.print_rows([{"name": name} for name in run(secrets.names(target))], form, columns=("name",))


@secret.command(examples=_RM)
@click.argument("name")
@target_flags
@dry_run_flag
def rm(target: Target, name: str) -> None:
    """Remove the secret NAME."""
    from nstance.admin.cluster import secrets

    run(secrets.remove(target, name))
    output.note(f"{'would remove' if target.dry_run else 'removed'} secret {name}")
