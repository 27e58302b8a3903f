"""TCP proxies that can hold bytes back, as a stopped process or a network that drops packets.

While bytes are held back nothing is reset, and new connections are accepted.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TypeVar


class Server:
    """A listener that ends its connections when it is closed."""

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
        """Serve one connection until it ends."""
        raise NotImplementedError


class _Connection:
    """One connection through a wire."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.passes = asyncio.Event()
        self.passes.set()


class Wire(Server):
    """Forwards bytes."""

    def __init__(self, upstream: int, host: str = "127.0.0.1") -> None:
        super().__init__(upstream, host)
        self._connections: set[_Connection] = set()
        self._held = False
        self.delay = 0.0  # seconds, of each answer

    @property
    def connections(self) -> int:
        return len(self._connections)

    def hold(self) -> None:
        """Hold all bytes of all connections, also new ones."""
        self._held = True
        for connection in self._connections:
            connection.passes.clear()
        self.counts["connections held"] += len(self._connections)

    def hold_some(self, share: float, r: random.Random) -> int:
        """Hold some of the current connections; new ones pass. Returns how many."""
        chosen = r.sample(sorted(self._connections, key=id), round(share * len(self._connections)))
        for connection in chosen:
            connection.passes.clear()
        self.counts["connections held"] += len(chosen)
        return len(chosen)

    def pass_on(self) -> None:
        self._held = False
        for connection in self._connections:
            connection.passes.set()

    def reset(self) -> None:
        """Reset all current connections."""
        for connection in self._connections:
            connection.client.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        if self._held:
            connection.passes.clear()
            self.counts["connections held"] += 1
        self._connections.add(connection)
        try:
            await connection.passes.wait()
            theirs, ours = await asyncio.open_connection(self.host, self.upstream)
            try:
                await asyncio.gather(
                    _pump(connection, reader, ours), _pump(connection, theirs, writer, lambda: self.delay)
                )
            finally:
                ours.transport.abort()
        finally:
            self._connections.discard(connection)


async def _pump(
    connection: _Connection,
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    delay: Callable[[], float] = lambda: 0.0,
) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            await asyncio.sleep(delay())
            await connection.passes.wait()
            sink.write(data)
            await sink.drain()
    await connection.passes.wait()  # a held connection does not forward its end either
    sink.close()


async def answer(upstream: int, request: bytes) -> bytes:
    """The answer of the server at that port."""
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
