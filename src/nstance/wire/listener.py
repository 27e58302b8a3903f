"""A port that serves gRPC: it can refuse, limit, notice silence and really close.

Each accepted connection passes a gate before it costs anything: room for it, a first byte that looks like TLS, then one
of a few slots for its handshake, because a handshake holds up the event loop for about two milliseconds and thousands
arrive at once after a fail-over. The trap: a slot must not be something a peer can keep by doing nothing, so it is given
back after a moment even if the handshake goes on.
`close` ends every connection at once: a server that no longer leads must not answer on an old one.
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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nstance.clock import Clock
from nstance.pki import names
from nstance.pki import peer as certificates
from nstance.wire import dispatch, peer, tls, transport
from nstance.wire.limits import Limits as Limits

log = logging.getLogger("nstance.wire")

BACKLOG = 4096
ACCEPTS_AT_ONCE = 32
SLOT_SECONDS = 0.25
CLOSE_SECONDS = 2.0  # for cancelled calls to end
SHUTDOWN_SECONDS = 0.5  # for the peer's half of a TLS goodbye
TLS_HANDSHAKE = 0x16  # the first byte of every TLS connection


class Listener:
    def __init__(
        self,
        services: Iterable[Any],
        *,
        context: Callable[[], ssl.SSLContext],
        limits: Limits,
        clock: Clock,
        role: names.Role | None = None,
        cluster: str | None = None,
        other_services: Mapping[str, str] | None = None,
        on_refused: Callable[[str], None] = lambda reason: None,
        on_unwelcome: Callable[[peer.Connection, str], None] = lambda connection, reason: None,
    ) -> None:
        """`context` is asked for each connection, so a new certificate or CA needs no restart. `role` and `cluster` say
        whose certificates are welcome; without a role nobody is asked. `on_refused` hears why connections end before
        their time, what is before a colon being one of a few words; `on_unwelcome` of peers whose certificate is not for
        this port, once for each connection."""
        self._context = context
        self._limits = limits
        self._clock = clock
        self._table = dispatch.Table(
            methods=dispatch.table_of(services),
            limits=limits,
            other_services=other_services or {},
            role=role,
            cluster=cluster,
            unwelcome=on_unwelcome,
        )
        self._on_refused = on_refused
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._protocols: set[_Accepted] = set()
        self._per_address: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(limits.concurrent_handshakes)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def connections(self) -> list[peer.Connection]:
        return [protocol.peer for protocol in self._protocols]

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError if the address cannot be had."""
        self._sockets = await bind(host, port)
        self._accepting = [asyncio.create_task(self._accept(bound)) for bound in self._sockets]

    async def close(self) -> None:
        """Nothing is answered once this was called, not even what had been received before."""
        tasks = [*self._accepting, *self._entering]
        for protocol in list(self._protocols):
            tasks += protocol.calls.tasks.values()
            protocol.abort()
        for task in [*self._accepting, *self._entering]:
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
        # Nothing is awaited between a connection and the task that owns it: a listener that is closed loses no socket.
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(bound.fileno(), readable.set)
        while True:
            await readable.wait()
            readable.clear()
            try:
                for _ in range(ACCEPTS_AT_ONCE):
                    self._take(*bound.accept())
            except BlockingIOError:
                continue
            except OSError as error:  # out of descriptors, or the peer left already: neither ends the listener
                self._on_refused(f"accept: {error}")
                await self._clock.sleep(0.05)

    def _take(self, taken: socket.socket, address: object) -> None:
        taken.setblocking(False)
        host = peer.host_of(address)
        if reason := self._full(host):
            taken.close()
            self._on_refused(reason)
            return
        self._per_address[host] += 1
        made = _Accepted(self, host)
        task = asyncio.get_running_loop().create_task(self._enter(taken, made))
        self._entering.add(task)

        def entered(_: "asyncio.Task[None]") -> None:
            # Here, because a task that is cancelled before its first line runs no `finally`.
            self._entering.discard(task)
            if not made.shaken:
                taken.close()
                self._leave(host)

        task.add_done_callback(entered)

    def _full(self, host: str) -> str | None:
        if self._per_address.total() >= self._limits.max_connections:
            return "too many connections"
        if self._per_address[host] >= self._limits.max_connections_per_address and not is_loopback(host):
            return "too many connections from one address"
        return None

    async def _enter(self, taken: socket.socket, made: "_Accepted") -> None:
        loop = asyncio.get_running_loop()
        limits = self._limits
        try:
            async with asyncio.timeout(limits.handshake_seconds):
                await _first_byte(taken)
            async with asyncio.timeout(limits.queue_seconds):
                await self._slots.acquire()
            release = _Once(self._slots.release)
            lease = loop.call_later(SLOT_SECONDS, release)
            try:
                await loop.connect_accepted_socket(
                    lambda: made,
                    taken,
                    ssl=self._context(),
                    ssl_handshake_timeout=limits.handshake_seconds,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                )
            finally:
                lease.cancel()
                release()
        except TimeoutError:
            self._on_refused("handshake: too slow")
        except OSError as error:
            self._on_refused(f"handshake: {error}")
        except Exception:
            log.exception("a connection could not be taken")

    def _entered(self, protocol: "_Accepted") -> None:
        self._protocols.add(protocol)

    def _left(self, protocol: "_Accepted") -> None:
        self._protocols.discard(protocol)
        self._leave(protocol.host)
        if protocol.reason not in transport.ORDINARY:
            self._on_refused(protocol.reason)

    def _leave(self, host: str) -> None:
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]


