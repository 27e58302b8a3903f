"""The flags that all shard commands share: which shards to call, with which identity, and the output format."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from nstance.admin.help import SharedOption, global_flags
from nstance.admin.options import Function, decorated, duration, flag, format_flag, name
from nstance.config import addresses
from nstance.model import ids
from nstance.model.ids import ShardId, TenantId

IDENTITY = "cli-operator-identity"  # below the system's directory for temporary files

Servers = Mapping[ShardId, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSelection:
    servers: Servers  # of all known shards; several addresses of a shard are tried in turn
    shards: tuple[ShardId, ...]  # those to call
    several: bool  # --all-shards: results name their shard
    identity: Path
    timeout: float  # of each call
    form: str = "table"  # output format
    tenant: TenantId | None = None  # another one than the identity's, which only an admin may choose

    @property
    def is_table(self) -> bool:
        return self.form == "table"


def servers(text: str) -> Servers:
    """From `a=host:8993,b=h1:8993|h2:8993`."""
    found: dict[ShardId, tuple[str, ...]] = {}
    for part in text.split(","):
        shard, equals, hosts = part.strip().partition("=")
        if not equals or not ids.is_name(shard):
            raise click.BadParameter(f"expected SHARD=HOST:PORT, separated by commas, found {part.strip()[:64]!r}")
        if shard in found:
            raise click.BadParameter(
                f"expected each shard once, found {shard} twice; write several servers as a=h1:8993|h2:8993"
            )
        found[ShardId(shard)] = tuple(_address(host.strip()) for host in hosts.split("|"))
    return found


def _address(text: str) -> str:
    try:
        parsed = addresses.parse(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; found {text[:64]!r}") from error
    if not parsed.host:
        raise click.BadParameter(f"expected host:port, found no host in {text!r}")
    return str(parsed)


def timeout(text: str) -> float:
    seconds = duration(text)
    if not 0.001 <= seconds <= 86400:
        raise click.BadParameter(f"expected between 1ms and 24h, found {text[:64]!r}")
    return seconds


def _identity_dir() -> Path:
    import tempfile

    return Path(tempfile.gettempdir()) / IDENTITY


_SERVER_FLAGS = (
    flag(
        "--servers",
        cls=SharedOption,
        type=servers,
        metavar="SHARD=HOST:PORT[|HOST:PORT],...",
        help="The operator addresses of the shards' servers.",
    ),
    flag(
        "--identity-dir",
        cls=SharedOption,
        type=click.Path(file_okay=False, path_type=Path),
        default=_identity_dir,
        show_default=f"<temp>/{IDENTITY}",
        help="The directory with tls.crt, tls.key and ca.crt from `cluster register-operator`.",
    ),
    flag("--timeout", cls=SharedOption, type=timeout, metavar="DURATION", default="30s", help="Of each call."),
)
_SHARD_FLAGS = (
    flag(
        "--shard",
        cls=SharedOption,
        type=name,
        metavar="SHARD",
        shell_complete=lambda ctx, _, incomplete: [
            each for each in sorted(ctx.params.get("servers") or ()) if each.startswith(incomplete)
        ],
        help="The shard to call.",
    ),
    click.option("--all-shards", cls=SharedOption, is_flag=True, help="Call all shards of --servers."),
    flag("--tenant", cls=SharedOption, type=name, help="Another tenant than the identity's; for the role admin."),
)


def shard_flags(command: Function) -> Function:
    """Collects the flags, the output format included, in one `selection`."""
    return format_flag(shard_flags_without_format(command))


def shard_flags_without_format(command: Function) -> Function:
    """Requires exactly one of --shard and --all-shards."""

    @functools.wraps(command)
    def collect(*, shard: str | None, all_shards: bool, tenant: str | None, **rest: Any) -> None:
        if all_shards and not _is_typed("shard"):
            shard = None  # a flag takes precedence over the environment and the context
        if all_shards == (shard is not None):
            raise click.UsageError("expected exactly one of --shard and --all-shards")
        selection = replace(_selection(shard, rest), tenant=TenantId(tenant) if tenant else None)
        command(selection=selection, **rest)

    return decorated(collect, (*_SHARD_FLAGS, *_SERVER_FLAGS, global_flags))


def any_shards_flags(command: Function) -> Function:
    """Selects all shards of --servers, or the one of --shard."""

    @functools.wraps(command)
    def collect(*, shard: str | None, all_shards: bool, tenant: str | None, **rest: Any) -> None:
        if all_shards and _is_typed("shard"):
            raise click.UsageError("expected either --shard or --all-shards")
        selection = _selection(None if all_shards else shard, rest)
        command(selection=replace(selection, tenant=TenantId(tenant) if tenant else None), **rest)

    return decorated(collect, (*_SHARD_FLAGS, *_SERVER_FLAGS, global_flags))


def all_shards_flags(command: Function) -> Function:
    """Selects all shards of --servers."""

    @functools.wraps(command)
    def collect(**rest: Any) -> None:
        command(selection=_selection(None, rest), **rest)

    return decorated(collect, (*_SERVER_FLAGS, global_flags))


def optional_shards_flags(command: Function) -> Function:
    """For commands that work on storage and can notify running shards: `selection` is None unless --servers is on the
    command line. The environment's shards are meant for the shard commands."""

    return _optional_shards(command, lambda servers: _is_typed("servers"))


def shards_if_known(command: Function) -> Function:
    """Selects all shards of --servers; `selection` is None without it."""
    return _optional_shards(command, bool)


def _optional_shards(command: Function, are_chosen: Callable[[Servers | None], bool]) -> Function:
    @functools.wraps(command)
    def collect(**rest: Any) -> None:
        selection = _selection(None, dict(rest)) if are_chosen(rest["servers"]) else None
        for used in ("servers", "identity_dir", "timeout"):
            del rest[used]
        command(selection=selection, **rest)

    return decorated(collect, _SERVER_FLAGS)


def _is_typed(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _selection(shard: str | None, rest: dict[str, Any]) -> ShardSelection:
    known: Servers | None = rest.pop("servers")
    if not known:
        raise click.UsageError("missing --servers, such as --servers us-west-2a=10.0.0.1:8993, or a context with it")
    if shard is not None and shard not in known:
        from nstance.admin.errors import did_you_mean

        hint = did_you_mean(shard, known) or f"; it has {', '.join(sorted(known))}"
        raise click.UsageError(f"--servers has no shard {shard}{hint}")
    return ShardSelection(
        servers=known,
        shards=tuple(sorted(known)) if shard is None else (ShardId(shard),),
        several=shard is None,
        identity=rest.pop("identity_dir"),
        timeout=rest.pop("timeout"),
        form=rest.pop("form", "table"),
    )
