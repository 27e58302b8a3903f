"""Limits on what one peer may cost. Times in seconds, sizes in bytes."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_message: int = 4 * MIB
    max_metadata: int = 64 * KIB  # of one request, decoded
    max_streams: int = 32  # open calls on one connection
    max_connections: int = 20_000  # unfinished handshakes included
    max_connections_per_address: int = 256  # loopback is not limited: development runs there
    window: int = 65_535  # unread bytes a peer may send per stream and per connection

    concurrent_handshakes: int = 32  # each costs about 2 ms of the one event loop
    handshake_seconds: float = 5.0
    queue_seconds: float = 3.0  # an accepted connection waits at most this long for its handshake to start
    first_message_seconds: float = 10.0  # handshake to first call, and call to its one request message
    message_seconds: float = 10.0  # for a message that has begun, plus its size at the minimum rate
    min_rate: int = 16 * KIB  # bytes per second of a message that has begun
    stall_seconds: float = 30.0  # a peer that does not read
    idle_seconds: float | None = None  # without any open call; None: unlimited, while pings are answered

    ping_after: float = 5.0  # seconds without a byte from the peer
    pong_within: float = 5.0

    # Frames that cost more to receive than to send, counted per strike_seconds; one more closes the connection.
    strike_seconds: float = 10.0
    resets: int = 300
    pings: int = 100
    settings: int = 50
    empty_frames: int = 1_000  # empty data, priorities, unknown types


REGISTRATION = Limits(max_message=64 * KIB, max_metadata=8 * KIB, max_streams=4, idle_seconds=30.0)
AGENT = Limits(max_streams=16)
OPERATOR = Limits(max_streams=100)
