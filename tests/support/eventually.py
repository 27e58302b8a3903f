"""Waiting for a condition. The deadline is generous: it ends a hang and measures nothing."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60.0
LONGEST_PAUSE = 0.02


async def eventually(
    find: Callable[[], T | Awaitable[T]],
    what: str = "the condition",
    *,
    seconds: float = SECONDS,
    interval: float = 0.002,
) -> T:
    """The first true result of `find`. It is asked less and less often, so that a long wait costs little."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            while True:
                found = find()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(interval)
                interval = max(interval, min(LONGEST_PAUSE, interval * 1.2))
    except TimeoutError:
        if deadline.expired():
            raise AssertionError(f"not seen within {seconds:.0f} s: {what}") from None
        raise


def wait_for(what: str, find: Callable[[], T | None], *, seconds: float = 90.0) -> T:
    """The first result of `find` that is neither None nor False, without an event loop. What is asked are processes: asked
    less and less often, they get the processor."""
    until, pause = time.monotonic() + seconds, 0.01
    while True:
        found = find()
        if found is not None and found is not False:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not seen within {seconds:.0f} s: {what}")
        time.sleep(pause)
        pause = min(0.2, pause * 1.3)
