"""`nstance-server`: parse, then run until a signal."""

import asyncio
import signal
import sys
from importlib import metadata

import uvloop

from nstance import streams
from nstance.clock import AnchoredClock, Rng, SystemClock, SystemRng
from nstance.objects import errors
from nstance.objects.lease import BadLeaseError
from nstance.server import options as parsing
from nstance.server import validation
from nstance.server.config.configuration import NoConfigurationError
from nstance.server.errors import FatalError
from nstance.server.gc_tuner import GcTuner
from nstance.server.options import Options
from nstance.server.wiring import ServerProcess
from nstance.telemetry import logs, loop_errors


def main() -> None:
    streams.reopen()
    options = parsing.parse(sys.argv[1:], version=metadata.version("nstance"))
    logs.configure(json=options.json_logs, debug=options.debug, program="nstance-server")
    clock, rng = SystemClock(), SystemRng()
    if options.validate is not None:
        sys.exit(validate(options, clock, rng))
    sys.exit(uvloop.run(run(options, clock, rng)))


async def run(options: Options, clock: AnchoredClock, rng: Rng) -> int:
    server = ServerProcess(options, clock=clock, rng=rng)
    loop = asyncio.get_running_loop()
    loop_errors.install(loop, server.metrics.loop_failed)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    collecting = asyncio.create_task(GcTuner(clock).run())
    try:
        await server.run()
    except (FatalError, BadLeaseError) as problem:
        print(f"nstance-server: {problem}", file=sys.stderr)  # noqa: T201
        # Many servers that fail for one reason must not restart at the same time. People do not wait.
        if not sys.stderr.isatty() and not options.insecure_dev:
            wait = rng.uniform(*server.exit_jitter)
            print(  # noqa: T201
                f"nstance-server: exiting in {wait:.0f} s, so that servers do not restart at the same time",
                file=sys.stderr,
            )
            await server.pause(wait)
        return 1
    finally:
        collecting.cancel()
    return 0


def validate(options: Options, clock: AnchoredClock, rng: Rng) -> int:
    """Print all errors and warnings of a configuration; the exit code is 0 if it is valid."""
    subject = options.validate or f"the configuration of shard {options.shard}"
    try:
        warnings = uvloop.run(validation.validate(options, clock, rng))
    except (NoConfigurationError, errors.StorageError, TimeoutError, FatalError) as problem:
        print(f"nstance-server: {problem or 'object storage did not answer in time'}", file=sys.stderr)  # noqa: T201
        return 1
    for each in warnings:
        print(f"{'error' if options.strict else 'warning'}: {each}", file=sys.stderr)  # noqa: T201
    if warnings and options.strict:
        print(  # noqa: T201
            f"nstance-server: {subject} has {len(warnings)} warnings, which --strict treats as errors", file=sys.stderr
        )
        return 1
    print(f"{subject} is valid" + (f", with {len(warnings)} warnings" if warnings else ""))  # noqa: T201
    return 0


if __name__ == "__main__":
    main()
