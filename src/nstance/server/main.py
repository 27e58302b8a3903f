"""`nstance-server`: parse, then run until a signal."""

import asyncio
import signal
import sys
from importlib import metadata
from pathlib import Path

import uvloop

from nstance import streams
from nstance.clock import AnchoredClock, Chance, SystemChance, SystemClock
from nstance.config import jsonc
from nstance.objects import errors
from nstance.objects.lease import BadLease
from nstance.server import configuration as configurations
from nstance.server import options as parsing
from nstance.server.configuration import NoConfiguration
from nstance.server.errors import Fatal
from nstance.server.garbage import Garbage
from nstance.server.options import Options
from nstance.server.wiring import Server
from nstance.telemetry import logs


def main() -> None:
    streams.reopen()
    options = parsing.parse(sys.argv[1:], version=metadata.version("nstance"))
    logs.configure(json=options.json_logs, debug=options.debug, program="nstance-server")
    clock, chance = SystemClock(), SystemChance()
    if options.validate is not None:
        sys.exit(validate(options, clock, chance))
    sys.exit(uvloop.run(run(options, clock, chance)))


async def run(options: Options, clock: AnchoredClock, chance: Chance) -> int:
    server = Server(options, clock=clock, chance=chance)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    collecting = asyncio.create_task(Garbage(clock).run())
    try:
        await server.run()
    except (Fatal, BadLease) as problem:
        print(f"nstance-server: {problem}", file=sys.stderr)  # noqa: T201
        # Many servers that fail for one reason must not restart in step. People do not wait.
        if not sys.stderr.isatty() and not options.insecure_dev:
            wait = chance.uniform(*server.exit_jitter)
            print(f"nstance-server: it exits in {wait:.0f} s, so that servers do not restart in step", file=sys.stderr)  # noqa: T201
            await server.pause(wait)
        return 1
    finally:
        collecting.cancel()
    return 0


def validate(options: Options, clock: AnchoredClock, chance: Chance) -> int:
    """Shows all faults of a configuration; says whether there were any."""
    try:
        if options.validate:
            configurations.parse(_read(options.validate), shard=options.shard, source=options.validate)
            print(f"{options.validate} is valid")  # noqa: T201
        else:
            uvloop.run(_validate_bucket(options, clock, chance))
            print(f"the configuration of shard {options.shard} is valid")  # noqa: T201
    except (NoConfiguration, errors.StorageError, Fatal) as problem:
        print(f"nstance-server: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(jsonc.MAX_BYTES + 1)  # one more shows that it is too large
    except OSError as problem:
        raise Fatal(f"{path} cannot be read: {problem.strerror or problem}") from problem


async def _validate_bucket(options: Options, clock: AnchoredClock, chance: Chance) -> None:
    server = Server(options, clock=clock, chance=chance)
    store = server.open_store()
    try:
        await configurations.read(store, server.shard)
    finally:
        await store.close()


if __name__ == "__main__":
    main()
