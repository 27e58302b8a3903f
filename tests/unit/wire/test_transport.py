"""One connection without a network: a fake transport, a clock that is set by hand, and hostile bytes."""

import asyncio
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.clock import SystemClock
from nstance.wire import dispatch, parser, transport
from nstance.wire.limits import Limits
from nstance.wire.peer import Connection

HEADERS = [
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/a/b"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class HandClock(SystemClock):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Server(transport.Protocol):
    def __init__(self, clock: HandClock, limits: Limits) -> None:
        calls = dispatch.Calls(dispatch.Table(methods={}, limits=limits))
        super().__init__(calls, parser.configuration(client=False), limits=limits, clock=clock)
        self.calls = calls

    def identify_peer(self, transport: asyncio.Transport) -> Connection:
        return Connection(transport, identity=None, rejection=None, now=self.clock.monotonic())


def made(limits: Limits | None = None) -> tuple[Server, Wire, HandClock]:
    clock, wire = HandClock(), Wire()
    server = Server(clock, limits or Limits())
    server.connection_made(wire)
    return server, wire, clock


def pings(wire: Wire) -> int:
    """How many pings were sent that are not answers."""
    data, count = bytes(wire.written), 0
    while data:
        size = int.from_bytes(data[:3], "big") + 9
        count += data[3] == 6 and not data[4] & 1
        data = data[size:]
    return count


async def lost(server: Server) -> None:
    server.connection_lost(None)
    await asyncio.sleep(0)


async def called(server: Server) -> None:
    """A first call was made, so that only silence is left to complain about."""
    server.requests = 1


async def test_silence_leads_to_a_ping_and_then_to_the_end() -> None:
    server, wire, clock = made()
    await called(server)
    clock.now += 4.9
    server._check_deadlines()
    assert pings(wire) == 0
    clock.now += 0.1
    server._check_deadlines()
    assert pings(wire) == 1
    clock.now += 4.9
    server._check_deadlines()
    assert not wire.aborted
    clock.now += 0.1
    server._check_deadlines()
    assert wire.aborted
    assert server.reason == "the peer is unresponsive"
    await lost(server)


async def test_any_byte_ends_the_silence() -> None:
    server, wire, clock = made()
    await called(server)
    clock.now += 5.0
    server._check_deadlines()
    server.data_received(b"PRI")  # a part of something
    clock.now += 4.9
    server._check_deadlines()
    assert not wire.aborted
    assert pings(wire) == 1
    clock.now += 0.1
    server._check_deadlines()
    assert pings(wire) == 2
    await lost(server)


async def test_a_check_that_comes_late_asks_again_before_it_blames() -> None:
    """This process was frozen for a minute with a ping on its way: the answer may lie unread in the socket."""
    server, wire, clock = made()
    await called(server)
    clock.now += 5.0
    server._check_deadlines()
    clock.now += 60.0
    server._check_deadlines()
    assert not wire.aborted
    assert pings(wire) == 2
    clock.now += 5.0
    server._check_deadlines()
    assert wire.aborted
    await lost(server)


async def test_strikes_are_forgotten_after_a_while() -> None:
    server, wire, clock = made(Limits(pings=2, strike_seconds=10))
    for _ in range(5):
        clock.now += 6.0
        server.peer.last_seen = clock.now
        server.strike("pings", 2)
    assert not wire.closed
    for _ in range(2):
        server.strike("pings", 2)
    assert wire.closed
    await lost(server)


async def test_a_closed_stream_is_remembered_only_so_long() -> None:
    server, _, _ = made()
    assert server.connection._connection._closed_streams._size_limit == 1_000  # type: ignore[attr-defined]
    await lost(server)


async def test_nothing_happens_after_the_end() -> None:
    server, wire, _ = made()
    server.abort("enough")
    server.data_received(b"rubbish")
    server.pause_writing()
    server.resume_writing()
    server.end("again")
    assert server.reason == "enough"
    await lost(server)
    assert server.peer.closed.is_set()
    assert wire.aborted


def client_bytes(act: Callable[[h2.connection.H2Connection], None]) -> bytes:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, validate_outbound_headers=False))
    client.initiate_connection()
    act(client)
    return client.data_to_send()


frames = st.builds(
    lambda kind, flags, stream, body: (
        len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    ),
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 2**31 - 1]),
    st.binary(max_size=40),
)


def opened(client: h2.connection.H2Connection) -> None:
    client.send_headers(1, HEADERS)
    client.send_data(1, b"\0\0\0\0\2ab")


@given(st.lists(frames, max_size=12), st.booleans(), st.integers(1, 64))
@settings(max_examples=300, deadline=None)
def test_no_frames_do_more_than_end_the_connection(parts: list[bytes], begun: bool, cut: int) -> None:
    """Whatever arrives: no exception leaves `data_received`, and no call outlives the connection."""

    async def run() -> None:
        server, wire, _ = made()
        data = client_bytes(opened if begun else lambda client: None) + b"".join(parts)
        for start in range(0, len(data), cut * 8):
            server.data_received(data[start : start + cut * 8])
            await asyncio.sleep(0)
        await lost(server)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not server.calls.tasks
        assert wire.written

    asyncio.run(run())


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_more_than_end_the_connection(data: bytes) -> None:
    async def run() -> None:
        server, _, _ = made()
        server.data_received(data)
        await lost(server)

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 200_000])
async def test_what_is_sent_arrives_whole_whatever_its_size(size: int) -> None:
    server, wire, _ = made()
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    server.calls.accept = lambda *call: None  # type: ignore[method-assign]
    server.data_received(client.data_to_send())
    stream = server.processor.streams[1]
    body = bytes(range(256)) * (size // 256 + 1)

    async def answer() -> None:
        await stream.send_headers([(":status", "200")])
        await stream.send_data(body[:size], end_stream=True)

    sending = asyncio.create_task(answer())
    arrived, ended = bytearray(), False
    for _ in range(100):
        await asyncio.sleep(0)
        data, wire.written = bytes(wire.written), bytearray()
        for event in client.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                arrived += event.data
                client.acknowledge_received_data(event.flow_controlled_length, 1)
            ended |= isinstance(event, h2.events.StreamEnded)
        server.data_received(client.data_to_send())
        if ended:
            break
    await sending
    assert ended
    assert bytes(arrived) == body[:size]
    await lost(server)
