"""A proxy that spoils HTTP answers, to find out what a storage client makes of them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum

from nstance.dev.s3 import documents


class Do(Enum):
    PASS = "pass on"
    APPLY_THEN_DROP = "let the server do it, then close without an answer"
    APPLY_THEN_RESET = "let the server do it, then reset the connection"
    APPLY_THEN_500 = "let the server do it, then answer 500"
    APPLY_THEN_HANG = "let the server do it, then never answer"
    APPLY_THEN_CUT = "let the server do it, then send half of the answer"
    DROP = "close without telling the server"
    HOLD = "tell the server only when released"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer this, without asking the server."""

    status: int
    code: str = ""

    def encoded(self) -> bytes:
        body = (
            documents.error(self.code, "as told", resource="/", request_id="1") if self.code else b"<html>oops</html>"
        )
        head = f"HTTP/1.1 {self.status} Told\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


@dataclass
class Proxy:
    upstream: int
    port: int = 0
    script: list[Do | Answer] = field(default_factory=list)  # one per request; afterwards everything passes
    requests: list[str] = field(default_factory=list)  # method and path of each
    held: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    landed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            await _close(writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _message(reader)
        self.requests.append(b" ".join(request.split(b" ", 2)[:2]).decode())
        step = self.script.pop(0) if self.script else Do.PASS
        if isinstance(step, Answer):
            writer.write(step.encoded())
            await writer.drain()
            return True
        if step is Do.DROP:
            return False
        if step is Do.HOLD:
            self.held.set()
            await self.release.wait()
        answer = await self._ask(request)
        self.landed.set()
        match step:
            case Do.APPLY_THEN_DROP:
                return False
            case Do.APPLY_THEN_RESET:
                writer.transport.abort()
                return False
            case Do.APPLY_THEN_HANG:
                await reader.read()  # until the client gives up
                return False
            case Do.APPLY_THEN_CUT:
                writer.write(answer[: -len(answer) // 4])
                await writer.drain()
                return False
            case Do.APPLY_THEN_500:
                answer = Answer(500, "InternalError").encoded()
        writer.write(answer)
        await writer.drain()
        return True

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(request)
            return await _message(reader, head=request.startswith(b"HEAD"))
        finally:
            await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _message(reader: asyncio.StreamReader, *, head: bool = False) -> bytes:
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", text)
    if length is None or head:
        return text
    return text + await reader.readexactly(int(length[1]))


@contextlib.asynccontextmanager
async def proxying(endpoint: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(int(endpoint.rpartition(":")[2]))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
