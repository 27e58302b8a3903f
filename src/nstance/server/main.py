"""`nstance-server`: parse options, then run until a signal."""

import asyncio
import logging
import os
import signal
import sys
from importlib import metadata

import uvloop

from nstance import streams
from nstance.clock import AnchoredClock, Rng, SystemClock, SystemRng
from nstance.model.counts import count
from nstance.objects import errors
from nstance.server import options as parsing
from nstance.server.config.configuration import NoConfigurationError
from nstance.server.errors import FatalError
from nstance.server.gc_tuner import GcTuner
from nstance.server.options import Options
from nstance.server.wiring import ServerProcess
from nstance.telemetry import logs, loop_errors, tracing

log = logging.getLogger(__name__)


def main() -> None:
    streams.reopen()
    options = parsing.parse(sys.argv[1:], version=metadata.version("nstance"))
    logs.configure(json=options.json_logs, debug=options.debug, program="nstance-server")
    clock, rng = SystemClock(), SystemRng()
    if options.validate is not None:
        sys.exit(validate(options, clock, rng))
    sys.exit(uvloop.run(run(options, clock, rng)))


async def run(options: Options, clock: AnchoredClock, rng: Rng) -> int:
    version = metadata.version("nstance")
    traced = tracing.start(
        os.environ, clock, rng, program="nstance-server", version=version, instance=f"{options.shard}/{options.id}"
    )
    process = ServerProcess(options, clock=clock, rng=rng, tracing=traced)
    report = log.error if options.json_logs else _print_error
    loop = asyncio.get_running_loop()
    loop_errors.install(loop, process.metrics.loop_failed)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    collecting = asyncio.create_task(GcTuner(clock).run())
    try:
        await process.run()
    except FatalError as problem:
        report(f"nstance-server: {problem}")
        # Many servers that fail for one reason must not restart at the same time. People do not wait.
        if not sys.stderr.isatty() and not options.insecure_dev:
            wait = rng.uniform(*process.exit_jitter)
            report(f"nstance-server: exiting in {wait:.0f} s, so that servers do not restart at the same time")
            await process.pause(wait)
        return 1
    finally:
        collecting.cancel()
        traced.close()
    return 0


def validate(options: Options, clock: AnchoredClock, rng: Rng) -> int:
    """Print all errors and warnings of a configuration; the exit code is 0 if it is valid."""
    from nstance.server import validation  # a server that runs never needs it

    subject = options.validate or f"the configuration of shard {options.shard}"
    try:
        warnings = uvloop.run(validation.validate(options, clock, rng))
    except (NoConfigurationError, errors.StorageError, TimeoutError, FatalError) as problem:
        _print_error(f"nstance-server: {problem or 'object storage did not answer in time'}")
        return 1
    for each in warnings:
        _print_error(f"{'error' if options.strict else 'warning'}: {each}")
    if warnings and options.strict:
        _print_error(
            f"nstance-server: {subject} has {count(len(warnings), 'warning')}, and --strict treats them as errors"
        )
        return 1
    print(f"{subject} is valid" + (f", with {count(len(warnings), 'warning')}" if warnings else ""))  # noqa: T201
    return 0


def _print_error(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
