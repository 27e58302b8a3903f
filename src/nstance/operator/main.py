"""`nstance-operator`: parses the command line and runs until a signal."""

import asyncio
import logging
import os
import signal
import socket
import sys
from importlib import metadata

import uvloop

from nstance import streams
from nstance.clock import Clock, Rng, SystemClock, SystemRng
from nstance.operator import options as parsing
from nstance.operator.errors import FatalError
from nstance.operator.options import Level, Options
from nstance.operator.wiring import Host, Operator
from nstance.telemetry import logs, loop_errors, tracing

log = logging.getLogger(__name__)

_LEVELS = {Level.ERROR: logging.ERROR, Level.PANIC: logging.CRITICAL}


def main() -> None:
    streams.reopen()
    try:
        options = parsing.parse(sys.argv[1:], os.environ, version=metadata.version("nstance"))
    except FatalError as problem:
        sys.exit(print_error(problem))
    logs.configure(json=options.json_logs, debug=options.level is Level.DEBUG, program="nstance-operator")
    if options.level in _LEVELS:
        logging.getLogger("nstance").setLevel(_LEVELS[options.level])
    sys.exit(uvloop.run(run(options, SystemClock(), SystemRng())))


async def run(options: Options, clock: Clock, rng: Rng) -> int:
    traced = tracing.start(
        os.environ,
        clock,
        rng,
        program="nstance-operator",
        version=metadata.version("nstance"),
        instance=socket.gethostname(),
    )
    operator = Operator(options, clock=clock, rng=rng, host=Host(tracing=traced))
    loop = asyncio.get_running_loop()
    loop_errors.install(loop, operator.metrics.loop_failed)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, operator.stop)
    try:
        await operator.run()
    except FatalError as problem:
        if options.json_logs:
            log.error("failed to run", extra={"error": str(problem)})
            return 1
        return print_error(problem)
    finally:
        traced.close()
    return 0


def print_error(problem: FatalError) -> int:
    print(f"nstance-operator: {problem}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    main()
