"""One HTTP/2 connection, on either side: bounded, watched, and ended at once when it must be.

This builds on grpclib's protocol classes and replaces what they lack: keepalive that notices a silent peer in time,
limits on messages, streams and frames that cost us more than the peer, and an end that really ends. Everything private
of grpclib that it touches is named in tests/contracts/test_grpclib_private.py.
The trap: a process that was frozen itself finds every peer silent when it wakes. A check that comes late therefore asks
again before it blames.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from grpclib import protocol
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.metadata import decode_grpc_message
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError, TooManyStreamsError
from h2.settings import SettingCodes, Settings

from nstance.clock import Clock
from nstance.wire import status
from nstance.wire.flag import Flag
from nstance.wire.inbox import Inbox
from nstance.wire.limits import Limits
from nstance.wire.peer import Connection as Peer
from nstance.wire.peer import cut

log = logging.getLogger("nstance.wire")

WINDOW = 65_535  # of every HTTP/2 connection until told otherwise
SLICE = 16 << 10  # bytes handed to the parser at once, so that a flood is noticed before it is all parsed
FRAME = 16 << 10  # sent at once, so that one message does not fill the send buffer whatever the peer allows
GOODBYE_SECONDS = 0.5  # for the last frame to leave before the connection is cut
PING = b"nstance!"

LOST = "the connection was lost"
LEFT = "the peer closed the connection"
STOPPED = "this side closed the connection"
IDLE = "idle"
ORDINARY = frozenset({LOST, LEFT, STOPPED, IDLE})  # ways to end that are nobody's fault

_GRPCLIB = Configuration().__for_client__()  # its keepalive is off: ours is below


def configuration(*, client: bool) -> H2Configuration:
    return H2Configuration(
        client_side=client,
        header_encoding="ascii",
        validate_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_inbound_headers=False,
        normalize_outbound_headers=False,
    )


class Parser(H2Connection):
    MAX_CLOSED_STREAMS = 1_000  # remembered per connection; 65,536 would be megabytes on a long-lived one

    def __init__(self, config: H2Configuration, limits: Limits) -> None:
        super().__init__(config)
        self.local_settings = Settings(
            client=bool(config.client_side),
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_metadata,
            },
        )
        self.decoder.max_header_list_size = limits.max_metadata
        for settings in (self.local_settings, self.remote_settings):
            small: Any = _Small({code: _Values(values) for code, values in settings._settings.items()})
            settings._settings = small

    def close(self) -> None:
        """It parses no more; its table of its own methods is a cycle."""
        self._frame_dispatch_table = {}


class _Values(list[int]):
    """A setting's values, oldest first, as h2 keeps them; a deque for each would be 8 KB per connection."""

    __slots__ = ()

    def popleft(self) -> int:
        return self.pop(0)


class _Small(dict[Any, _Values]):
    """h2 would make such a deque itself for a setting that the peer is the first to name."""

    def __missing__(self, code: Any) -> _Values:
        made = self[code] = _Values([None])  # type: ignore[list-item]
        return made


