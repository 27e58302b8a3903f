"""The bytes of one stream that were received and not yet read.

The peer gets its credit back only when bytes are read or a reader waits for more, so an inbox never holds more than the
window plus the one message being read. The limit is checked on a message's five-byte prefix: what is too large is
refused before it arrives. The trap: a peer may also send a message one byte at a time, so once begun it has a deadline.
"""

import asyncio
from collections.abc import Callable

from grpclib.const import Status

from nstance.wire import status

PREFIX = 5


class Inbox:
    __slots__ = ("_bytes", "_ended", "_give", "_unacked", "_waiter")

    def __init__(self, give_credit: Callable[[int], None]) -> None:
        self._give = give_credit
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
        """What is to be credited when the stream is given up unread."""
        size, self._unacked = self._unacked, 0
        return size

    # Called by readers.

    def message(self, limit: int) -> bytes | None:
        """A whole message if there is one."""
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
    def begun(self) -> bool:
        return bool(self._bytes)

    @property
    def announced(self) -> int:
        """The size of the message that has begun, as far as it is known."""
        return int.from_bytes(self._bytes[1:PREFIX], "big") if len(self._bytes) >= PREFIX else 0

    @property
    def ended(self) -> bool:
        """Nothing more will arrive. Raises if that cuts a message in two."""
        if self._ended and self._bytes:
            raise status.refusal(Status.INVALID_ARGUMENT, "the stream ended in the middle of a message")
        return self._ended

    async def more(self) -> None:
        """Until something arrives. One reader at a time."""
        assert self._waiter is None, "two readers on one stream"
        self._credit()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def read(self, size: int) -> bytes:
        """Exactly `size` bytes, or none at the end: what grpclib's client side asks for."""
        while len(self._bytes) < size:
            if self.ended:
                return b""
            await self.more()
        body = bytes(self._bytes[:size])
        del self._bytes[:size]
        if not self._bytes:
            self._credit()
        return body

    def _credit(self) -> None:
        if self._unacked:
            size, self._unacked = self._unacked, 0
            self._give(size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
