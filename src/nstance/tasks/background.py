"""Tasks that run beside other work, and end with it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
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
async def running(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Until the block ends."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        await end(tasks)
