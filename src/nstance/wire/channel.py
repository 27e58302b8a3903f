"""The client side: one connection to the first server that answers and is the expected one.

Generated stubs use it as their channel. It connects on the first call, and again on the next call after a loss; backing
off is up to the caller. The trap: with TLS 1.3 a client's handshake is done before the server has checked its
certificate, so the channel counts as connected only after the server's first frame.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from grpclib import client, utils
from grpclib.encoding.proto import ProtoCodec

from nstance.clock import Clock
from nstance.pki import names
from nstance.wire import parser, peer, tls, transport
from nstance.wire.limits import Limits
from nstance.wire.status import UnreachableError

SHUTDOWN_SECONDS = 0.5

_CLIENT = parser.configuration(client=True)


class WrongServerError(UnreachableError):
    """The peer is not the expected server. Nothing was sent to it."""


class UntrustedError(UnreachableError):
    """The peer's certificate is not signed by the CA, or is not valid now. Nothing was sent to it."""


def _identify(der: bytes) -> names.Identity:
    from nstance.pki import peer as certificates  # late: it imports a cryptography library

    return certificates.identify(der)


@dataclass(frozen=True, slots=True)
class ExpectedServer:
    """Which cluster and shard a server's certificate must name; None accepts any."""

    cluster: str | None
    shard: str | None
    identify: Callable[[bytes], names.Identity] = _identify  # for programs that cannot afford `pki.peer`

    def check(self, certificate: bytes) -> names.Server:
        """Raises IdentityError unless the certificate is that server's."""
        identity = self.identify(certificate)
        if not isinstance(identity, names.Server):
            raise names.IdentityError(f"expected a certificate with role server, found {names.role(identity).value}")
        if self.cluster is not None and identity.cluster != self.cluster:
            raise names.IdentityError(f"expected cluster {self.cluster}, found {identity.cluster}")
        if self.shard is not None and identity.shard != self.shard:
            raise names.IdentityError(f"expected shard {self.shard}, found {identity.shard}")
        return identity


class Channel(client.Channel):
    _protocol: "_ClientProtocol | None" = None

    def __init__(
        self,
        addresses: Sequence[str] | str,
        *,
        context: ssl.SSLContext,
        expect: ExpectedServer,
        clock: Clock,
        limits: Limits | None = None,
        connect_seconds: float = 3.0,
    ) -> None:
        """`addresses` are host:port, several as a list or separated by commas; they are tried in turn, starting with the
        last one that worked."""
        self._addresses = parse_addresses(addresses)
        # A given codec means no codec for details of errors, which nobody reads.
        super().__init__(*self._addresses[0], ssl=context, codec=ProtoCodec())
        self._context = context
        self._expect = expect
        self._clock = clock
        self._limits = limits or Limits()
        self._connect_seconds = connect_seconds
        self._last_good = 0
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._protocol is not None and not self._protocol.is_closed

    @property
    def last_seen(self) -> float | None:
        """The clock's monotonic time of the server's last byte; None before the first connection."""
        return self._protocol.peer.last_seen if self._protocol is not None else None

    @property
    def server(self) -> names.Server | None:
        identity = self._protocol.peer.identity if self._protocol is not None else None
        return identity if isinstance(identity, names.Server) else None

    def request(self, *args: Any, **kwargs: Any) -> "client.Stream[Any, Any]":
        stream = super().request(*args, **kwargs)
        stream.__class__ = _Stream
        return stream

    def close(self) -> None:
        """Close at once; open calls fail and no new ones are possible."""
        self._closed = True
        if self._protocol is not None:
            self._protocol.abort()
            self._protocol = None

    def __del__(self) -> None:
        if self.connected:  # one that was lost needs no warning about a missing close
            super().__del__()

    async def _create_connection(self) -> "_ClientProtocol":
        failures = []
        for turn in range(len(self._addresses)):
            index = (self._last_good + turn) % len(self._addresses)
            host, port = self._addresses[index]
            if self._closed:
                raise UnreachableError("the channel is closed")
            try:
                protocol = await self._connect(host, port)
            except OSError as error:
                kind = UntrustedError if isinstance(error, ssl.SSLCertVerificationError) else UnreachableError
                failures.append(
                    error if isinstance(error, UnreachableError) else kind(f"{host}:{port}: {_explain(error)}")
                )
                continue
            if self._closed:
                protocol.abort()
                raise UnreachableError("the channel is closed")
            self._last_good = index
            return protocol
        if len(failures) == 1:
            raise failures[0]
        raise UnreachableError("; ".join(str(failure) for failure in failures))

    async def _connect(self, host: str, port: int) -> "_ClientProtocol":
        async with asyncio.timeout(self._connect_seconds):
            sock = await _open_socket(host, port)
        protocol = _ClientProtocol(self, f"{host}:{port}")
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: protocol,
                sock=sock,
                ssl=self._context,
                server_hostname="",
                ssl_handshake_timeout=self._limits.handshake_seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
            async with asyncio.timeout(self._limits.handshake_seconds):
                await protocol.first_frame.wait()
        except BaseException:
            protocol.abort()
            raise
        finally:
            if not hasattr(protocol, "transport"):
                sock.close()
        if protocol.is_closed:
            raise protocol.rejection or UnreachableError(
                f"{host}:{port}: {protocol.reason}; does it accept our certificate?"
            )
        return protocol


