import pytest

from nstance.agent import timing


class Highest:
    """Chance at its worst."""

    def uniform(self, low: float, high: float) -> float:
        return high

    def bits(self, count: int) -> int:
        return 0

    def bytes(self, count: int) -> bytes:
        return b""


class Lowest(Highest):
    def uniform(self, low: float, high: float) -> float:
        return low


def test_backoff_doubles_from_half_a_second_to_thirty() -> None:
    assert [timing.BACKOFF.delay(failures, Highest()) for failures in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert timing.BACKOFF.delay(10_000, Highest()) == 30
    assert timing.BACKOFF.delay(5, Lowest()) == 0


@pytest.mark.parametrize(("spread", "longest"), [(0.0, 0.0), (5.0, 5.0), (-1.0, 0.0), (1e9, 300.0)])
def test_a_lost_server_is_returned_to_within_its_spread(spread: float, longest: float) -> None:
    assert timing.reconnect_delay(0, spread, Highest()) == longest
    assert timing.reconnect_delay(3, spread, Highest()) == 2.0


def test_reports_jitter_by_a_tenth_and_zero_means_none() -> None:
    assert timing.until_report(60, Highest()) == pytest.approx(66)
    assert timing.until_report(60, Lowest()) == pytest.approx(54)
    assert timing.until_report(0, Highest()) is None


@pytest.mark.parametrize(
    ("own", "served", "used"), [(60, 5, 5), (60, 0, 60), (60, -1, 60), (0, 5, 0), (60, 0.0001, 0.1), (60, 1e12, 86400)]
)
def test_the_server_s_interval_wins_unless_the_agent_is_to_be_quiet(own: float, served: float, used: float) -> None:
    assert timing.report_interval(own, served) == used


def test_renewal_is_due_at_two_thirds() -> None:
    assert timing.renewal_due(100, 400) == pytest.approx(300)
