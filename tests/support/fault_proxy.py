"""A proxy that spoils HTTP answers, to test how a storage client handles them."""

import asyncio
import contextlib
from dataclasses import dataclass
from enum import Enum

from bench import wires

from nstance.dev.s3 import documents


class Do(Enum):
    PASS = "forward"
    APPLY_THEN_DROP = "let the server do it, then close without an answer"
    APPLY_THEN_RESET = "let the server do it, then reset the connection"
    APPLY_THEN_500 = "let the server do it, then answer 500"
    APPLY_THEN_HANG = "let the server do it, then never answer"
    APPLY_THEN_CUT = "let the server do it, then send half of the answer"
    DROP = "close without asking the server"
    HOLD = "forward only when released"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer this, without asking the server."""

    status: int
    code: str = ""

    def encoded(self) -> bytes:
        body = (
            documents.error(self.code, "scripted", resource="/", request_id="1") if self.code else b"<html>oops</html>"
        )
        head = (
            f"HTTP/1.1 {self.status} Scripted\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Proxy(wires.Server):
    def __init__(self, upstream: int) -> None:
        super().__init__(upstream)
        self.script: list[Do | Answer] = []  # one per request; afterwards everything passes
        self.requests: list[str] = []  # method and path of each
        self.held, self.release, self.landed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await wires.message(reader)
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
        answer = await wires.answer(self.upstream, request)
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
