"""Keys are looked at once, by one worker, as soon as they are due, and again until it succeeds."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.kube import errors
from nstance.kube.queue import Pass, Queue, Result, Rules
from nstance.sim.loop import Machine
from nstance.sim.rng import SeededRng
from support.virtual_time import SEEDS, virtually

Reconcile = Callable[[str], Awaitable[float | None]]


@contextlib.asynccontextmanager
async def running(clock: Machine, reconcile: Reconcile, **options: Any) -> AsyncIterator[Queue[str]]:
    queue: Queue[str] = Queue("test", reconcile, clock=clock, rng=SeededRng(1), **options)
    task = asyncio.ensure_future(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Looks:
    """Remembers when it was called; each call takes a while and ends as scripted."""

    def __init__(self, clock: Machine, *ends: float | Exception | None, seconds: float = 0.0) -> None:
        self.clock = clock
        self.ends = list(ends)
        self.seconds = seconds
        self.starts: list[tuple[str, float]] = []
        self.now: set[str] = set()

    async def __call__(self, key: str) -> float | None:
        assert key not in self.now, "one key in two workers"
        self.now.add(key)
        self.starts.append((key, self.clock.loop.time()))
        try:
            if self.seconds:
                await self.clock.sleep(self.seconds)
        finally:
            self.now.discard(key)
        end = self.ends.pop(0) if self.ends else None
        if isinstance(end, Exception):
            raise end
        return end

    @property
    def times(self) -> list[float]:
        return [at for _, at in self.starts]


@virtually
async def test_a_key_added_many_times_is_looked_at_once(clock: Machine) -> None:
    looks = Looks(clock)
    async with running(clock, looks) as queue:
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await clock.sleep(1)
        assert sorted(key for key, _ in looks.starts) == ["a", "b"]
        assert max(looks.times) == 0.0, "there was nothing to wait for"
        assert not len(queue)


@virtually
async def test_a_key_added_while_it_is_looked_at_is_looked_at_once_more(clock: Machine) -> None:
    looks = Looks(clock, seconds=1.0)
    async with running(clock, looks) as queue:
        queue.add("a")
        await clock.sleep(0.5)
        for _ in range(3):
            queue.add("a")
        await clock.sleep(5)
        assert looks.times == pytest.approx([0, 1], abs=0.01)


@virtually
async def test_the_soonest_wins(clock: Machine) -> None:
    looks = Looks(clock)
    async with running(clock, looks) as queue:
        queue.add("a", 10.0)
        queue.add("a", 5.0)
        queue.add("a", 20.0)
        await clock.sleep(30)
        queue.add("b", 10.0)
        queue.add("b")
        await clock.sleep(30)
        assert [key for key, _ in looks.starts] == ["a", "b"]
        assert looks.times == pytest.approx([5, 30], abs=0.01)


@virtually
async def test_what_is_due_later_while_busy_is_not_lost(clock: Machine) -> None:
    looks = Looks(clock, seconds=2.0)
    async with running(clock, looks) as queue:
        queue.add("a")
        await clock.sleep(0.1)
        queue.add("a", 1.0)  # comes due while it is still being looked at
        await clock.sleep(10)
        assert looks.times == pytest.approx([0, 2], abs=0.01)


@virtually
async def test_a_returned_delay_is_kept(clock: Machine) -> None:
    looks = Looks(clock, 7.0)
    seen: list[Pass] = []
    async with running(clock, looks, report=seen.append) as queue:
        queue.add("a")
        await clock.sleep(60)
        assert looks.times == pytest.approx([0, 7], abs=0.01)
    assert [one.result for one in seen] == [Result.AGAIN, Result.DONE]
    assert (seen[0].queue, seen[0].depth) == ("test", 0)


@virtually
async def test_failures_slow_down_to_a_minute_and_success_forgets_them(clock: Machine) -> None:
    looks = Looks(clock, *[errors.UnavailableError("down")] * 20)
    async with running(clock, looks) as queue:
        queue.add("a")
        await clock.sleep(1200)
        gaps = [later - sooner for sooner, later in itertools.pairwise(looks.times)]
        assert gaps[0] <= 0.005
        assert all(30.0 <= gap <= 60.0 for gap in gaps[15:])
        before = len(looks.starts)
        assert before == 21, "it was not looked at again after it had succeeded"
        looks.ends = [errors.UnavailableError("down")]
        queue.add("a")
        await clock.sleep(0.1)
        assert len(looks.starts) == before + 2


@virtually
async def test_an_event_does_not_wait_for_the_back_off(clock: Machine) -> None:
    looks = Looks(clock, *[errors.UnavailableError("down")] * 12)
    async with running(clock, looks) as queue:
        queue.add("a")
        await clock.sleep(8)
        before = len(looks.starts)
        queue.add("a")
        await clock.sleep(0.001)
        assert len(looks.starts) == before + 1


@virtually
async def test_a_busy_server_is_given_the_time_it_asks_for(clock: Machine) -> None:
    looks = Looks(clock, errors.ThrottledError("later", delay=17.0))
    async with running(clock, looks) as queue:
        queue.add("a")
        await clock.sleep(60)
        assert looks.times == pytest.approx([0, 17], abs=0.01)


def test_an_unexpected_error_is_logged_with_its_traceback_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    @virtually
    async def scene(clock: Machine) -> None:
        looks = Looks(clock, ZeroDivisionError("a defect"))
        async with running(clock, looks) as queue:
            queue.add("a")
            await clock.sleep(1)
            assert len(looks.starts) == 2

    with caplog.at_level(logging.ERROR):
        scene()
    assert caplog.records
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("problems", "warnings"),
    [
        ([errors.ConflictError("x")] * 3, 0),
        ([errors.NotFoundError("x")] * 8, 0),  # it went, and the mirror shows it for a moment longer
        ([errors.NotFoundError("x")] * 10, 2),  # it is really missing
        ([errors.UnavailableError("x")], 1),
    ],
)
def test_what_is_common_is_no_warning(
    problems: list[Exception], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    @virtually
    async def scene(clock: Machine) -> None:
        async with running(clock, Looks(clock, *problems)) as queue:
            queue.add("a")
            await clock.sleep(60)

    with caplog.at_level(logging.WARNING):
        scene()
    assert len(caplog.records) == warnings * len(SEEDS)


@virtually
async def test_a_look_that_never_ends_is_stopped(clock: Machine) -> None:
    looks = Looks(clock, seconds=3600.0)
    async with running(clock, looks, rules=Rules(workers=1, timeout=10.0)) as queue:
        queue.add("a")
        queue.add("b")
        await clock.sleep(15)
        assert [key for key, _ in looks.starts][:2] == ["a", "b"]


@virtually
async def test_a_slow_key_does_not_hold_up_others(clock: Machine) -> None:
    looks = Looks(clock, seconds=5.0)
    async with running(clock, looks, rules=Rules(workers=2)) as queue:
        queue.add("slow")
        await clock.sleep(1)
        queue.add("a")
        await clock.sleep(0.01)
        assert [key for key, _ in looks.starts] == ["slow", "a"]


@virtually
async def test_nothing_goes_on_after_the_end(clock: Machine) -> None:
    looks = Looks(clock)
    async with running(clock, looks) as queue:
        queue.add("a", 5.0)
        await clock.sleep(0.1)
    await clock.sleep(10)
    assert looks.starts == []


Steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([0.0, 0.2, 1.0])))


@given(Steps)
def test_every_addition_is_followed_by_a_look(steps: list[tuple[str, float, float]]) -> None:
    """Whatever the order: each is served by a look that starts after it was made, and none is in two workers."""

    @virtually
    async def scene(clock: Machine) -> None:
        looks = Looks(clock, seconds=0.5)
        made: list[tuple[str, float]] = []
        async with running(clock, looks, rules=Rules(workers=2)) as queue:
            for key, after, pause in steps:
                made.append((key, clock.loop.time()))
                queue.add(key, after)
                if pause:
                    await clock.sleep(pause)
            await clock.sleep(60)
            assert not len(queue)
        for key, at in made:
            assert any(key == seen and start >= at for seen, start in looks.starts)
        assert len(looks.starts) <= len(made)

    scene()
