"""From the configuration to a provider. A provider's module is imported only when it is configured, because an SDK may cost
more memory than the rest of the server."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from nstance import clock as clocks
from nstance.providers import errors, port
from nstance.providers.options import Options

KINDS = ("memory", "mock", "process", "tmux", "aws", "gcp", "proxmox")


def open_provider(
    kind: str,
    *,
    scope: port.Scope,
    options: Mapping[str, object] | None = None,
    cachedir: Path,
    clock: clocks.Clock,
    server: str = "",
) -> port.Instances:
    """Raises PermanentError for an unknown kind or option. It may create directories."""
    parsed = Options(kind, options or {})
    match kind:
        case "memory" | "mock":
            return _memory(parsed, scope, clock, server)
        case "process":
            return _process(parsed, scope, cachedir)
        case "tmux":
            return _tmux(parsed, scope, cachedir)
        case "aws" | "gcp" | "proxmox":
            raise errors.PermanentError(f"provider {kind!r} is not built yet; use one of memory, process, tmux")
    near = difflib.get_close_matches(kind, KINDS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KINDS)}"
    raise errors.PermanentError(f"there is no provider {kind!r}; {hint}")


def _memory(options: Options, scope: port.Scope, clock: clocks.Clock, server: str) -> port.Instances:
    from nstance.providers import memory, memory_behavior, memory_cloud

    script = memory_behavior.Script(
        usual=memory_behavior.Outcome(before=options.seconds("call_seconds")),
        lives=memory_behavior.Life(boot=options.seconds("boot_seconds"), dying=options.seconds("delete_seconds")),
    )
    subnets = options.counts("subnets")
    options.finish()
    cloud = memory_cloud.MemoryCloud(clock, behavior=script, subnets=subnets)
    return memory.MemoryProvider(scope, clock, cloud=cloud, server=server)


def _process(options: Options, scope: port.Scope, cachedir: Path) -> port.Instances:
    from nstance.providers import local, process

    dir = options.path("dir") or cachedir / "instances"
    command = options.texts("command") or local.AGENT
    env = options.text_map("env")
    options.finish()
    return process.ProcessProvider(scope, dir=dir, command=command, env=env)


def _tmux(options: Options, scope: port.Scope, cachedir: Path) -> port.Instances:
    from nstance.providers import tmux

    dir = options.path("dir") or cachedir / "instances"
    command = options.texts("command")
    env = options.text_map("env")
    session = options.text("session") or tmux.SESSION
    socket = options.text("socket") or ""
    dev_k8s_dir = options.path("dev_k8s_dir")
    options.finish()
    return tmux.TmuxProvider(
        scope, dir=dir, command=command, env=env, session=session, socket=socket, dev_k8s_dir=dev_k8s_dir
    )
