"""nstance-dev-s3: an S3 server over plain files, for development on one machine."""

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev import loopback, signals
from nstance.dev.s3.bucket import Bucket
from nstance.dev.s3.service import Service
from nstance.objects import errors
from nstance.telemetry import logs

EXAMPLES = """\
examples:
  nstance-dev-s3                                   the bucket dev in temp/dev-s3, on port 8989
  nstance-dev-s3 --dir /tmp/objects --port 9000

use it with any S3 client:
  export AWS_ENDPOINT_URL=http://localhost:8989 AWS_REGION=us-east-1
  export AWS_ACCESS_KEY_ID=dev AWS_SECRET_ACCESS_KEY=dev AWS_S3_USE_PATH_STYLE=true
  aws s3 ls s3://dev/
"""


@contextlib.asynccontextmanager
async def serving(buckets: Mapping[str, pathlib.Path], *, port: int) -> AsyncIterator[int]:
    """Serves until the block ends and yields the port; 0: a free one. Raises OSError if it is in use."""
    clock, rng = clocks.SystemClock(), clocks.SystemRng()
    with loopback.listening(port) as sockets:
        opened = {name: Bucket(name, folder.absolute(), clock=clock, rng=rng) for name, folder in buckets.items()}
        service = Service(opened, clock=clock)
        try:
            async with loopback.serving(web.Server(service.handle, auto_decompress=False), sockets) as chosen:
                yield chosen
        finally:
            for bucket in opened.values():
                await bucket.close()


def main(argv: Sequence[str] | None = None) -> None:
    description = "An S3 server over plain files, for development. Listens on loopback only."
    parser = loopback.parser("nstance-dev-s3", description, examples=EXAMPLES, port=8989, folder="temp/dev-s3")
    options = parser.parse_args(argv)
    logs.configure(json=False, debug=options.verbose, program="nstance-dev-s3")
    try:
        asyncio.run(_run(options.dir, port=options.port))
    except OSError as problem:
        reason = f"port {options.port} cannot be used ({problem.strerror or problem})"
        sys.exit(f"nstance-dev-s3: {reason}; stop the other process, or choose another port with --port")
    except errors.StorageError as problem:
        sys.exit(f"nstance-dev-s3: {problem}")


async def _run(folder: pathlib.Path, *, port: int) -> None:
    stop = signals.stop_event()
    async with serving({"dev": folder}, port=port) as chosen:
        sys.stdout.write(f"dev-s3 listens on http://localhost:{chosen}, bucket dev in {folder}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    main()
