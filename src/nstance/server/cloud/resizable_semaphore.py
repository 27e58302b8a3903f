"""A semaphore whose size may change while it is in use. Waiters enter in order."""

import asyncio
from collections import deque
from collections.abc import Callable


class ResizableSemaphore:
    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._waiting and self._used < self._size():
            self._used += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # it was admitted and cancelled at the same time
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def admit(self) -> None:
        """Admits waiters. Call it when the size may have grown."""
        while self._waiting and self._used < self._size():
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)

    def _release(self) -> None:
        self._used -= 1
        self.admit()
