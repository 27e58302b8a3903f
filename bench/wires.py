"""Proxies: what goes through them can be held back, as by a stopped process or a network that swallows packets.

Nothing is reset when something is held back, and new connections are accepted: silence is harder to tell from slowness
than a reset is.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TypeVar


class Server:
    """Listens, and ends what it began."""

    def __init__(self, upstream: int, host: str = "127.0.0.1") -> None:
        self.upstream, self.host = upstream, host
        self.address = ""
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def start(self, host: str, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

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


class Line:
    """One connection through a wire."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.passes = asyncio.Event()
        self.passes.set()


class Wire(Server):
    """Passes bytes on and knows nothing of them."""

    def __init__(self, upstream: int, host: str = "127.0.0.1") -> None:
        super().__init__(upstream, host)
        self._lines: set[Line] = set()
        self._held = False
        self.delay = 0.0  # seconds that each answer takes longer

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

    def reset(self) -> None:
        """All connections that there are."""
        for line in self._lines:
            line.client.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(writer)
        if self._held:
            line.passes.clear()
            self.counts["connections held"] += 1
        self._lines.add(line)
        try:
            await line.passes.wait()
            theirs, ours = await asyncio.open_connection(self.host, self.upstream)
            try:
                await asyncio.gather(_pump(line, reader, ours), _pump(line, theirs, writer, lambda: self.delay))
            finally:
                ours.transport.abort()
        finally:
            self._lines.discard(line)


async def _pump(
    line: Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: Callable[[], float] = lambda: 0.0
) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            await asyncio.sleep(delay())
            await line.passes.wait()
            sink.write(data)
            await sink.drain()
    await line.passes.wait()  # an end is news as well: a cut line does not tell it
    sink.close()


async def answer(upstream: int, request: bytes) -> bytes:
    """What the server there says to it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream)
    try:
        writer.write(request)
        return await message(reader, head=request.startswith(b"HEAD"))
    finally:
        writer.transport.abort()


async def message(reader: asyncio.StreamReader, *, head: bool = False) -> bytes:
    """One request or answer; `head`: an answer to HEAD, which has no body."""
    text = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", text)
    if length is None or head:
        return text
    return text + await reader.readexactly(int(length[1]))


S = TypeVar("S", bound=Server)


@contextlib.asynccontextmanager
async def listening(server: S) -> AsyncIterator[S]:
    await server.start("127.0.0.1")
    try:
        yield server
    finally:
        await server.close()
