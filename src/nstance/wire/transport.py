"""One HTTP/2 connection, client or server: bounded, monitored, and closed at once when it must be.

It builds on grpclib's protocol classes and adds what they lack: keepalive that detects an unresponsive peer in time,
limits on messages, streams and frames that cost more to receive than to send, and a close that really closes. All
private parts of grpclib that are used are named in tests/contracts/test_grpclib_private.py. The trap: a process that was
itself frozen finds every peer unresponsive when it wakes, so a check that comes late pings again first.
"""

import asyncio
import contextlib
import logging
import socket
from typing import Any, cast

from grpclib import protocol
from grpclib.config import Configuration
from grpclib.exceptions import StreamTerminatedError
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes

from nstance.clock import Clock
from nstance.wire.flag import Flag
from nstance.wire.limits import Limits
from nstance.wire.parser import Parser
from nstance.wire.peer import Connection as Peer
from nstance.wire.peer import cut
from nstance.wire.stream import Stream

log = logging.getLogger("nstance.wire")

WINDOW = 65_535  # the default of HTTP/2
SLICE = 16 << 10  # bytes parsed at once, so that a flood is detected before all of it is parsed
GOODBYE_SECONDS = 0.5  # for the last frame to be sent before the connection is aborted
PING = b"nstance!"

LOST = "the connection was lost"
PEER_CLOSED = "the peer closed the connection"
CLOSED_HERE = "this side closed the connection"
IDLE = "idle"
ORDINARY = frozenset({LOST, PEER_CLOSED, CLOSED_HERE, IDLE})  # ends that are no fault

_GRPCLIB = Configuration().__for_client__()  # without its keepalive, which `_check_deadlines` replaces


class Connection(protocol.Connection):
    """grpclib's view of the connection, with its peer."""

    peer: Peer
    limits: Limits
    is_closed = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.write_ready, self.stream_close_waiter = Flag(), Flag()
        self.write_ready.set()

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> Stream:
        return Stream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)

    async def writable(self) -> None:
        if not self.write_ready.is_set():
            await self.write_ready.wait()
        if self.is_closed:
            raise StreamTerminatedError("connection closed")

    def ack(self, stream_id: int, size: int) -> None:
        if not self.is_closed:
            super().ack(stream_id, size)

    def close(self) -> None:
        self.is_closed = True
        self.write_ready.set()
        self.stream_close_waiter.set()
        self._transport.close()

    def is_closing(self) -> bool:
        return self.is_closed or self._transport.is_closing()


class Processor(protocol.EventsProcessor):
    """Turns parsed frames into calls, and counts frames that cost more to receive than to send."""

    def __init__(self, handler: protocol.AbstractHandler, connection: Connection, owner: "Protocol") -> None:
        super().__init__(handler, connection)
        self._owner = owner

    def process(self, event: h2_events.Event) -> None:
        if event.__class__ in self.processors:
            super().process(event)
        else:
            self._owner.strike("unknown frames", self._owner.limits.empty_frames)

    def process_request_received(self, event: h2_events.RequestReceived) -> None:
        assert event.stream_id is not None
        if len(self.streams) >= self._owner.limits.max_streams:  # the stream is closed, but its call still ends
            with contextlib.suppress(StreamClosedError):  # the peer may have reset it already
                self.connection._connection.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            self._owner.strike("resets", self._owner.limits.resets)
            return
        self._owner.requests += 1
        super().process_request_received(event)

    def process_data_received(self, event: h2_events.DataReceived) -> None:
        assert event.stream_id is not None
        assert event.flow_controlled_length is not None
        stream = self.streams.get(event.stream_id)
        if stream is None:
            self.connection.ack(event.stream_id, event.flow_controlled_length)
        elif event.data:
            stream.buffer.add(event.data, event.flow_controlled_length)
        else:
            self.connection.ack(event.stream_id, event.flow_controlled_length)
            if event.stream_ended is None:
                self._owner.strike("empty frames", self._owner.limits.empty_frames)

    def process_stream_reset(self, event: h2_events.StreamReset) -> None:
        super().process_stream_reset(event)
        self._owner.strike("resets", self._owner.limits.resets)

    def process_ping_received(self, event: h2_events.PingReceived) -> None:
        self._owner.strike("pings", self._owner.limits.pings)

    def process_remote_settings_changed(self, event: h2_events.RemoteSettingsChanged) -> None:
        super().process_remote_settings_changed(event)
        self._owner.first_frame.set()
        self._owner.strike("settings", self._owner.limits.settings)

    def process_priority_updated(self, event: h2_events.PriorityUpdated) -> None:
        self._owner.strike("empty frames", self._owner.limits.empty_frames)

    def process_connection_terminated(self, event: h2_events.ConnectionTerminated) -> None:
        self._owner.end(PEER_CLOSED)


