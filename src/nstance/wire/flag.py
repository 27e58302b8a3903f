"""A small asyncio.Event: a connection has a dozen of them, and a server thousands of connections.

asyncio keeps waiters in a deque of 760 bytes; nearly all of these events never have more than one waiter.
"""

import asyncio


class Flag(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[asyncio.Future[bool]] = []  # type: ignore[assignment]
