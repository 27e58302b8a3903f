"""One HTTP/2 stream: bounded reads, and writes that wait for the peer."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from grpclib import protocol
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_grpc_message
from h2.exceptions import TooManyStreamsError

from nstance.wire import status
from nstance.wire.flag import Flag
from nstance.wire.inbox import Inbox

if TYPE_CHECKING:
    from nstance.wire.transport import Connection

FRAME = 16 << 10  # largest frame that is sent, so that one message does not fill the send buffer


class Stream(protocol.Stream):
    connection: "Connection"
    buffer: Inbox  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.window_updated, self.headers_received, self.trailers_received = Flag(), Flag(), Flag()

    def init_stream(self, stream_id: int, connection: protocol.Connection) -> None:
        self.id = stream_id
        self.buffer = Inbox(partial(connection.ack, stream_id))

    async def recv_data(self, size: int) -> bytes:
        limit = self.connection.limits.max_message
        if size > limit:
            raise status.exhausted(f"expected a message of at most {limit} bytes, peer one of {size}")
        try:
            return await self.buffer.read(size)
        except GRPCError as error:  # the stream ended inside a message: the trailers may say why
            trailers = dict(self.trailers or ())
            code = trailers.get("grpc-status", "0")
            if not code.isdecimal() or int(code) not in range(1, len(Status)):
                raise
            message = decode_grpc_message(trailers.get("grpc-message", ""))
            raise status.refusal(Status(int(code)), message) from error

    async def send_request(self, headers: Any, end_stream: bool = False, *, _processor: Any) -> Callable[[], None]:
        """Open the stream; wait while the peer allows no more streams and the connection lasts."""
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
        rest = memoryview(data)
        while True:
            await self.connection.writable()
            window = self._h2_connection.local_flow_control_window(self.id)
            if window <= 0 and rest:
                await self._wait_window()
                continue
            part = rest[: min(window, FRAME, self._h2_connection.max_outbound_frame_size)]
            rest = rest[len(part) :]
            self._h2_connection.send_data(self.id, bytes(part), end_stream=end_stream and not rest)
            self.connection.flush()
            if not rest:
                return

    async def _wait_window(self) -> None:
        """Wait until the peer reads. A peer that never does is an error."""
        seconds = self.connection.limits.stall_seconds
        self.window_updated.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.window_updated.wait()
        except TimeoutError:
            raise status.exhausted(f"the peer read nothing for {seconds:g} s") from None
