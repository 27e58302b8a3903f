"""A call that is woken up by a lost connection leaves its task as it found it."""

import asyncio

import pytest

from nstance.wire.channel import _Interruption


class Lost(Exception):
    pass


async def test_the_error_arrives_and_the_task_is_not_left_half_cancelled() -> None:
    """Otherwise the next timeout in this task would come out as a cancellation."""
    wrapper = _Interruption()
    asyncio.get_running_loop().call_soon(wrapper.cancel, Lost())
    with pytest.raises(Lost), wrapper:
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()


async def test_a_timeout_around_a_call_that_was_interrupted_still_is_a_timeout() -> None:
    wrapper = _Interruption()
    asyncio.get_running_loop().call_soon(wrapper.cancel, Lost())

    async def work() -> None:
        with pytest.raises(Lost), wrapper:
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await work()


async def test_a_real_cancellation_at_the_same_time_wins() -> None:
    wrapper = _Interruption()

    async def work() -> None:
        with wrapper:
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    wrapper.cancel(Lost())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_later_calls_fail_at_once() -> None:
    wrapper = _Interruption()
    wrapper.cancel(Lost())
    with pytest.raises(Lost), wrapper:
        pytest.fail("entered")


async def test_what_a_call_raises_itself_passes() -> None:
    wrapper = _Interruption()
    with pytest.raises(KeyError), wrapper:
        raise KeyError("own")
