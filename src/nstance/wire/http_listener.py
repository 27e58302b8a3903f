"""An HTTP port for untrusted clients: health and metrics, the election port, the webhook.

Every connection has a deadline from its first moment; only one that a handler keeps open lives longer. When the limit is
reached, the longest waiting connection of the busiest address is closed, so that thousands of idle connections keep
nobody out. One request per connection, small headers, bodies of at most a mebibyte. The trap: aiohttp itself waits an
hour for a request, a minute for a TLS handshake, and logs malformed requests as errors with a traceback.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from nstance.wire import listener, server_header
from nstance.wire import peer as connections

log = logging.getLogger(__name__)

MAX_PER_ADDRESS = 64  # loopback is not limited
MAX_HEAD = 8 * 1024
CLOSE_SECONDS = 1.0

_silent_log = logging.getLogger(f"{__name__}.requests")
_silent_log.setLevel(logging.CRITICAL)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
ContextFactory = Callable[[], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    handshake_seconds: float = 5.0
    shutdown_seconds: float = 0.5  # for the peer's half of a TLS shutdown
    request_seconds: float = 10.0  # from the handshake to the last byte of the answer
    connections: int = 512


LIMITS = Limits()


class HttpListener:
    def __init__(self, handler: Handler, *, context: ContextFactory | None = None, limits: Limits = LIMITS) -> None:
        """`context` is called for each connection, so that a renewed certificate is used; it returns None while there is no
        certificate, and connections are refused. Without `context` the port is not encrypted."""
        self._handler = handler
        self._context = context
        self._limits = limits
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._per_address: Counter[str] = Counter()
        self._waiting: dict[web.RequestHandler, tuple[str, Callable[[], object]]] = {}  # host, and what closes it
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError if the address cannot be bound."""
        server_header.hide_versions()
        self._server = _Server(self._answer, self._limits.request_seconds, self._on_disconnect)
        self._sockets = await listener.bind(host, port)
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in self._sockets]

    def keep_open(self, request: web.BaseRequest) -> None:
        """The handler itself limits this connection from now on."""
        assert self._server is not None
        self._server.keep_open(request.protocol)
        self._waiting.pop(request.protocol, None)

    async def close(self) -> None:
        """Ends every connection at once."""
        for bound in self._sockets:
            bound.close()
        tasks = [*self._accepting, *self._handshakes]
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
                sock, address = await loop.sock_accept(bound)
            except OSError as problem:  # out of descriptors, or the peer is already gone: neither ends the port
                log.warning("failed to accept a connection", extra={"error": str(problem)})
                await asyncio.sleep(0.05)
                continue
            sock.setblocking(False)
            host = connections.host_of(address)
            if not self._make_room(host):
                sock.close()
                continue
            self._on_accept(sock, host)
            await asyncio.sleep(0)  # let closed connections end before more are accepted

    def _make_room(self, host: str) -> bool:
        if self._per_address[host] >= MAX_PER_ADDRESS and not listener.is_loopback(host):
            full_host = host
        elif self._per_address.total() >= self._limits.connections:
            full_host = self._per_address.most_common(1)[0][0]
        else:
            return True
        oldest = next((protocol for protocol, (where, _) in self._waiting.items() if where == full_host), None)
        if oldest is None and full_host != host:
            oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        _, end = self._waiting.pop(oldest)
        end()
        return True

    def _on_accept(self, sock: socket.socket, host: str) -> None:
        assert self._server is not None
        server, protocol = self._server, self._server.protocol(host)
        self._per_address[host] += 1
        task = asyncio.get_running_loop().create_task(self._handshake(sock, protocol, host))
        self._handshakes.add(task)
        self._waiting[protocol] = (host, task.cancel)

        def on_done(_: "asyncio.Task[None]") -> None:
            # Not in a `finally`: a task that is cancelled before its first line runs none.
            self._handshakes.discard(task)
            if not server.is_connected(protocol):
                sock.close()
                self._on_disconnect(protocol, host)

        task.add_done_callback(on_done)

    async def _handshake(self, sock: socket.socket, protocol: web.RequestHandler, host: str) -> None:
        try:
            tls: dict[str, Any] = {}
            if self._context is not None:
                context = self._context()
                if context is None:
                    return
                tls = {
                    "ssl": context,
                    "ssl_handshake_timeout": self._limits.handshake_seconds,
                    "ssl_shutdown_timeout": self._limits.shutdown_seconds,
                }
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, sock, **tls)
            if protocol in self._waiting:
                self._waiting[protocol] = (host, lambda: connections.cut(transport))
        except OSError as problem:
            log.debug("failed to establish a connection", extra={"peer": host, "error": str(problem)})

    def _on_disconnect(self, protocol: web.RequestHandler, host: str) -> None:
        self._waiting.pop(protocol, None)
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
                log.debug("peer disconnected before the answer", extra={"path": request.path, "error": str(problem)})
            else:
                log.exception("failed to answer a request", extra={"path": request.path})
            response = web.Response(status=500, text="internal error")
        response.force_close()
        return response


def not_found() -> web.Response:
    return web.Response(status=404, text="not found")


def not_allowed(*methods: str) -> web.Response:
    return web.Response(status=405, text="method not allowed", headers={"Allow": ", ".join(methods)})


class _Server(web.Server):
    """aiohttp's server with a deadline on each connection."""

    def __init__(
        self, handler: Handler, seconds: float, on_disconnect: Callable[[web.RequestHandler, str], None]
    ) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            logger=_silent_log,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            max_headers=64,
            auto_decompress=False,
            lingering_time=0,
        )
        self._seconds = seconds
        self._on_disconnect = on_disconnect
        self._hosts: dict[web.RequestHandler, str] = {}
        self._connected: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def protocol(self, host: str) -> web.RequestHandler:
        protocol = self()
        self._hosts[protocol] = host
        return protocol

    def is_connected(self, handler: web.RequestHandler) -> bool:
        """Whether the connection was established, so that its loss is reported. Forgets one that never was."""
        if handler in self._connected or handler not in self._hosts:
            return True
        del self._hosts[handler]
        return False

    def keep_open(self, handler: web.RequestHandler) -> None:
        if handler in self._connected:
            self._connected[handler][1].cancel()

    def abort(self) -> list[asyncio.Task[None]]:
        tasks = []
        for handler, (transport, _) in list(self._connected.items()):
            connections.cut(transport)
            if handler._task_handler is not None:
                tasks.append(handler._task_handler)
        return tasks

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._connected[handler] = (transport, self._loop.call_later(self._seconds, connections.cut, transport))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        protocol = self._connected.pop(handler, None)
        if protocol is not None:
            protocol[1].cancel()
            self._on_disconnect(handler, self._hosts.pop(handler))
