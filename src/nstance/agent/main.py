"""`nstance-agent`: the program. `lifecycle` is imported late, so that `wait` and errors start fast; what parses a command
line only if there is one, because every VM has this memory."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance import streams
from nstance.agent import settings
from nstance.agent.version import VERSION
from nstance.clock import Clock, SystemClock, SystemRng
from nstance.model import durations
from nstance.telemetry import logs, tracing

WAIT_POLL_SECONDS = 0.1
FLUSH_SECONDS = 0.15  # for traces, of the two seconds that a stop may take
LOG_FORMAT_VARIABLE = "NSTANCE_LOG_FORMAT"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    streams.reopen()
    given = sys.argv[1:] if arguments is None else arguments
    log_format, debug = os.environ.get(LOG_FORMAT_VARIABLE) or "text", False
    if given:
        from nstance.agent import command_line

        options = command_line.parse(given, log_format=log_format)
        if options.command == "wait":
            sys.exit(asyncio.run(wait(os.environ, options.timeout, SystemClock())))
        if options.command == "install-units":
            sys.exit(_install_units(options.dir, options.program))
        log_format, debug = options.log_format, options.debug
    code = _run(is_json=log_format == "json", debug=debug)
    logging.shutdown()
    # Not sys.exit: it would wait for a thread that hangs on a dead disk or name server. Files survive this by design.
    os._exit(code)


def _run(*, is_json: bool, debug: bool) -> int:
    logs.configure(json=is_json, debug=debug, program="nstance-agent")
    report = _log_errors if is_json else _print_errors
    try:
        configured = settings.read(os.environ)
    except settings.InvalidSettingsError as error:
        return report(*error.faults)
    logs.configure(json=is_json, debug=debug, program="nstance-agent", fields={"instance": configured.instance})

    from nstance.agent import lifecycle
    from nstance.agent.files import folder

    clock, rng = SystemClock(), SystemRng()
    traced = tracing.start(
        os.environ, clock, rng, program="nstance-agent", version=VERSION, instance=configured.instance
    )
    try:
        asyncio.Runner().run(lifecycle.run(configured, clock=clock, rng=rng, tracing=traced))
    except (folder.SetupError, OSError) as error:
        return report(str(error))
    finally:
        traced.close(FLUSH_SECONDS)
    return 0


def _install_units(directory: Path, program: str) -> int:
    from nstance.agent import units

    if not os.path.isabs(program):
        return _print_errors(f"--program: expected an absolute path, found {program!r}")
    try:
        installed = units.install(directory, program)
    except OSError as error:
        return _print_errors(f"failed to install the systemd units: {error}")
    for path in installed:
        sys.stdout.write(f"{path}\n")
    return 0


def _print_errors(*errors: str) -> int:
    for error in errors:
        sys.stderr.write(f"nstance-agent: {error}\n")
    return 1


def _log_errors(*errors: str) -> int:
    for error in errors:
        log.error("failed to run", extra={"error": error})
    return 1


async def wait(environment: Mapping[str, str], timeout: float, clock: Clock) -> int:
    """For scripts that need the files. Returns 0 once they are installed, 1 after the timeout."""
    marker = settings.identity_dir(environment) / settings.CONFIG_HASH
    end = clock.monotonic() + timeout
    while not os.access(marker, os.F_OK):
        remaining = end - clock.monotonic()
        if remaining <= 0:
            return _print_errors(f"no files installed after {durations.format(timeout)}; see the agent's log")
        await clock.sleep(min(WAIT_POLL_SECONDS, remaining))
    return 0
