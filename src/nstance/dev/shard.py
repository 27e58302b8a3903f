"""One shard of `make dev-tmux` (the entry `server` of the Procfile): uploads its configuration to dev-s3 and runs its server,
with STANDBYS=1 also a standby. Both restart when the code changes.

Number N runs the shard dev-N; the number is the last one in the name that honcho or Overmind gives the process. The trap:
your own AWS settings must not be used here, or a trial on a laptop would write into a real bucket.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop

from nstance import clock as clocks
from nstance.dev import child, dev_config, leftovers, signals
from nstance.dev.errors import DevError
from nstance.dev.run import DEV_ENCRYPTION_KEY
from nstance.dev.screen import Screen
from nstance.dev.supervisor import Supervisor
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.s3 import S3Store
from nstance.providers import tmux
from nstance.server.config import configuration

SHARD_PORT_OFFSET = 10
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings in the environment."""

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
    def port_offsets(self) -> list[int]:
        first = (self.number - 1) * SHARD_PORT_OFFSET
        return [first, first + dev_config.STANDBY_PORT_OFFSET] if self.standby else [first]

    @property
    def instances(self) -> Path:
        return self.cache(standby=False) / "instances"

    def cache(self, *, standby: bool) -> Path:
        if self.number == 1 and not standby:
            return self.temp / "cache"
        return self.temp / (f"cache-{self.shard}-standby" if standby else f"cache-{self.shard}")


def read_options(environment: Mapping[str, str]) -> Options:
    name = environment.get("HONCHO_PROCESS_NAME") or environment.get("PS") or ""  # server.2, server#2
    number = re.search(r"(\d+)$", name)
    return Options(
        number=int(number[1]) if number else 1,
        standby=environment.get("STANDBYS", "") not in ("", "0"),
        temp=Path(environment.get("NSTANCE_DEV_TEMP") or "temp").absolute(),
        port=int(environment.get("NSTANCE_DEV_PORT") or dev_config.DEFAULT_PORT),
        config=Path(environment.get("NSTANCE_DEV_CONFIG") or "examples/config-tmux.jsonc").absolute(),
        endpoint=f"http://127.0.0.1:{environment.get('NSTANCE_DEV_S3_PORT') or 8989}",
    )


def dev_environment(environment: Mapping[str, str], *, endpoint: str) -> dict[str, str]:
    """The environment with access to dev-s3, and without the user's own AWS settings."""
    return {
        "NSTANCE_ENCRYPTION_KEY": DEV_ENCRYPTION_KEY,
        **{name: value for name, value in environment.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "dev",
        "AWS_SECRET_ACCESS_KEY": "dev",
        "AWS_REGION": "us-east-1",
        "AWS_S3_USE_PATH_STYLE": "true",
    }


def server(options: Options, clock: clocks.Clock, *, standby: bool) -> child.Child:
    name = f"{options.shard}-standby" if standby else str(options.shard)
    command = [
        child.program_path("nstance-server"),
        *("--id", name, "--shard", options.shard, "--storage", "s3", "--bucket", "dev"),
        *("--cachedir", str(options.cache(standby=standby)), "--port-offset", str(options.port_offsets[int(standby)])),
        *("--advertise-host", "127.0.0.1", "--insecure-dev"),
    ]
    return child.Child(name, command, os.environ, temp=options.temp, clock=clock)


async def run(options: Options) -> None:
    stop = signals.stop_event()
    clock = clocks.SystemClock()
    screen = Screen(sys.stdout, clock, timed=False)
    servers = [server(options, clock, standby=standby) for standby in (False, True)[: len(options.port_offsets)]]
    supervisor = Supervisor(servers, screen, clock)
    layout = dev_config.Layout(
        options.shard, options.port, options.port_offsets, options.instances, options.temp / "dev-k8s"
    )
    config = dev_config.ConfigFile(options.config, S3Store("dev"), layout)
    leftovers.claim(options.temp / "pids", f"dev-tmux-{options.number}")
    try:
        async with supervisor.reloading():
            while not stop.is_set():
                if await config.upload_if_changed(screen, clock):
                    await supervisor.start()
                await supervisor.poll()
                await clock.sleep(POLL_SECONDS)
    finally:
        await supervisor.stop()
        leftovers.remove_record(options.temp / "pids", f"dev-tmux-{options.number}")
        if count := len(list(leftovers.agents(options.instances))):
            screen.say(
                f"{count} agents of {options.shard} keep running in the tmux session {tmux.SESSION}: "
                "the next `make dev-tmux` uses them, `make clean-dev` stops them"
            )


def main() -> None:
    options = read_options(os.environ)
    environment = dev_environment(os.environ, endpoint=options.endpoint)
    os.environ.clear()  # the S3 library reads it
    os.environ.update(environment)
    try:
        uvloop.run(run(options))
    except (DevError, configuration.NoConfigurationError, errors.StorageError, OSError) as problem:
        sys.exit(f"dev: {problem}")


if __name__ == "__main__":
    main()