class _Accepted(transport.Protocol):
    shaken = False  # hands were shaken: from now on the event loop says when it is lost

    def __init__(self, listener: Listener, host: str) -> None:
        self.calls = dispatch.Calls(listener._table)
        self.host = host
        self._listener = listener
        super().__init__(self.calls, _SERVER, limits=listener._limits, clock=listener._clock)

    def greet(self, transport: asyncio.Transport) -> peer.Connection | None:
        self.shaken = True
        session = transport.get_extra_info("ssl_object")
        if session.selected_alpn_protocol() != tls.ALPN:
            self.reason = "handshake: the peer does not offer HTTP/2"
            return None
        identity, refusal = None, None
        certificate = session.getpeercert(True)
        if certificate is not None:
            try:
                identity = certificates.identify(certificate)
            except names.IdentityError as error:
                refusal = str(error)
        return peer.Connection(transport, identity=identity, refusal=refusal, now=self.clock.monotonic())

    def begun(self) -> None:
        self._listener._entered(self)

    def ended(self) -> None:
        self._listener._left(self)


_SERVER = transport.configuration(client=False)


class _Once:
    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        if self._action is not None:
            self._action()
        self._action = None


async def _first_byte(taken: socket.socket) -> None:
    """Waits until the peer has said something, and it can be TLS."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(taken.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(taken.fileno())
    first = taken.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionAbortedError("the peer left before it said anything")
    if first[0] != TLS_HANDSHAKE:
        raise ConnectionAbortedError("the peer does not speak TLS")


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host, all with one port. Raises OSError if one cannot be had."""
    made: list[socket.socket] = []
    try:
        for family, address in await _addresses(host, port):
            where = (address, made[0].getsockname()[1] if made else port)
            dual = _is_dual(family, address)
            made.append(socket.create_server(where, family=family, backlog=BACKLOG, dualstack_ipv6=dual))
            made[-1].setblocking(False)
    except OSError:
        for bound in made:
            bound.close()
        raise
    return made


async def reserve(host: str, port: int) -> list[socket.socket]:
    """Sockets that keep a port from being given to anybody's outgoing connection until it is listened on; they are held
    all the while. Raises OSError if somebody has it. Only Linux lets a second socket listen on a port that is bound."""
    made: list[socket.socket] = []
    if sys.platform != "linux":
        return made
    try:
        for family, address in await _addresses(host, port):
            bound = socket.socket(family, socket.SOCK_STREAM)
            made.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not _is_dual(family, address))
            bound.bind((address, port))
    except OSError as problem:
        for bound in made:
            bound.close()
        if problem.errno == errno.EADDRNOTAVAIL:  # an address that only a leader has
            return []
        raise
    return made


def _is_dual(family: socket.AddressFamily, address: str) -> bool:
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
