import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from tests.support.hand_clock import HandClock

from nstance.server import gc_tuner
from nstance.server.gc_tuner import GcTuner


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture(autouse=True, scope="module")
def set_aside_again() -> Iterator[None]:
    """What tests/conftest.py set aside."""
    yield
    gc.freeze()


async def settled() -> tuple[HandClock, asyncio.Task[None]]:
    clock = HandClock()
    task = asyncio.create_task(GcTuner(clock).run())
    await clock.advance(0.1)
    return clock, task


async def test_new_garbage_is_collected_when_enough_has_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuner, "MIN_YOUNG_COLLECTIONS", 0)
    clock, task = await settled()
    circle = weakref.ref(Circle())
    gc.collect(1)
    await clock.advance(gc_tuner.INTERVAL_SECONDS)
    assert circle() is None
    task.cancel()


async def test_a_full_collection_is_never_started_by_python() -> None:
    _, task = await settled()
    assert gc.get_threshold()[2] == gc_tuner.NEVER
    task.cancel()


def test_what_survived_is_set_aside_and_not_looked_at_again() -> None:
    policy = GcTuner(HandClock(), used=lambda: 100)
    policy.collect_all()
    kept = [Circle()]
    seen = weakref.ref(kept[0])
    policy.collect()
    kept.clear()
    policy.collect()
    assert seen() is not None
    assert not any(each is seen() for each in gc.get_objects())


@pytest.mark.parametrize(("grown", "collected"), [(1.9, False), (2.1, True)])
def test_what_was_set_aside_is_looked_at_when_memory_has_doubled(grown: float, collected: bool) -> None:
    used = 100.0
    kept = [Circle()]
    seen = weakref.ref(kept[0])
    policy = GcTuner(HandClock(), used=lambda: int(used))
    policy.collect_all()
    kept.clear()
    used *= grown
    policy.collect()
    assert (seen() is None) == collected


def test_a_small_look_does_not_count_what_was_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python counts by walking over all of it: of 300,000 objects that takes 40 ms, five times a second."""
    policy = GcTuner(HandClock())
    policy.collect_all()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted"))
    policy.collect()
    assert gc_tuner.resident() > 1 << 20


async def test_at_the_end_python_collects_as_before() -> None:
    before = gc.get_threshold()
    _, task = await settled()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
