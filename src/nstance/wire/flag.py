"""An asyncio.Event that is small, because a connection has a dozen of them and a server thousands of connections.

asyncio keeps the waiters in a deque, which takes 760 bytes for the first one that may ever come; nearly all of these
events never have more than one.
"""

import asyncio


class Flag(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self._waiters: list[asyncio.Future[bool]] = []  # type: ignore[assignment]
