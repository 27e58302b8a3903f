"""`serve`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nstance.admin.help import Command
from nstance.admin.options import flag
from nstance.admin.reach import Reach, everywhere_flags
from nstance.config import addresses

if TYPE_CHECKING:
    from nstance.config.addresses import Address

TOKEN = "NSTANCE_ADMIN_TOKEN"
MAX_TOKEN_FILE = 4096
HERE, EVERYWHERE = "127.0.0.1:8080", ":8080"

EXAMPLES = """\
nstance-admin serve --servers us-west-2a=10.0.0.1:8993
nstance-admin serve --bind :8443 --tls-cert web.crt --tls-key web.key --token-file token
curl -H "Authorization: Bearer $(cat token)" 'https://admin.example:8443/groups?all_shards=true'
"""


def _bind(text: str) -> "Address":
    try:
        return addresses.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_file = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command, examples=EXAMPLES)
@flag(
    "--bind",
    type=_bind,
    metavar="[HOST]:PORT",
    show_default=f"{HERE}, or {EVERYWHERE} with --tls-cert",
    help="Where to listen.",
)
@flag("--tls-cert", type=_file, help="Your certificate, in PEM. Browsers refuse Ed25519.")
@flag("--tls-key", type=_file, help="Its key.")
@flag("--token-file", type=_file, help=f"The bearer token that callers show; or {TOKEN}.")
@flag("--client-ca", type=_file, help="Callers show a certificate of this CA instead.")
@everywhere_flags
def command(
    reach: Reach,
    bind: "Address | None",
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    client_ca: Path | None,
) -> None:
    """Serve the shard commands over HTTP, described in /openapi.json.

    On an address that other machines can reach it demands your TLS certificate, and a token or a client CA."""
    from nstance.admin import failures
    from nstance.admin.http import access, serving
    from nstance.admin.running import run

    if bind is None:
        bind = addresses.parse(HERE if tls_cert is None else EVERYWHERE)
    token = os.environ.get(TOKEN)
    if token_file is not None:
        if token is not None:
            raise click.UsageError(f"expected --token-file or {TOKEN}, found both")
        with token_file.open("rb") as file:
            token = file.read(MAX_TOKEN_FILE).decode("utf-8", "replace").strip()
    guard = access.Access(token=token, tls_cert=tls_cert, tls_key=tls_key, client_ca=client_ca)
    try:
        guard.check(bind)
    except failures.Refused as problem:
        raise click.UsageError(str(problem)) from None
    run(serving.serve(reach, bind, guard))
