"""From the configuration to a provider. A provider's module is imported only when it is configured, because an SDK may cost
more memory than the rest of the server."""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nstance import clock as clocks
from nstance.providers import errors, port
from nstance.providers.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a cloud runs the VMs, who asks for them, the leader's address, and the secrets that its API may need."""

    server: str = ""  # this server, which gets the leader address
    region: str = ""
    zone: str = ""
    leader_address: port.FixedAddress | None = None
    read_secret: Callable[[str], Awaitable[bytes]] | None = None  # of the cluster; raises ProviderError


KINDS = ("memory", "mock", "process", "tmux", "qemu", "aws", "gcp", "google", "proxmox")


def open_provider(
    kind: str,
    *,
    scope: port.Scope,
    options: Mapping[str, object] | None = None,
    cachedir: Path,
    clock: clocks.Clock,
    place: Place = Place(),  # noqa: B008 - immutable
) -> port.Instances:
    """Raises PermanentError for an unknown kind or option. It may create directories."""
    parsed = Options(kind, options or {})
    match kind:
        case "memory" | "mock":
            return _memory(parsed, scope, clock, place)
        case "process":
            return _process(parsed, scope, cachedir)
        case "tmux":
            return _tmux(parsed, scope, cachedir)
        case "qemu":
            return _qemu(parsed, scope, cachedir, clock)
        case "aws":
            return _aws(parsed, scope, clock, place)
        case "proxmox":
            return _proxmox(parsed, scope, clock, place)
        case "gcp" | "google":
            return _gcp(parsed, scope, clock, place)
        case _:
            import difflib

            near = difflib.get_close_matches(kind, KINDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KINDS)}"
            raise errors.PermanentError(f"there is no provider {kind!r}; {hint}")


def _memory(options: Options, scope: port.Scope, clock: clocks.Clock, place: Place) -> port.Instances:
    from nstance.providers import memory, memory_behavior, memory_cloud, memory_offers

    script = memory_behavior.Script(
        usual=memory_behavior.Outcome(before=options.seconds("call_seconds")),
        lives=memory_behavior.Life(boot=options.seconds("boot_seconds"), dying=options.seconds("delete_seconds")),
    )
    subnets = options.counts("subnets")
    try:
        offers = {memory_offers.parse_offer(text): count for text, count in options.counts("offers").items()}
    except ValueError as problem:
        raise errors.PermanentError(f"option offers: {problem}") from problem
    options.finish()
    cloud = memory_cloud.MemoryCloud(clock, behavior=script, subnets=subnets, offers=offers)
    return memory.MemoryProvider(scope, clock, cloud=cloud, server=place.server)


def _aws(options: Options, scope: port.Scope, clock: clocks.Clock, place: Place) -> port.Instances:
    from nstance.providers.aws.launch_budget import BURST_LAUNCHES, LAUNCHES_PER_SECOND
    from nstance.providers.aws.provider import AwsSettings, open_aws

    settings = AwsSettings(
        region=place.region,
        endpoint=options.text("endpoint") or options.text("endpoint_url") or "",
        profile=options.text("profile") or "",
        role_arn=options.text("role_arn") or "",
        launch_burst=options.number("launch_burst") or BURST_LAUNCHES,
        launch_rate=options.number("launch_rate") or LAUNCHES_PER_SECOND,
    )
    options.finish()
    return open_aws(scope, settings, place.leader_address, clock=clock, server=place.server)


def _gcp(options: Options, scope: port.Scope, clock: clocks.Clock, place: Place) -> port.Instances:
    from nstance.providers.gcp.provider import GcpSettings, open_gcp

    settings = GcpSettings(
        zone=place.zone,
        project=options.text("project_id") or "",
        endpoint=options.text("endpoint") or options.text("endpoint_url") or "",
    )
    options.finish()
    return open_gcp(scope, settings, place.leader_address, clock=clock)


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
    session = tmux.Session(options.text("session") or tmux.SESSION, options.text("socket") or "")
    dev_k8s_dir = options.path("dev_k8s_dir")
    options.finish()
    return tmux.TmuxProvider(scope, dir=dir, command=command, env=env, session=session, dev_k8s_dir=dev_k8s_dir)


def _qemu(options: Options, scope: port.Scope, cachedir: Path, clock: clocks.Clock) -> port.Instances:
    from nstance.providers.qemu import acceleration, provider
    from nstance.providers.qemu.settings import BINARY, QemuSettings

    chosen = options.text("accel") or "auto"
    if chosen not in ("auto", *acceleration.Acceleration):
        raise errors.PermanentError(
            f"option 'accel' of provider 'qemu': expected one of auto, kvm, tcg, found {chosen!r}"
        )
    settings = QemuSettings(
        dir=options.path("dir") or cachedir / "instances",
        images=options.path("images"),
        binary=options.text("binary") or BINARY,
        acceleration=acceleration.detect() if chosen == "auto" else acceleration.Acceleration(chosen),
        bridge=options.text("bridge") or "",
        memory_mib=options.count("memory_mib"),
        shutdown_seconds=options.seconds("shutdown_seconds"),
    )
    options.finish()
    return provider.open_qemu(scope, clock, clocks.SystemRng(), settings)


def _proxmox(options: Options, scope: port.Scope, clock: clocks.Clock, place: Place) -> port.Instances:
    from nstance.providers.proxmox import client, configured, provider

    access, settings = configured.read(options, os.environ, place.read_secret)
    options.finish()
    return provider.ProxmoxProvider(scope, client.ProxmoxClient(access, clock), clock, settings)
