"""`serve`."""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.help import Choice, Command
from nstance.admin.options import OBJECT_STORAGE, KeyLocation, Target, flag
from nstance.admin.shard_flags import ShardSelection, all_shards_flags
from nstance.config import addresses
from nstance.model import roles
from nstance.model.roles import Role

if TYPE_CHECKING:
    from nstance.admin.http.access import Network
    from nstance.config.addresses import Address

TOKEN_VARIABLE = "NSTANCE_ADMIN_TOKEN"
MAX_TOKEN_FILE_BYTES = 4096
LOOPBACK, ALL_INTERFACES = "127.0.0.1:8080", ":8080"

EXAMPLES = """\
nstance-admin serve --servers us-west-2a=10.0.0.1:8993
nstance-admin serve --servers us-west-2a=10.0.0.1:8993 --allow-changes --storage-bucket my-bucket
nstance-admin serve --bind :8443 --tls-cert web.crt --tls-key web.key --tokens-file tokens.json
nstance-admin serve --bind :8443 --tls-cert web.crt --tls-key web.key --oidc-config oidc.json
curl -H "Authorization: Bearer $(cat token)" 'https://admin.example:8443/v1/groups'
"""


def _bind(text: str) -> "Address":
    try:
        return addresses.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _network(text: str) -> "Network":
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise click.BadParameter(f"expected an address or a network such as 10.0.0.0/24: {error}") from error


def _target(storage: "Mapping[str, str | None]") -> "Target | None":
    """Only for reading what needs no key."""
    bucket = storage["storage_bucket"]
    if not bucket:
        return None
    return Target(
        cluster=None,
        provider=storage["storage_provider"] or "",
        bucket=bucket,
        prefix=storage["prefix"] or "",
        cluster_prefix=storage["storage_prefix"] or "",
        secrets=OBJECT_STORAGE,
        secrets_prefix=None,
        key=KeyLocation(provider="env", source=""),
        old_keys=(),
        insecure_dev=False,
    )


_file = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command, examples=EXAMPLES)
@flag(
    "--bind",
    type=_bind,
    metavar="[HOST]:PORT",
    show_default=f"{LOOPBACK}, or {ALL_INTERFACES} with --tls-cert",
    help="The address to listen on.",
)
@flag("--tls-cert", type=_file, help="The certificate, in PEM. Browsers reject Ed25519.")
@flag("--tls-key", type=_file, help="Its key.")
@flag("--tokens-file", type=_file, help="Tokens of people with their roles and tenants, from `token create`.")
@flag("--token-file", type=_file, help=f"One bearer token for all clients, without a role; or {TOKEN_VARIABLE}.")
@flag("--oidc-config", type=_file, help="An identity provider, and what its groups may do; see docs/access.md.")
@flag("--client-ca", type=_file, help="Accept clients with a certificate of this CA instead.")
@flag(
    "--client-role",
    type=click.Choice(roles.NAMES),
    default=Role.OPERATOR.value,
    help="Of client certificates that carry no role of Nstance.",
)
@flag(
    "--trusted-proxy",
    "trusted_proxies",
    type=_network,
    multiple=True,
    metavar="ADDRESS",
    help="A proxy, or a network of them, whose X-Forwarded-For names the client; repeatable.",
)
@flag(
    "--allow-changes", is_flag=True, help="Allow changes through the dashboard and /v1. Otherwise they are read-only."
)
@flag("--log-format", type=Choice(["text", "json"]), default="text", help="json: one object a line.")
@flag("--access-log", metavar="FILE", help="Append a JSON line for each request; - for standard error.")
@flag("--storage-bucket", help="The bucket to read: config, journal and CA, and for forecasts.")
@flag("--storage-provider", type=Choice(["s3", "gcs", "file"]), default="s3", help="Kind of storage.")
@flag("--storage-prefix", default="cluster/", help="Prefix of the cluster's objects in the bucket.")
@flag("--prefix", default="", show_default=False, help="The servers' --prefix.")
@all_shards_flags
def command(selection: ShardSelection, **flags: Any) -> None:
    """Serve a dashboard and the shard commands over HTTP, described in /v1/openapi.json.

    An address that other machines can reach requires a TLS certificate, and tokens, a client CA or an identity provider."""
    from nstance.admin import errors
    from nstance.admin.event_loop import run
    from nstance.admin.http import access, server
    from nstance.admin.http.oidc import settings
    from nstance.admin.tokens import TokenFile
    from nstance.clock import SystemClock

    if flags["log_format"] == "json":
        output.log_notes()
    bind = flags["bind"] or addresses.parse(LOOPBACK if flags["tls_cert"] is None else ALL_INTERFACES)
    tokens, oidc = flags["tokens_file"], flags["oidc_config"]
    guard = access.Access(
        token=_token(flags["token_file"]),
        tls_cert=flags["tls_cert"],
        tls_key=flags["tls_key"],
        client_ca=flags["client_ca"],
        allow_changes=flags["allow_changes"],
        tokens=TokenFile(tokens, SystemClock(), on_problem=output.note) if tokens is not None else None,
        client_role=Role(flags["client_role"]),
        has_logins=oidc is not None,
        trusted_proxies=flags["trusted_proxies"],
    )
    try:
        guard.check(bind)
    except errors.CommandError as problem:
        raise click.UsageError(str(problem)) from None
    options = server.ServeOptions(
        storage=_target(flags),
        access_log=flags["access_log"],
        oidc=settings.load(oidc) if oidc is not None else None,
    )
    run(server.serve(selection, bind, guard, options))


def _token(file: Path | None) -> str | None:
    found = os.environ.get(TOKEN_VARIABLE)
    if file is None:
        return found
    if found is not None:
        raise click.UsageError(f"expected --token-file or {TOKEN_VARIABLE}, found both")
    with file.open("rb") as opened:
        return opened.read(MAX_TOKEN_FILE_BYTES).decode("utf-8", "replace").strip()