class _ClientProtocol(transport.Protocol):
    def __init__(self, channel: Channel, where: str) -> None:
        super().__init__(client.Handler(), _CLIENT, limits=channel._limits, clock=channel._clock)
        self._expect, self._where = channel._expect, where
        self.rejection: WrongServerError | None = None

    def identify_peer(self, transport: asyncio.Transport) -> peer.Connection | None:
        tls_object = transport.get_extra_info("ssl_object")
        try:
            if tls_object.selected_alpn_protocol() != tls.ALPN:
                raise names.IdentityError("expected HTTP/2")
            identity = self._expect.check(tls_object.getpeercert(True) or b"")
        except names.IdentityError as error:
            self.rejection = WrongServerError(f"{self._where} is not the server that was expected: {error}")
            self.first_frame.set()
            return None
        return peer.Connection(transport, identity=identity, rejection=None, now=self.clock.monotonic())


class _Interruption(utils.DeadlineWrapper):
    """Interrupts a waiting task when the connection or its deadline is over.

    grpclib cancels the task and turns the cancellation into an error, but leaves the task marked as cancelled, which breaks
    later timeouts and task groups in it, and loses a real cancellation that comes at the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[asyncio.Task[Any], int] = {}
        self._woken: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> None:
        super().__enter__()
        task = asyncio.current_task()
        assert task is not None
        self._before[task] = task.cancelling()

    def cancel(self, error: Exception) -> None:
        if self._error is None:
            self._woken.update(self._tasks)
            super().cancel(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.discard(task)
        before = self._before.pop(task)
        if task in self._woken:
            self._woken.discard(task)
            task.uncancel()
        cancelled_by_others = kind is asyncio.CancelledError and task.cancelling() > before
        if self._error is not None and not cancelled_by_others:
            raise self._error


class _Stream(client.Stream[Any, Any]):
    async def __aenter__(self) -> "_Stream":
        self._wrapper = _Interruption()
        if self._deadline is not None:
            self._wrapper_ctx = self._wrapper.start(self._deadline)
            self._wrapper_ctx.__enter__()
        return self


def parse_addresses(addresses: Sequence[str] | str) -> list[tuple[str, int]]:
    """Raises ValueError for anything but host:port, [v6]:port, and commas between them."""
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = []
    for text in parts:
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"expected host:port or [IPv6]:port, found {text.strip()!r}")
        found.append((host, int(port)))
    if not found:
        raise ValueError("expected at least one address, found none")
    return found


async def _open_socket(host: str, port: int) -> socket.socket:
    """A connection to the first of the host's addresses that accepts one."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, proto, _, address in await _resolve(host, port):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _resolve(host: str, port: int) -> list[Any]:
    """An address needs no name server, so no thread waits for one."""
    try:
        return socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _explain(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not signed by the cluster's CA: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {(error.strerror or str(error)).lower()}"
    if not isinstance(error, ssl.SSLError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()  # shorter than the library's text
    return str(error) or type(error).__name__