class Stream(protocol.Stream):
    connection: "Connection"
    buffer: Inbox  # type: ignore[assignment]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.window_updated, self.headers_received, self.trailers_received = Flag(), Flag(), Flag()

    def init_stream(self, stream_id: int, connection: protocol.Connection) -> None:
        self.id = stream_id
        self.buffer = Inbox(partial(connection.ack, stream_id))

    async def recv_data(self, size: int) -> bytes:
        limit = self.connection.limits.max_message
        if size > limit:
            raise status.exhausted(f"expected a message of at most {limit} bytes, found one of {size}")
        try:
            return await self.buffer.read(size)
        except GRPCError as error:  # the stream ended in the middle of a message: the trailers may say why
            trailers = dict(self.trailers or ())
            code = trailers.get("grpc-status", "0")
            if not code.isdecimal() or int(code) not in range(1, len(Status)):
                raise
            message = decode_grpc_message(trailers.get("grpc-message", ""))
            raise status.refusal(Status(int(code)), message) from error

    async def send_request(self, headers: Any, end_stream: bool = False, *, _processor: Any) -> Callable[[], None]:
        """Opens the stream; waits for a free one while the peer allows no more, but not longer than the connection."""
        while True:
            await self.connection.writable()
            stream_id = self._h2_connection.get_next_available_stream_id()
            try:
                self._h2_connection.send_headers(stream_id, headers, end_stream=end_stream)
                break
            except TooManyStreamsError:
                self.connection.stream_close_waiter.clear()
                await self.connection.stream_close_waiter.wait()
        self.init_stream(stream_id, self.connection)
        release: Callable[[], None] = _processor.register(self)
        self.connection.flush()
        return release

    async def send_headers(self, headers: Any, end_stream: bool = False) -> None:
        await self.connection.writable()
        await super().send_headers(headers, end_stream)

    async def send_data(self, data: bytes, end_stream: bool = False) -> None:
        assert self.id is not None
        left = memoryview(data)
        while True:
            await self.connection.writable()
            window = self._h2_connection.local_flow_control_window(self.id)
            if window <= 0 and left:
                await self._window()
                continue
            part = left[: min(window, FRAME, self._h2_connection.max_outbound_frame_size)]
            left = left[len(part) :]
            self._h2_connection.send_data(self.id, bytes(part), end_stream=end_stream and not left)
            self.connection.flush()
            if not left:
                return

    async def _window(self) -> None:
        """Until the reader at the other end takes what it has. One that never does is cut off."""
        seconds = self.connection.limits.stall_seconds
        self.window_updated.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.window_updated.wait()
        except TimeoutError:
            raise status.exhausted(f"the reader took nothing for {seconds:g} s") from None


class Connection(protocol.Connection):
    """grpclib's view of the connection, with who is at the other end."""

    peer: Peer
    limits: Limits
    over = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.write_ready, self.stream_close_waiter = Flag(), Flag()
        self.write_ready.set()

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> Stream:
        return Stream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)

    async def writable(self) -> None:
        if not self.write_ready.is_set():
            await self.write_ready.wait()
        if self.over:
            raise StreamTerminatedError("connection closed")

    def ack(self, stream_id: int, size: int) -> None:
        if not self.over:
            super().ack(stream_id, size)

    def close(self) -> None:
        self.over = True
        self.write_ready.set()
        self.stream_close_waiter.set()
        self._transport.close()

    def is_closing(self) -> bool:
        return self.over or self._transport.is_closing()


