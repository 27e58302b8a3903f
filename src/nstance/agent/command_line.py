"""The command line of `nstance-agent`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nstance.agent.version import VERSION
from nstance.model import durations


def parse(arguments: Sequence[str], *, log_format: str) -> argparse.Namespace:
    """`log_format`: unless one is given. Exits with what is wrong."""
    parser = argparse.ArgumentParser(
        prog="nstance-agent", description="Nstance agent: identity, keys, files and health of one instance."
    )
    parser.add_argument("--version", action="version", version=f"nstance-agent {VERSION}")
    parser.add_argument("-v", "--debug", action="store_true", help="log debug messages")
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=log_format,
        help="json: one object a line (default: NSTANCE_LOG_FORMAT, or text)",
    )
    commands = parser.add_subparsers(dest="command", metavar="[wait | install-units]")
    waiting = commands.add_parser("wait", help="return once the first set of files is installed")
    waiting.add_argument("--timeout", type=_duration, default=300.0, help="how long to wait (5m)")
    units = commands.add_parser("install-units", help="write the agent's systemd units")
    units.add_argument("--dir", type=Path, default=Path("/etc/systemd/system"), help="where to (/etc/systemd/system)")
    units.add_argument("--program", default="/usr/local/bin/nstance-agent", help="the agent's absolute path")
    return parser.parse_args(arguments)


def _duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
