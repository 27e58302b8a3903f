"""The arithmetic of leadership. A candidate waits longer than the holder counts, whatever their clocks do."""

import pytest

from nstance.core.election import (
    Answer,
    Members,
    Timings,
    adapted,
    claim_wait,
    promise_until,
    renew_at,
    spaced,
    valid_until,
)

APART = 1.05  # a holder's clock that is slow, and a standby's that is fast: so far may they be off together
TIMINGS = Timings()


def answer(sent: float, promise: float = TIMINGS.promise, crash_wait: float = TIMINGS.crash_wait) -> Answer:
    return Answer(sent, promise, crash_wait)


@pytest.mark.parametrize("length", [TIMINGS.length_standby, TIMINGS.length_with_members, TIMINGS.length_alone])
def test_an_outsider_claims_after_the_holder_has_stopped(length: float) -> None:
    holder = valid_until(Members((), {}), sent=0.0, length=length, promise=TIMINGS.promise)
    assert claim_wait(length=length, promise=TIMINGS.promise, member=False) > holder * APART


@pytest.mark.parametrize("promise", [TIMINGS.promise, 6.0])
def test_a_member_keeps_its_promise_until_the_holder_has_stopped(promise: float) -> None:
    holder = valid_until(Members(("b",), {"b": answer(0.0, promise)}), sent=0.0, length=15.0, promise=promise)
    assert promise_until(received=0.0, promise=promise) > holder * APART
    assert claim_wait(length=15.0, promise=promise, member=True) > holder * APART


def test_a_member_that_never_answered_lets_the_holder_act_for_one_promise_after_its_renewal() -> None:
    members = Members(("b", "c"), {"c": answer(109.0, 2.0)})
    until = valid_until(members, sent=100.0, length=15.0, promise=2.0)
    assert until == 102.0


@pytest.mark.parametrize(
    ("answered", "offered", "until"),
    [
        pytest.param({"b": answer(109.0)}, (), 110.0, id="it would have to read the lease first"),
        pytest.param({"b": answer(109.0)}, ("b",), 109.3, id="it may claim at once if it takes the leader for dead"),
        pytest.param({"b": answer(109.0, 5.5, 5.2)}, ("b",), 114.2, id="as announced, with a slow store"),
        pytest.param({"b": answer(99.0)}, (), 101.0, id="a renewal since its last answer: it knows an older version"),
    ],
)
def test_a_leader_stops_before_a_member_that_believes_it_crashed_may_claim(
    answered: dict[str, Answer], offered: tuple[str, ...], until: float
) -> None:
    """A reset connection and a refused port are no proof: the leader has stopped before the claim in any case."""
    members = Members(("b",), answered, offered)
    assert valid_until(members, sent=100.0, length=15.0, promise=TIMINGS.promise) == pytest.approx(until)


def test_a_member_that_believes_the_leader_crashed_claims_after_it_has_stopped() -> None:
    holder = valid_until(Members(("b",), {"b": answer(0.0)}, ("b",)), sent=0.0, length=15.0, promise=1.0)
    assert promise_until(received=0.0, promise=TIMINGS.crash_wait) > holder * APART


@pytest.mark.parametrize(
    ("answered", "offered", "now", "due"),
    [
        pytest.param({"b": answer(104.9)}, ("b",), 105.0, 105.1, id="at the moment when its answer is no longer fresh"),
        pytest.param({"b": answer(104.9)}, (), 105.0, 110.0, id="fresh"),
        pytest.param({"b": answer(99.0)}, ("b",), 105.0, 99.2, id="it could claim this version soon"),
        pytest.param({"b": answer(99.0)}, (), 105.0, 100.5, id="it does not know this version: no hurry"),
        pytest.param({}, (), 105.0, 100.5, id="it never answered"),
    ],
)
def test_renewals_are_more_frequent_in_doubt(
    answered: dict[str, Answer], offered: tuple[str, ...], now: float, due: float
) -> None:
    members = Members(("b",), answered, offered)
    found = renew_at(TIMINGS, members, sent=100.0, now=now, standby_near=True)
    assert found == pytest.approx(due)


@pytest.mark.parametrize(("near", "due"), [(True, 101.0), (False, 105.0)])
def test_without_members_renewals_have_a_fixed_interval(near: bool, due: float) -> None:
    assert renew_at(TIMINGS, Members((), {}), sent=100.0, now=100.0, standby_near=near) == due


@pytest.mark.parametrize("latency", [0.0, 0.03, 0.14])
def test_a_fast_store_changes_no_promise(latency: float) -> None:
    assert adapted(TIMINGS, latency).promise == TIMINGS.promise


@pytest.mark.parametrize("latency", [0.0, 0.05, 0.5, 0.8, 2.0, 5.0, 10.0])
def test_a_leader_can_renew_in_time_whatever_the_store_takes(latency: float) -> None:
    """A renewal is confirmed one answer after it was sent, and the next one follows by the interval or that answer."""
    now = adapted(TIMINGS, latency)
    for length, interval in (
        (now.length_with_members, now.renew_with_members),
        (now.length_standby, now.renew_standby),
        (now.length_alone, now.renew_alone),
        (now.promise, now.renew_doubtful),
    ):
        assert length > max(interval, latency) + latency
    assert now.crash_wait >= now.fresh + latency, "a doubtful answer is replaced by a renewal before it is over"
    assert now.crash_wait <= now.promise


def test_a_store_that_takes_few_writes_gets_the_time_between_them() -> None:
    timings = spaced(TIMINGS, 1.1)
    for members, near in (
        (Members((), {}), True),
        (Members((), {}), False),
        (Members(("b",), {}), True),
        (Members(("b",), {"b": answer(99.9)}, ("b",)), True),
        (Members(("b",), {"b": answer(99.9)}), True),
    ):
        assert renew_at(timings, members, sent=100.0, now=100.9, standby_near=near) >= 101.1
    assert spaced(TIMINGS, 0.0) == TIMINGS
    # A leader whose standby does not answer renews in time all the same.
    assert adapted(timings, 0.05).promise > timings.renew_doubtful + 0.05
