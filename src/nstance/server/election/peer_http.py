"""The election port: who leads, for anybody; and links between the servers of a shard.

`GET /health/leadership/shard` needs no client certificate, the WebSocket `/peer` one of role `server` and this shard. A
link is a queue and a task that empties it, so that sending never waits. The trap: closing a WebSocket waits for the other
side's answer; a closed link has to end even if the other side does not answer.
"""

import asyncio
import contextlib
import errno
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import KW_ONLY, dataclass, field

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nstance.objects import lease as leases
from nstance.pki import keys, names
from nstance.pki import peer as certificates
from nstance.server.election import peers
from nstance.wire import http_listener, tls
from nstance.wire.peer import cut

log = logging.getLogger(__name__)

LEADERSHIP = "/health/leadership/shard"
PEER = "/peer"
MAX_MESSAGE = 4 * 1024
MAX_QUEUED = 64  # messages that a link has not taken yet
MAX_LINKS = 64
CONNECT_SECONDS = 1.0
SILENCE_SECONDS = 10.0  # heartbeats come ten times a second
GOODBYE_SECONDS = 0.5
_ALPN = "http/1.1"


def server_context(
    *, certificate_pem: str, key_pem: bytes, ca_pem: str, hosts: Collection[str] | None = None
) -> ssl.SSLContext:
    """For the election port: a client certificate is optional, and has to be valid."""
    context = tls.server_context(
        certificate_pem=certificate_pem, key_pem=key_pem, ca_pem=ca_pem, alpn=_ALPN, hosts=hosts
    )
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(*, certificate_pem: str, key_pem: bytes, ca_pem: str) -> ssl.SSLContext:
    return tls.client_context(ca_pem=ca_pem, certificate_pem=certificate_pem, key_pem=key_pem, alpn=_ALPN)


def key_fingerprint(certificate_der: bytes) -> str:
    """Of the key in a certificate, written as in the lease. Raises IdentityError."""
    try:
        key = x509.load_der_x509_certificate(certificate_der).public_key()
    except ValueError as problem:
        raise names.IdentityError(f"the certificate cannot be read: {problem}") from problem
    if not isinstance(key, Ed25519PublicKey):
        raise names.IdentityError("the certificate's key is not an Ed25519 key")
    return keys.fingerprint(keys.public_bytes(key))


def _certificate(transport: asyncio.BaseTransport | None) -> bytes | None:
    session = transport.get_extra_info("ssl_object") if transport is not None else None
    der: bytes | None = session.getpeercert(True) if session is not None else None
    return der


def _server_of(certificate_der: bytes, *, cluster: str, shard: str) -> tuple[names.Server, str]:
    """Which server of this shard holds the certificate, and its key's fingerprint. Raises IdentityError."""
    identity = certificates.identify(certificate_der)
    if not isinstance(identity, names.Server) or (identity.cluster, identity.shard) != (cluster, shard):
        raise names.IdentityError(f"expected a server of {cluster}/{shard}, found {names.uri(identity)}")
    return identity, key_fingerprint(certificate_der)


