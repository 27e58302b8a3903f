"""One shard of `make dev-tmux`: the Procfile's entry `server`. Puts its configuration into dev-s3, then runs its server,
and with STANDBYS=1 a standby, both started anew when the code changes.

Number N serves the shard dev-N; the number is the last one in the name that honcho or Overmind gives a process. The trap:
your own AWS settings must not be used here, or a try on a laptop would write into a real bucket.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop

from nstance import clock as clocks
from nstance.dev import child, configs, leftovers
from nstance.dev.run import KEY
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.s3 import S3Store
from nstance.providers import tmux
from nstance.server.config import configuration

BETWEEN_SHARDS = 10  # ports
LOOK = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the environment asks for."""

    number: int
    standby: bool
    temp: Path
    port: int
    config: Path
    endpoint: str

    @property
    def shard(self) -> ShardId:
        return ShardId(f"dev-{self.number}")

    @property
    def offsets(self) -> list[int]:
        first = (self.number - 1) * BETWEEN_SHARDS
        return [first, first + configs.STANDBY] if self.standby else [first]

    @property
    def instances(self) -> Path:
        return self.cache(standby=False) / "instances"

    def cache(self, *, standby: bool) -> Path:
        if self.number == 1 and not standby:
            return self.temp / "cache"
        return self.temp / (f"cache-{self.shard}-standby" if standby else f"cache-{self.shard}")


def plan(environment: Mapping[str, str]) -> Plan:
    name = environment.get("HONCHO_PROCESS_NAME") or environment.get("PS") or ""  # server.2, server#2
    number = re.search(r"(\d+)$", name)
    return Plan(
        number=int(number[1]) if number else 1,
        standby=environment.get("STANDBYS", "") not in ("", "0"),
        temp=Path(environment.get("NSTANCE_DEV_TEMP") or "temp").absolute(),
        port=int(environment.get("NSTANCE_DEV_PORT") or configs.PORT),
        config=Path(environment.get("NSTANCE_DEV_CONFIG") or "examples/config-tmux.jsonc").absolute(),
        endpoint=f"http://127.0.0.1:{environment.get('NSTANCE_DEV_S3_PORT') or 8989}",
    )


def dev_environment(environment: Mapping[str, str], *, endpoint: str) -> dict[str, str]:
    """With the way to dev-s3, and without anybody's way to Amazon."""
    kept = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    return {
        "NSTANCE_ENCRYPTION_KEY": KEY,
        **kept,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "dev",
        "AWS_SECRET_ACCESS_KEY": "dev",
        "AWS_REGION": "us-east-1",
        "AWS_S3_USE_PATH_STYLE": "true",
    }


def server(wanted: Plan, clock: clocks.Clock, *, standby: bool) -> child.Child:
    name = f"{wanted.shard}-standby" if standby else str(wanted.shard)
    program = [
        child.program("nstance-server", sys.executable),
        *("--id", name, "--shard", wanted.shard, "--storage", "s3", "--bucket", "dev"),
        *("--cachedir", str(wanted.cache(standby=standby)), "--port-offset", str(wanted.offsets[int(standby)])),
        *("--advertise-host", "127.0.0.1", "--insecure-dev"),
    ]
    pids = wanted.temp / "pids"
    return child.Child(
        name,
        command=program,
        environment={**os.environ, "NSTANCE_DEV": str(pids)},
        folder=Path.cwd(),
        log=wanted.temp / "logs" / f"{name}.log",
        pids=pids,
        clock=clock,
    )


async def run(wanted: Plan) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    clock = clocks.SystemClock()
    screen = Screen(sys.stdout, clock, timed=False)
    store = S3Store("dev")
    servers = [server(wanted, clock, standby=standby) for standby in (False, True)[: len(wanted.offsets)]]
    care = Supervisor(servers, screen, clock)
    saved = 0
    leftovers.claim(wanted.temp / "pids", f"dev-tmux-{wanted.number}")
    try:
        async with care.watching():
            while not ended.is_set():
                if wanted.config.stat().st_mtime_ns != saved:
                    first, saved = saved == 0, wanted.config.stat().st_mtime_ns
                    await _put(wanted, store, screen, clock, first=first)
                    if first:
                        await care.start()
                await care.look()
                await clock.sleep(LOOK)
    finally:
        await care.stop()
        leftovers.forget(wanted.temp / "pids", f"dev-tmux-{wanted.number}")
        if left := len(list(leftovers.agents(wanted.instances))):
            screen.say(
                f"{left} agents of {wanted.shard} go on in the tmux session {tmux.SESSION}: "
                "the next `make dev-tmux` finds them again, `make clean-dev` ends them"
            )


async def _put(wanted: Plan, store: S3Store, screen: Screen, clock: clocks.Clock, *, first: bool) -> None:
    try:
        body = configs.adapt(
            wanted.config.read_text(),
            source=str(wanted.config),
            shard=wanted.shard,
            port=wanted.port,
            offsets=wanted.offsets,
            instances=wanted.instances,
            dev_k8s=wanted.temp / "dev-k8s",
        )
    except configuration.NoConfigurationError as problem:
        if first:
            raise
        screen.say(f"{problem}\nThe old configuration stays.")
        return
    if await configs.put(store, wanted.shard, body, clock=clock):
        screen.say(f"put {wanted.config} into dev-s3 for shard {wanted.shard}")


def main() -> None:
    wanted = plan(os.environ)
    environment = dev_environment(os.environ, endpoint=wanted.endpoint)
    os.environ.clear()  # the S3 library looks there by itself
    os.environ.update(environment)
    try:
        uvloop.run(run(wanted))
    except (
        leftovers.Busy,
        configs.Unusable,
        configuration.NoConfigurationError,
        errors.StorageError,
        OSError,
    ) as problem:
        sys.exit(f"dev: {problem}")


if __name__ == "__main__":
    main()
