"""The received and not yet read bytes of one stream.

The peer gets flow-control credit only when bytes are read or a reader waits, so an inbox never holds more than the
window plus the message being read. The size limit is checked on a message's five-byte prefix, before the message
arrives. The trap: a peer may also send one byte at a time, so a message that has begun has a deadline.
"""

import asyncio
from collections.abc import Callable

from grpclib.const import Status

from nstance.wire import status

PREFIX = 5


class Inbox:
    __slots__ = ("_bytes", "_ended", "_give_credit", "_unacked", "_waiter")

    def __init__(self, give_credit: Callable[[int], None]) -> None:
        self._give_credit = give_credit
        self._bytes = bytearray()
        self._unacked = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    # Called by grpclib as frames arrive.

    def add(self, data: bytes, ack_size: int) -> None:
        self._bytes += data
        self._unacked += ack_size
        self._wake()

    def eof(self) -> None:
        self._ended = True
        self._wake()

    def unacked_size(self) -> int:
        """The credit to return when the stream is closed unread."""
        size, self._unacked = self._unacked, 0
        return size

    # Called by readers.

    def message(self, limit: int) -> bytes | None:
        """A complete message, if there is one."""
        data = self._bytes
        if len(data) < PREFIX:
            return None
        size = int.from_bytes(data[1:PREFIX], "big")
        if data[0]:
            raise status.unimplemented("compressed messages are not supported; send them plain")
        if size > limit:
            raise status.exhausted(f"expected a message of at most {limit} bytes, found one of {size}")
        end = size + PREFIX
        if len(data) < end:
            return None
        body = bytes(data[PREFIX:end])
        del data[:end]
        if not data:
            self._credit()
        return body

    @property
    def has_data(self) -> bool:
        return bool(self._bytes)

    @property
    def message_size(self) -> int:
        """The size of the message that has begun, 0 while it is unknown."""
        return int.from_bytes(self._bytes[1:PREFIX], "big") if len(self._bytes) >= PREFIX else 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive. Raises if a message is incomplete."""
        if self._ended and self._bytes:
            raise status.refusal(Status.INVALID_ARGUMENT, "the stream ended in the middle of a message")
        return self._ended

    async def wait_more(self) -> None:
        """Wait until something arrives. One reader at a time."""
        assert self._waiter is None, "two readers on one stream"
        self._credit()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def read(self, size: int) -> bytes:
        """Exactly `size` bytes, or none at the end, for grpclib's client side."""
        while len(self._bytes) < size:
            if self.ended:
                return b""
            await self.wait_more()
        body = bytes(self._bytes[:size])
        del self._bytes[:size]
        if not self._bytes:
            self._credit()
        return body

    def _credit(self) -> None:
        if self._unacked:
            size, self._unacked = self._unacked, 0
            self._give_credit(size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