class Processor(protocol.EventsProcessor):
    """Turns parsed frames into calls, and counts those that cost us more than the peer."""

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
        if len(self.streams) >= self._owner.limits.max_streams:  # calls that still end, though their streams did
            with contextlib.suppress(StreamClosedError):  # the peer may have reset it in the same breath
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
        self._owner.settled.set()
        self._owner.strike("settings", self._owner.limits.settings)

    def process_priority_updated(self, event: h2_events.PriorityUpdated) -> None:
        self._owner.strike("empty frames", self._owner.limits.empty_frames)

    def process_connection_terminated(self, event: h2_events.ConnectionTerminated) -> None:
        self._owner.end(LEFT)


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
        self.settled = Flag()  # the peer's first frame has arrived: it does speak HTTP/2 and took our certificate
        self.over = True  # until it is made, and again when it ends
        self.reason = LOST
        self._strikes: dict[str, int] = {}
        self._strikes_since = 0.0
        self._paused_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Hooks for the two sides.

    def greet(self, transport: asyncio.Transport) -> Peer | None:
        """Who the peer is; None to have nothing to do with it."""
        raise NotImplementedError

    def begun(self) -> None:
        """The connection is ready for calls."""

    def ended(self) -> None:
        """The connection is gone."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small frames, each waited for
        found = self.greet(self.transport)
        if found is None:
            cut(self.transport)
            return
        self.over = False
        self.peer = found
        parser = Parser(self.h2_config, self.limits)
        parser.initiate_connection()
        if self.limits.window > WINDOW:
            self._widen(parser, self.limits.window)
        self.connection = Connection(parser, self.transport, config=_GRPCLIB)
        self.connection.peer = found
        self.connection.limits = self.limits
        self.processor = Processor(self.handler, self.connection, self)
        self.connection.flush()
        self._made = self._busy = self._pinged = found.last_seen
        self._arm(found.last_seen)
        self.begun()

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self.peer.last_seen = self.clock.monotonic()
        for start in range(0, len(data), SLICE):
            try:
                for event in self.connection.feed(data[start : start + SLICE]):
                    self.processor.process(event)
                    if self.over:
                        return
            except (ProtocolError, UnicodeError) as error:
                self.end(f"not HTTP/2 as agreed: {error}")
                return
        self.connection.flush()

    def pause_writing(self) -> None:
        if not self.over:
            self._paused_since = self.clock.monotonic()
            self.connection.pause_writing()
            self._arm(self._paused_since)

    def resume_writing(self) -> None:
        if not self.over:
            self._paused_since = None
            self.connection.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self.over:
            self._finish(LOST)
        if hasattr(self, "peer"):
            self.peer.closed.set()
        self.settled.set()
        self.ended()
        self._untangle()

    def _untangle(self) -> None:
        """Cut the reference cycles, so that an ended connection is freed at once. A garbage collector would find it late:
        connections are long-lived, and a server looks at its long-lived objects as rarely as it can (`server.gc_tuner`)."""
        if hasattr(self, "processor"):
            del self.processor._owner
            cast(Parser, self.connection._connection).close()

    # Ending.

    def abort(self, reason: str = STOPPED) -> None:
        """At once: nothing more is sent, not even what waits in buffers."""
        if hasattr(self, "transport"):
            cut(self.transport)
        if not self.over:
            self._finish(reason)

    def end(self, reason: str, code: ErrorCodes | None = None) -> None:
        """Says goodbye, then cuts."""
        if self.over:
            return
        if code is not None:
            self.connection._connection.close_connection(code, additional_data=reason.encode())
        self.connection.flush()
        self._finish(reason)
        self.loop.call_later(GOODBYE_SECONDS, cut, self.transport)

    def _finish(self, reason: str) -> None:
        self.over = True
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

    # Watching: one timer per connection, set to the next moment at which anything here could be due.

    def _watch(self) -> None:
        now = self.clock.monotonic()
        limits = self.limits
        if self.processor.streams:
            self._busy = now
        if self._paused_since is not None and now - self._paused_since >= limits.stall_seconds:
            return self.abort("the peer takes nothing")
        if not self.requests and not self.h2_config.client_side and now - self._made >= limits.first_message_seconds:
            return self.end("no call within the time for the first one", ErrorCodes.ENHANCE_YOUR_CALM)
        if limits.idle_seconds is not None and now - self._busy >= limits.idle_seconds:
            return self.end(IDLE, ErrorCodes.NO_ERROR)
        asked = self._pinged > self.peer.last_seen
        if asked and now - self._pinged >= limits.pong_within and now - self._due < limits.pong_within / 2:
            return self.abort("the peer is silent")
        if now - max(self.peer.last_seen, self._pinged) >= (limits.pong_within if asked else limits.ping_after):
            self._pinged = now
            self.connection._connection.ping(PING)
            self.connection.flush()
        return self._arm(now)

    def _arm(self, now: float) -> None:
        limits = self.limits
        due = [
            self._pinged + limits.pong_within
            if self._pinged > self.peer.last_seen
            else self.peer.last_seen + limits.ping_after
        ]
        if self._paused_since is not None:
            due.append(self._paused_since + limits.stall_seconds)
        if not self.requests and not self.h2_config.client_side:
            due.append(self._made + limits.first_message_seconds)
        if limits.idle_seconds is not None:
            due.append(self._busy + limits.idle_seconds)
        self._due = max(min(due), now + 0.001)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._due - now, self._watch)

    @staticmethod
    def _widen(parser: Parser, window: int) -> None:
        parser.increment_flow_control_window(window - WINDOW)
        parser.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
