"""A port that speaks HTTP to strangers: health and metrics, the election port, the webhook (B24).

Every connection has a deadline from its first moment, whatever it does or does not say; only what a handler keeps lives
longer. When all places are taken, the connection that has waited longest makes room for the next one, at the address that
has the most: thousands that say nothing keep nobody else out. One request per connection, small heads, bodies of at most
a mebibyte. The trap: aiohttp itself waits an hour for a request that never comes, and a minute for a TLS handshake, and
logs a stranger's nonsense as an error with a traceback.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from nstance.wire import listener
from nstance.wire import peer as connections

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
SHUTDOWN_SECONDS = 0.5  # for the peer's half of a TLS goodbye
REQUEST_SECONDS = 10.0  # from the handshake to the last byte of the answer
MAX_CONNECTIONS = 512
MAX_PER_ADDRESS = 64  # loopback is free
MAX_HEAD = 8 * 1024
CLOSE_SECONDS = 1.0

_quiet = logging.getLogger(f"{__name__}.requests")
_quiet.setLevel(logging.CRITICAL)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
ContextFactory = Callable[[], ssl.SSLContext | None]


class HttpListener:
    def __init__(
        self, handler: Handler, *, context: ContextFactory | None = None, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        """`context` is asked at each connection, so that a renewed certificate is used; None from it: there is no
        certificate yet, and nobody is let in. Without `context` the port is not encrypted."""
        self._handler = handler
        self._context = context
        self._request_seconds = request_seconds
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._per_address: Counter[str] = Counter()
        self._waiting: dict[web.RequestHandler, tuple[str, Callable[[], object]]] = {}  # host, and how it is ended
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError if the address cannot be had."""
        self._server = _Server(self._answer, self._request_seconds, self._leave)
        self._sockets = await listener.bind(host, port)
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in self._sockets]

    def keep(self, request: web.BaseRequest) -> None:
        """From now on the handler itself sees to the end of this connection."""
        assert self._server is not None
        self._server.keep(request.protocol)
        self._waiting.pop(request.protocol, None)

    async def close(self) -> None:
        """Ends every connection at once."""
        for bound in self._sockets:
            bound.close()
        tasks = [*self._accepting, *self._entering]
        for task in tasks:
            task.cancel()
        if self._server is not None:
            tasks += self._server.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, address = await loop.sock_accept(bound)
            except OSError as problem:  # out of descriptors, or the peer left already: neither ends the port
                log.warning("could not accept a connection", extra={"error": str(problem)})
                await asyncio.sleep(0.05)
                continue
            taken.setblocking(False)
            host = connections.host_of(address)
            if not self._make_room(host):
                taken.close()
                continue
            self._take(taken, host)
            await asyncio.sleep(0)  # what had to make room ends before more is taken

    def _make_room(self, host: str) -> bool:
        if self._per_address[host] >= MAX_PER_ADDRESS and not listener.is_loopback(host):
            crowded = host
        elif self._per_address.total() >= MAX_CONNECTIONS:
            crowded = self._per_address.most_common(1)[0][0]
        else:
            return True
        oldest = next((made for made, (where, _) in self._waiting.items() if where == crowded), None)
        if oldest is None and crowded != host:
            oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        _, end = self._waiting.pop(oldest)
        end()
        return True

    def _take(self, taken: socket.socket, host: str) -> None:
        assert self._server is not None
        server, made = self._server, self._server.protocol(host)
        self._per_address[host] += 1
        task = asyncio.get_running_loop().create_task(self._enter(taken, made, host))
        self._entering.add(task)
        self._waiting[made] = (host, task.cancel)

        def entered(_: "asyncio.Task[None]") -> None:
            # Here, because a task that is cancelled before its first line runs no `finally`.
            self._entering.discard(task)
            if not server.knows(made):
                taken.close()
                self._leave(made, host)

        task.add_done_callback(entered)

    async def _enter(self, taken: socket.socket, made: web.RequestHandler, host: str) -> None:
        try:
            tls: dict[str, Any] = {}
            if self._context is not None:
                context = self._context()
                if context is None:
                    return
                tls = {
                    "ssl": context,
                    "ssl_handshake_timeout": HANDSHAKE_SECONDS,
                    "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
                }
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: made, taken, **tls)
            if made in self._waiting:
                self._waiting[made] = (host, lambda: connections.cut(transport))
        except OSError as problem:
            log.debug("a connection did not come about", extra={"peer": host, "error": str(problem)})

    def _leave(self, made: web.RequestHandler, host: str) -> None:
        self._waiting.pop(made, None)
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await self._handler(request)
        except web.HTTPException as refusal:
            response = web.Response(status=refusal.status, text=refusal.reason)
        except Exception as problem:
            if isinstance(problem, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                log.debug("a peer left before it was answered", extra={"path": request.path, "error": str(problem)})
            else:
                log.exception("a request could not be answered", extra={"path": request.path})
            response = web.Response(status=500, text="internal error")
        response.force_close()
        return response


def missing() -> web.Response:
    return web.Response(status=404, text="not found")


def not_allowed(*methods: str) -> web.Response:
    return web.Response(status=405, text="method not allowed", headers={"Allow": ", ".join(methods)})


class _Server(web.Server):
    """aiohttp's, with a deadline on each connection."""

    def __init__(self, handler: Handler, seconds: float, left: Callable[[web.RequestHandler, str], None]) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            logger=_quiet,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            max_headers=64,
            auto_decompress=False,
            lingering_time=0,
        )
        self._seconds = seconds
        self._left = left
        self._hosts: dict[web.RequestHandler, str] = {}
        self._made: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def protocol(self, host: str) -> web.RequestHandler:
        made = self()
        self._hosts[made] = host
        return made

    def knows(self, handler: web.RequestHandler) -> bool:
        """Whether the connection has been made, so that its end will be told. Forgets a stillborn one."""
        if handler in self._made or handler not in self._hosts:
            return True
        del self._hosts[handler]
        return False

    def keep(self, handler: web.RequestHandler) -> None:
        if handler in self._made:
            self._made[handler][1].cancel()

    def abort(self) -> list[asyncio.Task[None]]:
        tasks = []
        for handler, (transport, _) in list(self._made.items()):
            connections.cut(transport)
            if handler._task_handler is not None:
                tasks.append(handler._task_handler)
        return tasks

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._made[handler] = (transport, self._loop.call_later(self._seconds, connections.cut, transport))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        made = self._made.pop(handler, None)
        if made is not None:
            made[1].cancel()
            self._left(handler, self._hosts.pop(handler))
