"""The arithmetic of leadership: whoever waits, waits longer than the holder counts (F21)."""

import pytest

from nstance.core.election import Answer, Timings, adapted, patience, promise_until, renew_at, valid_until

APART = 1.05  # a holder's clock that is slow, and a standby's that is fast: so far may they be off together
TIMINGS = Timings()


def said(sent: float, promise: float = TIMINGS.promise, crash_wait: float = TIMINGS.crash_wait) -> Answer:
    return Answer(sent, promise, crash_wait)


@pytest.mark.parametrize("length", [TIMINGS.length_standby, TIMINGS.length_with_members, TIMINGS.length_alone])
def test_an_outsider_claims_after_the_holder_has_stopped(length: float) -> None:
    holder = valid_until(sent=0.0, length=length, promise=TIMINGS.promise, members=(), answered={})
    assert patience(length=length, promise=TIMINGS.promise, member=False) > holder * APART


@pytest.mark.parametrize("promise", [TIMINGS.promise, 6.0])
def test_a_member_keeps_its_promise_until_the_holder_has_stopped(promise: float) -> None:
    holder = valid_until(sent=0.0, length=15.0, promise=promise, members=("b",), answered={"b": said(0.0, promise)})
    assert promise_until(received=0.0, promise=promise) > holder * APART
    assert patience(length=15.0, promise=promise, member=True) > holder * APART


def test_a_member_that_never_answered_lets_the_holder_act_for_one_promise_after_its_renewal() -> None:
    until = valid_until(sent=100.0, length=15.0, promise=2.0, members=("b", "c"), answered={"c": said(109.0, 2.0)})
    assert until == 102.0


@pytest.mark.parametrize(
    ("answered", "offered", "until"),
    [
        pytest.param({"b": said(109.0)}, (), 110.0, id="it would have to read the lease first"),
        pytest.param({"b": said(109.0)}, ("b",), 109.3, id="it may claim at once if it takes the leader for dead"),
        pytest.param({"b": said(109.0, 5.5, 5.2)}, ("b",), 114.2, id="as it was told, with a slow store"),
        pytest.param({"b": said(99.0)}, (), 101.0, id="a renewal since its last answer: it knows an older version"),
    ],
)
def test_a_leader_counts_on_no_more_than_a_member_keeps_that_takes_it_for_dead(
    answered: dict[str, Answer], offered: tuple[str, ...], until: float
) -> None:
    """Whatever a connection that was reset and a port that refuses prove: the leader has stopped before the claim."""
    told = {"sent": 100.0, "length": 15.0, "promise": TIMINGS.promise, "members": ("b",)}
    assert valid_until(**told, answered=answered, offered=offered) == pytest.approx(until)


def test_a_member_that_found_the_leader_dead_claims_after_it_has_stopped() -> None:
    holder = valid_until(sent=0.0, length=15.0, promise=1.0, members=("b",), answered={"b": said(0.0)}, offered=("b",))
    assert promise_until(received=0.0, promise=TIMINGS.crash_wait) > holder * APART


@pytest.mark.parametrize(
    ("answered", "offered", "now", "due"),
    [
        pytest.param({"b": said(104.9)}, ("b",), 105.0, 105.1, id="at the moment when its answer is no longer fresh"),
        pytest.param({"b": said(104.9)}, (), 105.0, 110.0, id="fresh"),
        pytest.param({"b": said(99.0)}, ("b",), 105.0, 99.2, id="it could claim this version soon"),
        pytest.param({"b": said(99.0)}, (), 105.0, 100.5, id="it was not told this version: no hurry"),
        pytest.param({}, (), 105.0, 100.5, id="it never answered"),
    ],
)
def test_renewals_follow_doubt(answered: dict[str, Answer], offered: tuple[str, ...], now: float, due: float) -> None:
    found = renew_at(
        TIMINGS, sent=100.0, members=("b",), answered=answered, offered=offered, now=now, standby_near=True
    )
    assert found == pytest.approx(due)


@pytest.mark.parametrize(("near", "due"), [(True, 101.0), (False, 105.0)])
def test_without_members_renewals_follow_the_clock(near: bool, due: float) -> None:
    assert renew_at(TIMINGS, sent=100.0, members=(), answered={}, offered=(), now=100.0, standby_near=near) == due


@pytest.mark.parametrize("latency", [0.0, 0.03, 0.14])
def test_a_store_that_answers_soon_changes_no_promise(latency: float) -> None:
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
