"""`cluster secret`."""

import sys
from pathlib import Path

import click

from nstance.admin import output
from nstance.admin.help import Group
from nstance.admin.options import Target, dry_run_flag, format_flag, target_flags
from nstance.admin.running import run

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
    """The cluster's secrets, which files of kind `secret` bring to instances."""


@secret.command(examples=_PUT)
@click.argument("name")
@click.option("--file", "path", metavar="FILE|-", help="Left out: typed unseen, or standard input.")
@target_flags
@dry_run_flag
def put(target: Target, name: str, path: str | None) -> None:
    """Store the secret NAME, over what was there before.

    A file's or pipe's bytes are taken as they are, line ends too."""
    from nstance.admin.cluster import secrets

    secrets.check_name(name)
    value = _value(name, path, most=secrets.MAX_VALUE)
    run(secrets.put(target, name, value))
    output.note(f"{'would store' if target.dry_run else 'stored'} secret {name}")


def _value(name: str, path: str | None, *, most: int) -> bytes:
    if path not in (None, "-"):
        with Path(str(path)).open("rb") as file:
            return file.read(most + 1)  # the store refuses what is too long
    if path is None and sys.stdin.isatty():
        typed = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return str(typed).encode()
    return sys.stdin.buffer.read(most + 1)


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

    output.show([{"name": name} for name in run(secrets.names(target))], form, columns=("name",))


@secret.command(examples=_RM)
@click.argument("name")
@target_flags
@dry_run_flag
def rm(target: Target, name: str) -> None:
    """Remove the secret NAME."""
    from nstance.admin.cluster import secrets

    run(secrets.remove(target, name))
    output.note(f"{'would remove' if target.dry_run else 'removed'} secret {name}")
