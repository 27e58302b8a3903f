"""`python -m nstance.dev.aws`: moto behind the strictness proxy, until interrupted."""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

from nstance.clock import SystemClock
from nstance.dev import signals
from nstance.dev.aws.moto import MissingError, opened
from nstance.dev.aws.rules import Rules, parse_capacity
from nstance.dev.aws.stand_in import StandIn

EXAMPLES = """examples:
  python -m nstance.dev.aws --port 4566
  python -m nstance.dev.aws --capacity m7g.large:0 --capacity c7g.large:10
  export AWS_ENDPOINT_URL=http://127.0.0.1:4566 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
"""


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
        type=parse_capacity,
        action="append",
        default=[],
        metavar="TYPE:COUNT",
        help="how many instances of a type can exist (repeatable)",
    )
    return parser.parse_args(args)


async def _run(options: argparse.Namespace) -> None:
    ended = signals.stop_event()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nstance-aws-")))
        moto = await stack.enter_async_context(opened(folder, port=options.moto_port, region=options.region))
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
