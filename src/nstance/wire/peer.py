"""The peer of a connection, as services see it.

The identity is read once, from the certificate, when the connection is made. `last_seen` moves with every byte that
arrives, ping answers included.
"""

import asyncio
import contextlib
from typing import Any

from nstance.pki import names
from nstance.wire.flag import Flag


class Connection:
    __slots__ = ("_transport", "address", "closed", "identity", "last_seen", "rejection", "since")

    def __init__(
        self, transport: asyncio.Transport, *, identity: names.Identity | None, rejection: str | None, now: float
    ) -> None:
        self._transport = transport
        self.address: str = host_of(transport.get_extra_info("peername"))
        self.identity = identity  # None without a client certificate, or with an unusable one
        self.rejection = rejection  # why the certificate is unusable
        self.since = self.last_seen = now
        self.closed = Flag()

    def certificate(self) -> bytes | None:
        """The peer's certificate in DER, verified by TLS."""
        session = self._transport.get_extra_info("ssl_object")
        return session.getpeercert(True) if session is not None else None

    def abort(self) -> None:
        """Close at once: open calls are cancelled and nothing more is sent."""
        cut(self._transport)

    def __repr__(self) -> str:
        return f"Connection({self.address}, {self.identity})"


def connection_of(stream: Any) -> Connection:
    """The connection that a service's stream belongs to."""
    connection: Connection = stream._stream.connection.peer
    return connection


def cut(transport: asyncio.WriteTransport) -> None:
    """Abort a transport, whatever state it is in. In Python 3.11.2, asyncio's TLS transport raises AttributeError when it
    was closed after it lost its connection."""
    with contextlib.suppress(AttributeError):
        transport.abort()


def host_of(address: object) -> str:
    """The host in a socket address; an IPv4-mapped IPv6 address gives the IPv4 host."""
    if not isinstance(address, tuple) or not address:
        return ""
    return str(address[0]).removeprefix("::ffff:")
