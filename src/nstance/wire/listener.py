"""A gRPC port that limits its peers, detects unresponsive ones, and really closes.

Before a connection costs anything it passes three gates: the connection limits, a first byte that looks like TLS, and
one of a few handshake slots, because a handshake blocks the event loop for about two milliseconds and thousands arrive
at once after a failover. The trap: a peer must not be able to keep a slot by doing nothing, so the slot is released
after a moment even if the handshake continues. `close` ends every connection at once: a server that no longer leads must
not answer on an old one.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable

from nstance.clock import Clock
from nstance.pki import names
from nstance.pki import peer as certificates
from nstance.wire import dispatch, parser, peer, tls, transport
from nstance.wire.limits import Limits as Limits

log = logging.getLogger("nstance.wire")

BACKLOG = 4096
ACCEPTS_AT_ONCE = 32
SLOT_SECONDS = 0.25
CLOSE_SECONDS = 2.0  # for cancelled calls to end
SHUTDOWN_SECONDS = 0.5  # for the peer's half of a TLS shutdown
TLS_HANDSHAKE = 0x16  # the first byte of every TLS connection


class Listener:
    def __init__(
        self,
        table: dispatch.Table,
        *,
        context: Callable[[], ssl.SSLContext],
        clock: Clock,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`context` is called for each connection, so a new certificate or CA needs no restart. `on_refused` gets the
        reason when a connection ends early (the text before a colon is one of a few values)."""
        self._context = context
        self._limits = table.limits
        self._clock = clock
        self._table = table
        self._on_refused = on_refused
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._protocols: set[_ServerProtocol] = set()
        self._per_address: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(table.limits.concurrent_handshakes)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def connections(self) -> list[peer.Connection]:
        return [protocol.peer for protocol in self._protocols]

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError if the address cannot be bound."""
        self._sockets = await bind(host, port)
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in self._sockets]

    async def close(self) -> None:
        """Nothing is answered any more, not even what was received before."""
        tasks = [*self._accepting, *self._handshakes]
        for protocol in list(self._protocols):
            tasks += protocol.calls.tasks.values()
            protocol.abort()
        for task in [*self._accepting, *self._handshakes]:
            task.cancel()
        self._close_sockets()
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            if unfinished:
                log.error("%d calls did not end when cancelled", len(unfinished))

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            if bound.fileno() >= 0:  # not closed before
                asyncio.get_running_loop().remove_reader(bound.fileno())
                bound.close()

    async def _accept(self, bound: socket.socket) -> None:
        # Nothing is awaited between accepting a socket and starting the task that owns it, so that close loses none.
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(bound.fileno(), readable.set)
        while True:
            await readable.wait()
            readable.clear()
            try:
                for _ in range(ACCEPTS_AT_ONCE):
                    self._on_accept(*bound.accept())
            except BlockingIOError:
                continue
            except OSError as error:  # out of descriptors, or the peer is already gone: neither ends the listener
                self._on_refused(f"accept: {error}")
                await self._clock.sleep(0.05)

    def _on_accept(self, sock: socket.socket, address: object) -> None:
        sock.setblocking(False)
        host = peer.host_of(address)
        if reason := self._limit_reached(host):
            sock.close()
            self._on_refused(reason)
            return
        self._per_address[host] += 1
        protocol = _ServerProtocol(self, host)
        task = asyncio.get_running_loop().create_task(self._handshake(sock, protocol))
        self._handshakes.add(task)

        def on_done(_: "asyncio.Task[None]") -> None:
            # Not in a `finally`: a task that is cancelled before its first line runs none.
            self._handshakes.discard(task)
            if not protocol.is_established:
                sock.close()
                self._release_address(host)

        task.add_done_callback(on_done)

    def _limit_reached(self, host: str) -> str | None:
        if self._per_address.total() >= self._limits.max_connections:
            return "too many connections"
        if self._per_address[host] >= self._limits.max_connections_per_address and not is_loopback(host):
            return "too many connections from one address"
        return None

    async def _handshake(self, sock: socket.socket, protocol: "_ServerProtocol") -> None:
        loop = asyncio.get_running_loop()
        limits = self._limits
        try:
            async with asyncio.timeout(limits.handshake_seconds):
                await _wait_tls(sock)
            async with asyncio.timeout(limits.queue_seconds):
                await self._slots.acquire()
            slot = contextlib.ExitStack()  # closing it again does nothing
            slot.callback(self._slots.release)
            timer = loop.call_later(SLOT_SECONDS, slot.close)
            try:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    sock,
                    ssl=self._context(),
                    ssl_handshake_timeout=limits.handshake_seconds,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                )
            finally:
                timer.cancel()
                slot.close()
        except TimeoutError:
            self._on_refused("handshake: too slow")
        except OSError as error:
            self._on_refused(f"handshake: {error}")
        except Exception:
            log.exception("failed to accept a connection")

    def _on_connect(self, protocol: "_ServerProtocol") -> None:
        self._protocols.add(protocol)

    def _on_disconnect(self, protocol: "_ServerProtocol") -> None:
        self._protocols.discard(protocol)
        self._release_address(protocol.host)
        if protocol.reason not in transport.ORDINARY:
            self._on_refused(protocol.reason)

    def _release_address(self, host: str) -> None:
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]


class _ServerProtocol(transport.Protocol):
    is_established = False  # after the handshake the event loop reports its loss

    def __init__(self, listener: Listener, host: str) -> None:
        self.calls = dispatch.Calls(listener._table)
        self.host = host
        self._listener = listener
        super().__init__(self.calls, _SERVER, limits=listener._limits, clock=listener._clock)

    def identify_peer(self, transport: asyncio.Transport) -> peer.Connection | None:
        self.is_established = True
        session = transport.get_extra_info("ssl_object")
        if session.selected_alpn_protocol() != tls.ALPN:
            self.reason = "handshake: the peer does not offer HTTP/2"
            return None
        identity, rejection = None, None
        certificate = session.getpeercert(True)
        if certificate is not None:
            try:
                identity = certificates.identify(certificate)
            except names.IdentityError as error:
                rejection = str(error)
        return peer.Connection(transport, identity=identity, rejection=rejection, now=self.clock.monotonic())

    def on_connect(self) -> None:
        self._listener._on_connect(self)

    def on_disconnect(self) -> None:
        self._listener._on_disconnect(self)


_SERVER = parser.configuration(client=False)


async def _wait_tls(sock: socket.socket) -> None:
    """Wait for the first byte and check that it can be TLS."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
    first = sock.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionAbortedError("the peer closed without sending anything")
    if first[0] != TLS_HANDSHAKE:
        raise ConnectionAbortedError("the peer does not speak TLS")


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host, all with one port. Raises OSError if one cannot be bound."""
    sockets: list[socket.socket] = []
    try:
        for family, address in await _addresses(host, port):
            where = (address, sockets[0].getsockname()[1] if sockets else port)
            dualstack = _is_dualstack(family, address)
            sockets.append(socket.create_server(where, family=family, backlog=BACKLOG, dualstack_ipv6=dualstack))
            sockets[-1].setblocking(False)
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


async def reserve(host: str, port: int) -> list[socket.socket]:
    """Bound sockets that keep the system from using a port for an outgoing connection until it is listened on. Raises
    OSError if the port is taken. Only Linux lets a second socket listen on a bound port."""
    sockets: list[socket.socket] = []
    if sys.platform != "linux":
        return sockets
    try:
        for family, address in await _addresses(host, port):
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not _is_dualstack(family, address))
            bound.bind((address, port))
    except OSError as problem:
        for bound in sockets:
            bound.close()
        if problem.errno == errno.EADDRNOTAVAIL:  # an address that only a leader has
            return []
        raise
    return sockets


def _is_dualstack(family: socket.AddressFamily, address: str) -> bool:
    return family == socket.AF_INET6 and address == "::" and socket.has_dualstack_ipv6()


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    if host in ("", "*"):
        return [(socket.AF_INET6, "::")] if socket.has_dualstack_ipv6() else [(socket.AF_INET, "0.0.0.0")]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return False
