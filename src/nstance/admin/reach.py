"""Which shards a command speaks to, as whom: the flags that all shard commands share."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from nstance.admin.help import SharedOption, debug_flag
from nstance.admin.options import Function, decorated, duration, flag, name
from nstance.config import addresses
from nstance.model import ids
from nstance.model.ids import ShardId

IDENTITY = "cli-operator-identity"  # below the system's directory for temporary files

Servers = Mapping[ShardId, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    servers: Servers  # everything that is known; several addresses of a shard are tried in turn
    shards: tuple[ShardId, ...]  # those that are asked
    several: bool  # somebody asked for all: answers name their shard
    identity: Path
    timeout: float  # of each call


def servers(text: str) -> Servers:
    """`a=host:8993,b=h1:8993|h2:8993`."""
    found: dict[ShardId, tuple[str, ...]] = {}
    for part in text.split(","):
        shard, equals, hosts = part.strip().partition("=")
        if not equals or not ids.is_name(shard):
            raise click.BadParameter(f"expected SHARD=HOST:PORT, several with commas, found {part.strip()[:64]!r}")
        if shard in found:
            raise click.BadParameter(
                f"expected each shard once, found {shard} twice; its servers go together as a=h1:8993|h2:8993"
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


def _positive(text: str) -> float:
    seconds = duration(text)
    if not 0.001 <= seconds <= 86400:
        raise click.BadParameter(f"expected between 1ms and 24h, found {text[:64]!r}")
    return seconds


def _identity_dir() -> Path:
    import tempfile

    return Path(tempfile.gettempdir()) / IDENTITY


servers_flag = flag(
    "--servers",
    cls=SharedOption,
    type=servers,
    metavar="SHARD=HOST:PORT[|HOST:PORT],...",
    help="The operator ports of the shards' servers.",
)
identity_flag = flag(
    "--identity-dir",
    cls=SharedOption,
    type=click.Path(file_okay=False, path_type=Path),
    default=_identity_dir,
    show_default=f"<temp>/{IDENTITY}",
    help="Has tls.crt, tls.key and ca.crt, from `cluster register-operator`.",
)
timeout_flag = flag(
    "--timeout", cls=SharedOption, type=_positive, metavar="DURATION", default="30s", help="For each answer."
)
_shard_flag = flag("--shard", cls=SharedOption, type=name, metavar="SHARD", help="The shard to ask.")
_all_flag = click.option("--all-shards", cls=SharedOption, is_flag=True, help="Ask all shards of --servers.")


def reach_flags(command: Function) -> Function:
    """Gathers the flags into one `reach`. Exactly one of --shard and --all-shards."""

    @functools.wraps(command)
    def gather(*, shard: str | None, all_shards: bool, **rest: Any) -> None:
        typed = click.get_current_context().get_parameter_source("shard") is click.core.ParameterSource.COMMANDLINE
        if all_shards and shard is not None and not typed:
            shard = None  # a flag outweighs the environment
        if all_shards == (shard is not None):
            raise click.UsageError("expected exactly one of --shard and --all-shards")
        command(reach=_reach(shard, rest), **rest)

    return decorated(gather, (_shard_flag, _all_flag, servers_flag, identity_flag, timeout_flag, debug_flag))


def everywhere_flags(command: Function) -> Function:
    """Without a choice of shards, for what serves all."""

    @functools.wraps(command)
    def gather(**rest: Any) -> None:
        command(reach=_reach(None, rest), **rest)

    return decorated(gather, (servers_flag, identity_flag, timeout_flag, debug_flag))


def told_flags(command: Function) -> Function:
    """For commands that work on storage and can tell running shards besides: `reach` is None without --servers on the
    command line. The environment's shards are not meant: they are for the shard commands."""

    @functools.wraps(command)
    def gather(**rest: Any) -> None:
        source = click.get_current_context().get_parameter_source("servers")
        if source is not click.core.ParameterSource.COMMANDLINE:
            for name in ("servers", "identity_dir", "timeout"):
                rest.pop(name)
            command(reach=None, **rest)
        else:
            command(reach=_reach(None, rest), **rest)

    return decorated(gather, (servers_flag, identity_flag, timeout_flag))


def _reach(shard: str | None, rest: dict[str, Any]) -> Reach:
    known: Servers | None = rest.pop("servers")
    if not known:
        raise click.UsageError("missing --servers, such as --servers us-west-2a=10.0.0.1:8993")
    if shard is not None and shard not in known:
        raise click.UsageError(f"--servers names no shard {shard}; it names {', '.join(sorted(known))}")
    return Reach(
        servers=known,
        shards=tuple(sorted(known)) if shard is None else (ShardId(shard),),
        several=shard is None,
        identity=rest.pop("identity_dir"),
        timeout=rest.pop("timeout"),
    )