@dataclass(eq=False)
class _Link:
    socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse
    transport: asyncio.Transport
    _: KW_ONLY
    server: str
    fingerprint: str
    after: Callable[[], Awaitable[None]]  # ends the connection, when everything was written or dropped
    _closed: bool = False
    _receive_timeout: asyncio.Timeout | None = None
    _outgoing: deque[bytes] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.writing = asyncio.create_task(self._write())

    def send(self, message: peers.Message) -> None:
        if self._closed:
            return
        body = peers.encode(message)
        if len(body) > MAX_MESSAGE or len(self._outgoing) >= MAX_QUEUED:
            log.warning("peer link closed: a message is too long or the peer too slow", extra={"peer": self.server})
            self._outgoing.clear()
            self.close()
            return
        self._outgoing.append(body)
        self._wake.set()

    async def receive(self) -> peers.Message:
        if self._closed:
            raise peers.LinkClosedError("the link was closed here")
        try:
            async with asyncio.timeout(SILENCE_SECONDS) as self._receive_timeout:
                message = await self.socket.receive()
        except TimeoutError:
            reason = "the link was closed here" if self._closed else f"nothing was received for {SILENCE_SECONDS:g} s"
            raise peers.LinkClosedError(reason) from None
        if message.type is not aiohttp.WSMsgType.BINARY:
            detail = f": {message.type.name} {message.data!s:.200}" if message.data is not None else ""
            raise peers.LinkClosedError(f"the peer ended the link{detail}")
        try:
            return peers.decode(message.data)
        except (AttributeError, RecursionError) as problem:
            raise peers.BadMessageError(f"unknown message of a peer: {problem!r}") from problem

    def close(self) -> None:
        """What was queued is still sent, if the peer takes it soon."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        if self._receive_timeout is not None:
            with contextlib.suppress(RuntimeError):  # nobody waits in `receive`
                self._receive_timeout.reschedule(loop.time())
        self._wake.set()
        loop.call_later(GOODBYE_SECONDS, self.writing.cancel)

    async def _write(self) -> None:
        try:
            while self._outgoing or not self._closed:
                if self._outgoing:
                    await self.socket.send_bytes(self._outgoing.popleft())
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except (ConnectionError, aiohttp.ClientError):
            pass  # `receive` reports that the link is gone
        finally:
            self.transport.close()
            await self.after()


@dataclass(eq=False)
class PeerServer:
    """The listening side, on every server of the shard."""

    _: KW_ONLY
    accept: Callable[[peers.Link], Awaitable[None]]  # the elector's, as is `held`
    held: Callable[[], leases.Lease | None]
    context: (
        http_listener.ContextFactory
    )  # see `server_context`; called for each connection; None: nobody is admitted yet
    cluster: str
    shard: str
    limits: http_listener.Limits = http_listener.LIMITS
    _links: set[_Link] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.listener = http_listener.HttpListener(self._answer, context=self.context, limits=self.limits)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in (LEADERSHIP, PEER):
            return http_listener.not_found()
        methods = ("GET",) if request.path == PEER else ("GET", "HEAD")
        if request.method not in methods:
            return http_listener.not_allowed(*methods)
        if request.path == PEER:
            return await self._link(request)
        held = self.held()
        if held is None:
            return web.Response(status=404, text="this server does not lead")
        return web.Response(body=leases.encode(held), content_type="application/json")

    async def _link(self, request: web.BaseRequest) -> web.StreamResponse:
        certificate = _certificate(request.transport)
        if certificate is None:
            return web.Response(status=403, text="a client certificate of role server is needed")
        try:
            identity, fingerprint = _server_of(certificate, cluster=self.cluster, shard=self.shard)
        except names.IdentityError as problem:
            log.warning("peer rejected", extra={"peer": request.remote, "error": str(problem)})
            return web.Response(status=403, text="a client certificate of role server and of this shard is needed")
        if len(self._links) >= MAX_LINKS:
            return web.Response(status=503, text="too many links")
        socket = web.WebSocketResponse(
            compress=False, max_msg_size=MAX_MESSAGE, timeout=GOODBYE_SECONDS, autoclose=False
        )
        await socket.prepare(request)
        self.listener.keep_open(request)
        assert request.transport is not None
        transport = request.transport

        async def after() -> None:
            asyncio.get_running_loop().call_later(GOODBYE_SECONDS, cut, transport)

        link = _Link(socket, transport, server=identity.id, fingerprint=fingerprint, after=after)
        self._links.add(link)
        try:
            await self.accept(link)
        finally:
            self._links.discard(link)
            link.close()
            await asyncio.wait({link.writing})
        return socket


class HttpDialer:
    """The calling side."""

    def __init__(self, context: http_listener.ContextFactory, *, cluster: str, shard: str) -> None:
        """`context`: see `client_context`; called for each connection."""
        self._context = context
        self._cluster = cluster
        self._shard = shard

    async def dial(self, addresses: tuple[str, ...], fingerprint: str) -> peers.Link:
        problems, refused = [], bool(addresses)
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await self._connect(address, fingerprint)
            except (OSError, aiohttp.ClientError, ValueError) as problem:  # a timeout is an OSError
                refused = refused and getattr(problem, "errno", None) == errno.ECONNREFUSED
                problems.append(f"{address}: {str(problem) or type(problem).__name__}")
        reason = "no link: " + ("; ".join(problems) or "no address is known")
        raise peers.PeerRefusedError(reason) if refused else peers.LinkClosedError(reason)

    async def _connect(self, address: str, fingerprint: str) -> peers.Link:
        context = self._context()
        if context is None:
            raise peers.LinkClosedError("this server has no certificate yet")
        expected = _Expected(fingerprint, cluster=self._cluster, shard=self._shard)
        # The connector gets the check, the request gets the context: both apply, and before the request is sent.
        connector = aiohttp.TCPConnector(ssl=expected, limit=1, force_close=True, use_dns_cache=False)
        session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        try:
            socket = await session.ws_connect(
                f"wss://{address}{PEER}",
                ssl=context,
                max_msg_size=MAX_MESSAGE,
                autoclose=False,
                timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_SECONDS),
            )
        except BaseException as problem:
            await session.close()
            if isinstance(problem, aiohttp.ServerFingerprintMismatch):
                raise names.IdentityError(expected.problem) from problem
            raise
        server, transport = expected.peer()
        return _Link(socket, transport, server=server, fingerprint=fingerprint, after=session.close)


class _Expected(aiohttp.Fingerprint):
    """Checks the server that answered, between the handshake and the request."""

    def __init__(self, fingerprint: str, *, cluster: str, shard: str) -> None:
        super().__init__(bytes.fromhex(fingerprint))
        self._wanted = fingerprint
        self._cluster = cluster
        self._shard = shard
        self._checked: tuple[str, asyncio.Transport] | None = None
        self.problem = ""

    def peer(self) -> tuple[str, asyncio.Transport]:
        """The server's ID and the connection to it."""
        assert self._checked is not None
        return self._checked

    def check(self, transport: asyncio.Transport) -> None:
        try:
            identity, found = _server_of(_certificate(transport) or b"", cluster=self._cluster, shard=self._shard)
            if found != self._wanted:
                raise names.IdentityError(f"expected the key {self._wanted}, found {found}")
        except names.IdentityError as problem:
            self.problem = str(problem)
            # aiohttp closes the connection and then still looks at it: not aborted before that.
            asyncio.get_running_loop().call_later(GOODBYE_SECONDS, cut, transport)
            raise aiohttp.ServerFingerprintMismatch(self.fingerprint, b"", "", 0) from problem
        self._checked = (identity.id, transport)
