"""The latency of storage, learned from answers and timeouts."""

import pytest

from nstance.core.election import TIMEOUT_MAX_SECONDS, TIMEOUT_MIN_SECONDS, USUAL_MAX_SECONDS, Latency


def of(*answers: float) -> Latency:
    found = Latency()
    for seconds in answers:
        found = found.answered(seconds)
    return found


@pytest.mark.parametrize(
    ("answers", "usual"),
    [
        ((), 0.0),
        ((0.03,), 0.03),
        ((0.03, 2.0), 2.0),
        ((0.03, 0.03, 2.0), 0.03),
        ((0.03, 2.0, 2.0), 2.0),
        ((2.0, 2.0, 2.0, 0.03, 0.03), 0.03),
        ((60.0, 60.0), USUAL_MAX_SECONDS),
    ],
)
def test_the_usual_answer_is_the_middle_one_of_the_last_three(answers: tuple[float, ...], usual: float) -> None:
    assert of(*answers).usual == usual


def test_each_timeout_makes_the_next_one_longer_until_an_answer() -> None:
    found, timeouts = of(0.03), []
    for _ in range(5):
        timeouts.append(round(found.timeout, 3))
        found = found.timed_out(found.timeout)
    assert timeouts == [TIMEOUT_MIN_SECONDS, 2.1, 6.3, TIMEOUT_MAX_SECONDS, TIMEOUT_MAX_SECONDS]
    assert found.usual == 0.03, "a store that cannot be reached does not make leases longer"
    assert found.answered(0.03).timeout == TIMEOUT_MIN_SECONDS


def test_a_slow_answer_makes_the_next_timeout_longer() -> None:
    assert of(0.03, 2.0, 0.03).timeout == 6.0
