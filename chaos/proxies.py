"""Everything that the servers say or hear goes through here, and can be held back, slowed down, spoiled or cut.

Two kinds. A `Wire` passes bytes on and knows nothing of them: agents and peers are behind one. A `Storage` knows HTTP,
so it can spoil one request: refuse it, let it happen and lose the answer, or let it happen much later than the client
believes. Nothing is reset when something is held back: silence is harder to tell from slowness than a reset is.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter
from dataclasses import dataclass

REFUSED = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 56\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>x</Message></Error>"
)


class Server:
    """Listens, and ends what it began."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.port = 0
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self, host: str, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._guarded(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, RuntimeError):
                await self.serve(reader, writer)
        finally:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""
        raise NotImplementedError

    def pass_on(self) -> None:
        """Nothing is held back or spoiled any more."""
        raise NotImplementedError


class Line:
    """One connection through a wire."""

    def __init__(self) -> None:
        self.passes = asyncio.Event()
        self.passes.set()


class Wire(Server):
    def __init__(self, upstream: int) -> None:
        super().__init__(upstream)
        self._lines: set[Line] = set()
        self._held = False

    @property
    def connections(self) -> int:
        return len(self._lines)

    def hold(self) -> None:
        """All bytes of all connections, new ones too."""
        self._held = True
        for line in self._lines:
            line.passes.clear()
        self.counts["connections held"] += len(self._lines)

    def hold_some(self, share: float, r: random.Random) -> int:
        """Some of the connections that there are; new ones pass. How many."""
        chosen = r.sample(sorted(self._lines, key=id), round(share * len(self._lines)))
        for line in chosen:
            line.passes.clear()
        self.counts["connections held"] += len(chosen)
        return len(chosen)

    def pass_on(self) -> None:
        self._held = False
        for line in self._lines:
            line.passes.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line()
        if self._held:
            line.passes.clear()
            self.counts["connections held"] += 1
        self._lines.add(line)
        try:
            await line.passes.wait()
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.upstream)
            try:
                await asyncio.gather(_pump(line, reader, ours), _pump(line, theirs, writer))
            finally:
                ours.transport.abort()
        finally:
            self._lines.discard(line)


async def _pump(line: Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            await line.passes.wait()
            sink.write(data)
            await sink.drain()
    finally:
        if not line.passes.is_set():
            await line.passes.wait()  # an end is news as well: a cut line does not tell it
        sink.close()


@dataclass(frozen=True, slots=True)
class Weather:
    """How storage is today: how long a request waits, and how likely each bad ending is."""

    delay: tuple[float, float] = (0.0, 0.0)
    refused: float = 0.0  # 503, nothing was done
    lost: float = 0.0  # it was done, and the connection ends without an answer
    denied: float = 0.0  # it was done, and the answer is an error


FAIR = Weather()


class Storage(Server):
    def __init__(self, upstream: int, r: random.Random) -> None:
        super().__init__(upstream)
        self.weather = FAIR
        self._r = r
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Requests wait here. Those whose clients gave up long ago still happen afterwards: late."""
        self._open.clear()

    def pass_on(self) -> None:
        self._open.set()
        self.weather = FAIR

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _message(reader)
        self.counts["requests"] += 1
        if not self._open.is_set():
            self.counts["requests held"] += 1
            await self._open.wait()
            if reader.at_eof():
                self.counts["requests applied late"] += 1
        weather = self.weather
        if weather.delay[1]:
            self.counts["requests slowed"] += 1
            await asyncio.sleep(self._r.uniform(*weather.delay))
        draw = self._r.random()
        if draw < weather.refused:
            self.counts["requests refused"] += 1
            writer.write(REFUSED)
            await writer.drain()
            return True
        answer = await self._ask(request)
        if draw < weather.refused + weather.lost:
            self.counts["answers lost"] += 1
            return False
        if draw < weather.refused + weather.lost + weather.denied:
            self.counts["answers spoiled"] += 1
            answer = REFUSED
        writer.write(answer)
        await writer.drain()
        return True

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            writer.write(request)
            return await _message(reader, head=request.startswith(b"HEAD"))
        finally:
            writer.transport.abort()


async def _message(reader: asyncio.StreamReader, *, head: bool = False) -> bytes:
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", text)
    if length is None or head:
        return text
    return text + await reader.readexactly(int(length[1]))
