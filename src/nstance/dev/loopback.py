"""Servers for development, which listen on loopback only."""

import argparse
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence

from aiohttp import web

GRACE_SECONDS = 1.0  # for running requests when the server stops


@contextlib.contextmanager
def listening(port: int) -> Iterator[list[socket.socket]]:
    """Sockets on 127.0.0.1 and ::1, because `localhost` may be either; port 0: a free one. Raises OSError."""
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(socket.create_server(("127.0.0.1", port)))
        sockets = [first]
        if socket.has_ipv6:
            try:
                second = socket.create_server(("::1", first.getsockname()[1]), family=socket.AF_INET6)
                sockets.append(opened.enter_context(second))
            except OSError as problem:
                if port and "in use" in str(problem):
                    raise
                logging.getLogger(__name__).info("not listening on ::1: %s", problem)
        yield sockets


@contextlib.asynccontextmanager
async def serving(server: web.Server, sockets: Sequence[socket.socket]) -> AsyncIterator[int]:
    """Serves until the block ends. Yields the port."""
    runner = web.ServerRunner(server, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    try:
        for each in sockets:
            await web.SockSite(runner, each).start()
        yield sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


def parse_port(text: str) -> int:
    """The argument of --port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, found {text!r}")
    return int(text)
