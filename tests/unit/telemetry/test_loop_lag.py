"""A blocked event loop shows."""

import pytest

from nstance.telemetry import loop_lag


class Done(Exception):
    pass


class LateClock:
    """Sleeps too long by the given amounts, one after the other."""

    def __init__(self, late: list[float]) -> None:
        self._late = iter(late)
        self._now = 100.0

    def monotonic(self) -> float:
        return self._now

    def boot(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def steady(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        late = next(self._late, None)
        if late is None:
            raise Done
        self._now += seconds + late


async def lags(late: list[float]) -> list[float]:
    shown: list[float] = []
    with pytest.raises(Done):
        await loop_lag.measure(LateClock(late), shown.append)
    return [round(lag, 6) for lag in shown]


async def test_the_worst_of_the_window_is_shown() -> None:
    assert await lags([0, 0.1, 0.5, 0.2, 0]) == [0, 0.1, 0.5, 0.5, 0.5]


async def test_a_stall_is_forgotten_after_the_window() -> None:
    calm = [0.0] * int(loop_lag.WINDOW_SECONDS / loop_lag.INTERVAL_SECONDS)
    shown = await lags([10, 0.2, *calm, 0])
    assert shown[0] == 10
    assert 10 in shown[200:240]
    assert shown[-1] == 0


async def test_an_early_wake_up_is_no_lag() -> None:
    assert await lags([-0.01]) == [0]
