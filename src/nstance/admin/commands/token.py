"""`token`: bearer tokens of people for `serve`."""

from pathlib import Path

import click

from nstance.admin import output
from nstance.admin.help import Command, Group
from nstance.admin.options import duration, flag, format_flag, name
from nstance.model import roles
from nstance.model.ids import DEFAULT_TENANT, TenantId
from nstance.model.roles import Role

EXAMPLES = """\
nstance-admin token create --tokens-file tokens.json --person ada@example.com --role operator > ada.token
nstance-admin token list --tokens-file tokens.json
nstance-admin serve --servers us-west-2a=10.0.0.1:8993 --tokens-file tokens.json
"""

_file = flag(
    "--tokens-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file of `serve --tokens-file`. It holds only hashes.",
)


_dry_run = click.option("--dry-run", is_flag=True, help="Check and show what would be done; change nothing.")


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Manage the tokens with which people use `nstance-admin serve`."""


CREATE_EXAMPLES = """\
nstance-admin token create --tokens-file tokens.json --person ada@example.com --role viewer
nstance-admin token create --tokens-file tokens.json --person ci --role operator --tenant acme --expiry 720h
"""


@command.command(cls=Command, examples=CREATE_EXAMPLES)
@_file
@click.option("--person", required=True, help="Who will use it. The history names this person.")
@click.option("--role", type=click.Choice(roles.NAMES), required=True, help="What the person may do.")
@click.option("--tenant", type=name, default=DEFAULT_TENANT, show_default=True, help="Whose groups and instances.")
@click.option("--expiry", type=duration, metavar="DURATION", help="Lifetime of the token; default: until revoked.")
@_dry_run
def create(tokens_file: Path, person: str, role: str, tenant: str, expiry: float | None, dry_run: bool) -> None:
    """Create a token and print it. It is shown only now."""
    if expiry is not None and expiry < 1:
        raise click.BadParameter("expected 1s or more", param_hint="'--expiry'")
    from nstance.admin import tokens
    from nstance.clock import SystemClock, SystemRng

    found = tokens.load(tokens_file) if tokens_file.exists() else {}
    now = SystemClock().wall()
    text, token = tokens.create(person, Role(role), TenantId(tenant), now=now, life=expiry, rng=SystemRng())
    if dry_run:
        output.note(f"would create a token of {person} with role {role} in tenant {tenant}")
        return
    tokens.store(tokens_file, {**found, token.id: token})
    output.note(f"created token {token.id} of {person} with role {role} in tenant {tenant}")
    click.echo(text)


LIST_EXAMPLES = "nstance-admin token list --tokens-file tokens.json -o json\n"


@command.command("list", cls=Command, examples=LIST_EXAMPLES)
@_file
@format_flag
def list_tokens(tokens_file: Path, form: str) -> None:
    """List tokens, without the tokens themselves."""
    from nstance.admin import tokens

    rows = [
        {
            "token": each.id,
            "person": each.person,
            "role": each.role.value,
            "tenant": each.tenant,
            "created": output.timestamp(each.created),
            "expires": output.timestamp(each.expires),
        }
        for each in tokens.load(tokens_file).values()
    ]
    output.print_rows(rows, form, columns=("token", "person", "role", "tenant", "created", "expires"))


REVOKE_EXAMPLES = "nstance-admin token revoke --tokens-file tokens.json 3f0c9d1b2a44\n"


@command.command(cls=Command, examples=REVOKE_EXAMPLES)
@_file
@click.argument("token", metavar="ID")
@_dry_run
def revoke(tokens_file: Path, token: str, dry_run: bool) -> None:
    """Revoke a token by its ID. A running `serve` rejects it within a second, with the sessions that began with it."""
    from nstance.admin import errors, tokens

    found = tokens.load(tokens_file)
    revoked = found.pop(token, None)
    if revoked is None:
        raise errors.CommandError(f"there is no token {token[:64]}; `nstance-admin token list` shows their IDs")
    if dry_run:
        output.note(f"would revoke token {token} of {revoked.person}")
        return
    tokens.store(tokens_file, found)
    output.note(f"revoked token {token} of {revoked.person}")
