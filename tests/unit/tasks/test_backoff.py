import asyncio

import pytest

from nstance.tasks.backoff import Backoff, retry
from nstance.tasks.refresher import refresh_forever


class FixedRng:
    """Always the same point between the bounds."""

    def __init__(self, point: float) -> None:
        self._point = point

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._point


class RecordingClock:
    """Sleeps without waiting, and remembers for how long."""

    def __init__(self, limit: int = 100) -> None:
        self.slept: list[float] = []
        self._limit = limit

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) >= self._limit:
            raise asyncio.CancelledError


class Flaky:
    """Fails at the calls that are listed by number."""

    def __init__(self, *failing: int) -> None:
        self.calls = 0
        self._failing = failing

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls in self._failing:
            raise ConnectionError(f"call {self.calls}")
        return self.calls


def test_delays_grow_to_the_maximum_and_never_overflow() -> None:
    assert [Backoff(0.5, 6.0).delay(failures) for failures in range(1, 7)] == [0.5, 1, 2, 4, 6, 6]
    assert [Backoff(1.0, 3.0, factor=1.5).delay(failures) for failures in range(1, 5)] == [1, 1.5, 2.25, 3]
    assert Backoff(0.001, 60.0).delay(1_000_000) == 60


@pytest.mark.parametrize(("jitter", "low", "high"), [(1.0, 0.0, 4.0), (0.5, 2.0, 4.0), (0.1, 3.6, 4.0)])
def test_jitter_shortens_a_delay_by_at_most_its_part(jitter: float, low: float, high: float) -> None:
    backoff = Backoff(1.0, 10.0, jitter)
    assert backoff.delay(3, FixedRng(0.0)) == pytest.approx(low)
    assert backoff.delay(3, FixedRng(1.0)) == pytest.approx(high)


async def test_retry_waits_longer_each_time_and_returns_the_result() -> None:
    clock, work = RecordingClock(), Flaky(1, 2, 3)
    result = await retry(work, clock=clock, expected=ConnectionError, on_failure=lambda _, n: Backoff(1, 60).delay(n))
    assert (result, clock.slept) == (4, [1, 2, 4])


async def test_retry_ends_with_other_errors_and_when_on_failure_raises() -> None:
    def give_up(problem: ConnectionError, failures: int) -> float:
        if failures == 2:
            raise ValueError("enough") from problem
        return 1.0

    with pytest.raises(ConnectionError):
        await retry(Flaky(1), clock=RecordingClock(), expected=TimeoutError, on_failure=lambda *_: 0.0)
    with pytest.raises(ValueError, match="enough"):
        await retry(Flaky(1, 2, 3), clock=RecordingClock(), expected=ConnectionError, on_failure=give_up)


async def test_refresher_uses_the_interval_after_success_and_starts_the_count_again() -> None:
    clock, seen = RecordingClock(limit=5), list[int]()

    def on_failure(_: ConnectionError, failures: int) -> float:
        seen.append(failures)
        return float(failures)

    with pytest.raises(asyncio.CancelledError):
        await refresh_forever(
            Flaky(2, 3, 5), clock=clock, interval=lambda: 60.0, expected=ConnectionError, on_failure=on_failure
        )
    assert clock.slept == [60, 1, 2, 60, 1]
    assert seen == [1, 2, 1]
