"""Raw HTTP into a handler, through aiohttp's own parser and without a socket."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

PATIENCE = 0.3  # seconds; a watch would go on for ever


class StillClock:
    def monotonic(self) -> float:
        return 1.0

    def boot(self) -> float:
        return 1.0

    def wall(self) -> float:
        return 1_750_000_000.0  # 2025-06-15 15:06:40

    def steady(self) -> float:
        return self.wall()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class _Sink(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.written += piece

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        return

    def abort(self) -> None:
        return

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return


def framed(raw: bytes) -> tuple[bytes, bytes]:
    """Head and body, the head with a length that fits: HTTP itself is aiohttp's business."""
    head, _, body = raw.partition(b"\n\n")
    lines = [line.rstrip(b"\r") for line in head.split(b"\n")]
    kept = [
        line
        for line in lines[1:]
        if not re.match(rb"(?i)\s*(content-length|transfer-encoding|connection|upgrade)\b", line)
    ]
    return b"\r\n".join([lines[0], *kept, b"Content-Length: %d" % len(body), b"Connection: close", b"", b""]), body


async def send(handler: Handler, head: bytes, body: bytes) -> bytes:
    """What is answered. Raises what the handler raises."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def watched(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as problem:
            if not done.done():
                done.set_exception(problem)
            raise web.HTTPInternalServerError from None

    server = web.Server(watched, access_log=None)
    protocol, sink = server(), _Sink()
    protocol.connection_made(sink)
    protocol.data_received(head + body)
    began = asyncio.get_running_loop().time()
    while not done.done() and b"\r\n\r\n" not in sink.written:
        if asyncio.get_running_loop().time() - began > PATIENCE:
            break
        await asyncio.sleep(0.0005)
    protocol.connection_lost(None)
    await server.shutdown(0.1)
    if done.done():
        done.result()
    return bytes(sink.written)
