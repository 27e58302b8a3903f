"""A flag is an asyncio.Event in all but size."""

import asyncio
import sys

from nstance.wire.flag import Flag


async def test_all_who_wait_are_woken_and_the_cancelled_are_forgotten() -> None:
    flag = Flag()
    waiting = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    assert len(flag._waiters) == 2
    flag.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [outcome is True for outcome in done] == [True, False, True]
    assert not flag._waiters


async def test_it_can_be_cleared_and_set_again() -> None:
    flag = Flag()
    for _ in range(2):
        flag.set()
        assert await flag.wait()
        flag.clear()
        assert not flag.is_set()


def test_its_waiters_take_no_room_before_there_are_any() -> None:
    assert sys.getsizeof(Flag()._waiters) * 5 < sys.getsizeof(asyncio.Event()._waiters)
