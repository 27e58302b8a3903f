"""The clock by which ages are counted does not jump, and approaches the wall clock slowly."""

import pytest

from nstance import clock


class Times:
    """What the operating system says."""

    wall, monotonic = 1_000_000.0, 50.0

    def step(self, passed: float, *, jump: float = 0.0) -> None:
        self.monotonic += passed
        self.wall += passed + jump


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times()
    monkeypatch.setattr(clock.time, "time", lambda: made.wall)
    monkeypatch.setattr(clock.time, "monotonic", lambda: made.monotonic)
    return made


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_jump_of_the_wall_clock_moves_the_steady_one_hardly(times: Times, jump: float) -> None:
    system = clock.SystemClock()
    assert system.steady() == times.wall
    times.step(10.0, jump=jump)
    assert system.wall() == 1_000_010.0 + jump
    assert system.steady() == pytest.approx(1_000_010.0, abs=11.0 * clock.STEADY_SLEW)
    times.step(1000.0)
    slewed = system.steady() - 1_001_010.0
    assert slewed == pytest.approx(1010.0 * clock.STEADY_SLEW * (1 if jump > 0 else -1))


def test_an_anchor_counts_more_than_the_wall_clock(times: Times) -> None:
    system = clock.SystemClock()
    system.anchor(times.wall - 3600.0)
    times.step(5.0)
    assert system.steady() == pytest.approx(1_000_005.0 - 3600.0, abs=0.01)


def test_small_differences_are_made_up(times: Times) -> None:
    system = clock.SystemClock()
    times.step(0.0, jump=0.5)
    for _ in range(600):
        times.step(1.0)
        system.steady()
    assert system.steady() == times.wall