class Protocol(protocol.H2Protocol):
    connection: Connection
    processor: Processor
    peer: Peer
    transport: asyncio.Transport

    def __init__(
        self, handler: protocol.AbstractHandler, config: H2Configuration, *, limits: Limits, clock: Clock
    ) -> None:
        super().__init__(handler, _GRPCLIB, config)
        self.limits = limits
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.requests = 0
        self.first_frame = Flag()  # set when the peer has spoken HTTP/2, and so accepted the certificate
        self.is_closed = True  # also before it is made
        self.reason = LOST
        self._strikes: dict[str, int] = {}
        self._strikes_since = 0.0
        self._paused_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Hooks for client and server.

    def identify_peer(self, transport: asyncio.Transport) -> Peer | None:
        """The peer; None to reject it."""
        raise NotImplementedError

    def on_connect(self) -> None:
        """The connection is ready for calls."""

    def on_disconnect(self) -> None:
        """The connection is gone."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None and tcp_socket.family in (socket.AF_INET, socket.AF_INET6):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # frames are small and latency matters
        peer = self.identify_peer(self.transport)
        if peer is None:
            cut(self.transport)
            return
        self.is_closed = False
        self.peer = peer
        parser = Parser(self.h2_config, self.limits)
        parser.initiate_connection()
        if self.limits.window > WINDOW:
            self._enlarge_window(parser, self.limits.window)
        self.connection = Connection(parser, self.transport, config=_GRPCLIB)
        self.connection.peer = peer
        self.connection.limits = self.limits
        self.processor = Processor(self.handler, self.connection, self)
        self.connection.flush()
        self._connected_at = self._busy_at = self._pinged_at = peer.last_seen
        self._arm(peer.last_seen)
        self.on_connect()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.peer.last_seen = self.clock.monotonic()
        for start in range(0, len(data), SLICE):
            try:
                for event in self.connection.feed(data[start : start + SLICE]):
                    self.processor.process(event)
                    if self.is_closed:
                        return
            except (ProtocolError, UnicodeError) as error:
                self.end(f"invalid HTTP/2: {error}")
                return
        self.connection.flush()

    def pause_writing(self) -> None:
        if not self.is_closed:
            self._paused_since = self.clock.monotonic()
            self.connection.pause_writing()
            self._arm(self._paused_since)

    def resume_writing(self) -> None:
        if not self.is_closed:
            self._paused_since = None
            self.connection.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.is_closed:
            self._finish(LOST)
        if hasattr(self, "peer"):
            self.peer.closed.set()
        self.first_frame.set()
        self.on_disconnect()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Free a closed connection at once. The garbage collector would be late, because the server runs it over long-lived
        objects as rarely as possible (`server.gc_tuner`)."""
        if hasattr(self, "processor"):
            del self.processor._owner
            cast(Parser, self.connection._connection).close()

    # Ending.

    def abort(self, reason: str = CLOSED_HERE) -> None:
        """Close at once: buffered data is not sent."""
        if hasattr(self, "transport"):
            cut(self.transport)
        if not self.is_closed:
            self._finish(reason)

    def end(self, reason: str, code: ErrorCodes | None = None) -> None:
        """Send a last frame, then close."""
        if self.is_closed:
            return
        if code is not None:
            self.connection._connection.close_connection(code, additional_data=reason.encode())
        self.connection.flush()
        self._finish(reason)
        self.loop.call_later(GOODBYE_SECONDS, cut, self.transport)

    def _finish(self, reason: str) -> None:
        self.is_closed = True
        self.reason = reason
        if self._timer is not None:
            self._timer.cancel()
        self.processor.close(reason)

    def strike(self, kind: str, limit: int) -> None:
        now = self.peer.last_seen
        if now - self._strikes_since > self.limits.strike_seconds:
            self._strikes.clear()
            self._strikes_since = now
        count = self._strikes[kind] = self._strikes.get(kind, 0) + 1
        if count > limit:
            self.end(f"too many {kind}", ErrorCodes.ENHANCE_YOUR_CALM)

    # One timer per connection, set to the next moment at which any of its deadlines could be due.

    def _check_deadlines(self) -> None:
        now = self.clock.monotonic()
        limits = self.limits
        if self.processor.streams:
            self._busy_at = now
        if self._paused_since is not None and now - self._paused_since >= limits.stall_seconds:
            return self.abort("the peer reads nothing")
        if (
            not self.requests
            and not self.h2_config.client_side
            and now - self._connected_at >= limits.first_message_seconds
        ):
            return self.end("no call in time after the handshake", ErrorCodes.ENHANCE_YOUR_CALM)
        if limits.idle_seconds is not None and now - self._busy_at >= limits.idle_seconds:
            return self.end(IDLE, ErrorCodes.NO_ERROR)
        is_ping_pending = self._pinged_at > self.peer.last_seen
        if (
            is_ping_pending
            and now - self._pinged_at >= limits.pong_within
            and now - self._next_check < limits.pong_within / 2
        ):
            return self.abort("the peer is unresponsive")
        if now - max(self.peer.last_seen, self._pinged_at) >= (
            limits.pong_within if is_ping_pending else limits.ping_after
        ):
            self._pinged_at = now
            self.connection._connection.ping(PING)
            self.connection.flush()
        return self._arm(now)

    def _arm(self, now: float) -> None:
        limits = self.limits
        due = [
            self._pinged_at + limits.pong_within
            if self._pinged_at > self.peer.last_seen
            else self.peer.last_seen + limits.ping_after
        ]
        if self._paused_since is not None:
            due.append(self._paused_since + limits.stall_seconds)
        if not self.requests and not self.h2_config.client_side:
            due.append(self._connected_at + limits.first_message_seconds)
        if limits.idle_seconds is not None:
            due.append(self._busy_at + limits.idle_seconds)
        self._next_check = max(min(due), now + 0.001)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._next_check - now, self._check_deadlines)

    @staticmethod
    def _enlarge_window(parser: Parser, window: int) -> None:
        parser.increment_flow_control_window(window - WINDOW)
        parser.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
