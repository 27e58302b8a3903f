"""Servers for development, which listen on loopback only."""

import argparse
import contextlib
import http.client
import logging
import pathlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib import metadata

from aiohttp import web

from nstance.wire import server_header

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
    server_header.hide_versions()
    runner = web.ServerRunner(server, shutdown_timeout=GRACE_SECONDS)
    await runner.setup()
    try:
        for each in sockets:
            await web.SockSite(runner, each).start()
        yield sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], *, port: int = 0, max_body: int = 1 << 20
) -> AsyncIterator[str]:
    """Answers all requests to a port of 127.0.0.1 until the block ends. Yields the URL; port 0: a free one."""
    app = web.Application(client_max_size=max_body)
    app.router.add_route("*", "/{path:.*}", handler)
    server_header.hide_versions()
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def connected_agents(port: int) -> int:
    """From the metrics of a server on this machine; 0 if it does not answer."""
    return _sum(port, "nstance_agents_connected ")


def ready_instances(port: int) -> int:
    """The same, of the instances of all groups."""
    return _sum(port, "nstance_instances_ready{")


def _sum(port: int, start: str) -> int:
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        server.request("GET", "/metrics")
        lines = server.getresponse().read(1 << 20).decode().splitlines()
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        server.close()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(start))


def parser(program: str, description: str, *, examples: str, port: int, folder: str) -> argparse.ArgumentParser:
    """The options of dev-s3 and dev-k8s."""
    made = argparse.ArgumentParser(
        prog=program, description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--port", type=parse_port, default=port, metavar="N", help=f"port to listen on; 0: a free one ({port})")
    add("--dir", type=pathlib.Path, default=pathlib.Path(folder), help=f"folder for the objects ({folder})")
    add("-v", "--verbose", action="store_true", help="log every request")
    add("--version", action="version", version=f"{program} {metadata.version('nstance')}")
    return made


def parse_port(text: str) -> int:
    """The argument of --port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, found {text!r}")
    return int(text)
