"""Who is at the other end, as services see it.

The identity is read once, from the certificate, when the connection is made. `heard` moves with every byte that arrives,
ping answers included: silence is measured by it, not by reports.
"""

import asyncio
from typing import Any

from nstance.pki import names
from nstance.wire.flag import Flag


class Connection:
    __slots__ = ("_transport", "address", "closed", "heard", "identity", "refusal")

    def __init__(
        self, transport: asyncio.Transport, *, identity: names.Identity | None, refusal: str | None, now: float
    ) -> None:
        self._transport = transport
        self.address: str = host_of(transport.get_extra_info("peername"))
        self.identity = identity  # None where no client certificate is asked for, or it names nobody
        self.refusal = refusal  # why the certificate names nobody
        self.heard = now
        self.closed = Flag()

    def silent_for(self, now: float) -> float:
        """Seconds since the last byte from the peer; `now` is the clock's monotonic time."""
        return max(0.0, now - self.heard)

    def abort(self) -> None:
        """Ends the connection at once: open calls are cancelled and nothing more is sent."""
        self._transport.abort()

    def __repr__(self) -> str:
        return f"Connection({self.address}, {self.identity})"


def connection_of(stream: Any) -> Connection:
    """The connection that a service's stream belongs to."""
    connection: Connection = stream._stream.connection.peer
    return connection


def host_of(address: object) -> str:
    """The host in a socket address; IPv4 in IPv6 clothing is the IPv4 host."""
    if not isinstance(address, tuple) or not address:
        return ""
    return str(address[0]).removeprefix("::ffff:")
