"""`python -m nstance.dev.aws`: moto behind the strictness proxy, until interrupted."""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from nstance.clock import SystemClock
from nstance.dev.aws.moto import MissingError, Moto, find_moto, run_moto
from nstance.dev.aws.rules import Offer, Rules
from nstance.dev.aws.stand_in import StandIn

EXAMPLES = """examples:
  python -m nstance.dev.aws --port 4566
  python -m nstance.dev.aws --capacity m7g.large:0 --capacity c7g.large:10
  export AWS_ENDPOINT_URL=http://127.0.0.1:4566 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
"""


def _capacity(text: str) -> tuple[Offer, int]:
    kind, _, count = text.partition(":")
    if not kind or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an instance type and a number, such as m7g.large:0, found {text!r}")
    return Offer(instance_type=kind), int(count)


def _options(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m nstance.dev.aws",
        description="A stand-in for AWS on this machine. Prints its endpoint when it is ready.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=0, help="of the endpoint (default: a free one)")
    parser.add_argument("--moto-port", type=int, default=0, help="of moto behind it (default: a free one)")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument(
        "--capacity",
        type=_capacity,
        action="append",
        default=[],
        metavar="TYPE:COUNT",
        help="how many instances of a type can exist (repeatable)",
    )
    return parser.parse_args(args)


async def _run(options: argparse.Namespace) -> None:
    program = find_moto()
    ended = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nstance-aws-"))
        moto = Moto(stack.enter_context(run_moto(program, Path(folder), port=options.moto_port)), options.region)
        stack.push_async_callback(moto.close)
        stand_in = StandIn(moto, SystemClock(), Rules(capacity=dict(options.capacity)))
        await stand_in.start(options.port)
        stack.push_async_callback(stand_in.close)
        print(stand_in.url, flush=True)  # noqa: T201
        await ended.wait()


def main() -> int:
    try:
        asyncio.run(_run(_options(sys.argv[1:])))
    except (MissingError, OSError, RuntimeError) as problem:
        print(f"failed to start the stand-in for AWS: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
