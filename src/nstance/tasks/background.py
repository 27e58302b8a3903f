"""Tasks that run beside other work, and end with it; and waiting for the first of several things."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from nstance.tasks.backoff import Sleeper

T = TypeVar("T")


async def end(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels tasks and waits for them. What they raise is dropped."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def gather_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Waits until all have ended, then raises the first error."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for each in ended:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results


@asynccontextmanager
async def running(work: Iterable[Awaitable[Any]]) -> AsyncIterator[list["asyncio.Future[Any]"]]:
    """Until the block ends."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in work]
    try:
        yield tasks
    finally:
        await end(tasks)


async def first_end(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Until one of the tasks ends; raises what it raised."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Waits for the event, but not longer than this on the clock of the event loop; None: without a limit."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def sleep_until_set(event: asyncio.Event, seconds: float, clock: Sleeper) -> None:
    """Sleeps on `clock`, but not longer than until the event is set."""
    waiting, sleeping = asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        sleeping.cancel()
