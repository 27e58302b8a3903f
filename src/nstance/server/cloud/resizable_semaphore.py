"""So many at once, and no more; how many may change while it is in use."""

import asyncio
from collections import deque
from collections.abc import Callable


class ResizableSemaphore:
    """Like a semaphore; who waits goes in order."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._waiting and self._used < self._most():
            self._used += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # it was given a place that it cannot use
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def admit(self) -> None:
        """Let in whoever has a place now: after `most` has grown, nobody else would."""
        while self._waiting and self._used < self._most():
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)

    def _release(self) -> None:
        self._used -= 1
        self.admit()
