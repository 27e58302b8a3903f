"""Concurrency limits that may change while they are in use."""

import asyncio

import pytest

from nstance.server.cloud.resizable_semaphore import ResizableSemaphore
from nstance.tasks.keyed_tasks import KeyedTasks


async def test_a_semaphore_that_grows_admits_waiters_in_order() -> None:
    size, inside, leave = [1], [], asyncio.Event()
    semaphore = ResizableSemaphore(lambda: size[0])

    async def work(number: int) -> None:
        async with semaphore:
            inside.append(number)
            await leave.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert inside == [0]
    size[0] = 3
    semaphore.admit()
    await asyncio.sleep(0)
    assert inside == [0, 1, 2]
    leave.set()
    await asyncio.gather(*tasks)
    assert inside == [0, 1, 2, 3, 4]


async def test_a_cancelled_waiter_takes_no_place() -> None:
    semaphore = ResizableSemaphore(lambda: 1)
    await semaphore.__aenter__()

    async def wait() -> None:
        async with semaphore:
            return

    waiting, admitted, last = (asyncio.create_task(wait()) for _ in range(3))
    await asyncio.sleep(0)
    waiting.cancel()
    await semaphore.__aexit__()  # `admitted` has its place now, and is cancelled before it could use it
    admitted.cancel()
    await asyncio.wait_for(last, 5)
    async with asyncio.timeout(5), semaphore:
        pass


async def test_workers_follow_what_is_wanted() -> None:
    working: set[str] = set()
    moved = asyncio.Event()

    async def work(key: str) -> None:
        working.add(key)
        moved.set()
        try:
            await asyncio.Event().wait()
        finally:
            working.discard(key)
            moved.set()

    workers = KeyedTasks[str](work)
    workers.want(["a", "b"])
    running = asyncio.create_task(workers.run())

    async def until(expected: set[str]) -> None:
        async with asyncio.timeout(5):
            while working != expected:
                moved.clear()
                await moved.wait()

    await until({"a", "b"})
    workers.want(["b", "c"])
    await until({"b", "c"})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert working == set()


async def test_a_worker_that_fails_ends_them_all() -> None:
    ended = asyncio.Event()

    async def work(key: str) -> None:
        if key == "bad":
            raise RuntimeError("a bug")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    workers = KeyedTasks[str](work)
    workers.want(["good", "bad"])
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(workers.run(), 5)
    assert ended.is_set()
