"""The arithmetic of leadership: whoever waits, waits longer than the holder counts (F21)."""

import pytest

from nstance.core.election import Timings, patience, promise_until, valid_until

APART = 1.05  # a holder's clock that is slow, and a standby's that is fast: so far may they be off together
TIMINGS = Timings()


@pytest.mark.parametrize("length", [TIMINGS.length_standby, TIMINGS.length_with_members, TIMINGS.length_alone])
def test_f21_an_outsider_claims_after_the_holder_has_stopped(length: float) -> None:
    holder = valid_until(sent=0.0, length=length, promise=TIMINGS.promise, members=(), answered={})
    assert patience(length=length, promise=TIMINGS.promise, member=False) > holder * APART


@pytest.mark.parametrize("promise", [TIMINGS.promise, 6.0])
def test_f21_a_member_keeps_its_promise_until_the_holder_has_stopped(promise: float) -> None:
    holder = valid_until(sent=0.0, length=15.0, promise=promise, members=("b",), answered={"b": 0.0})
    assert promise_until(received=0.0, promise=promise) > holder * APART
    assert patience(length=15.0, promise=promise, member=True) > holder * APART


def test_a_member_that_never_answered_lets_the_holder_act_for_one_promise_after_its_renewal() -> None:
    until = valid_until(sent=100.0, length=15.0, promise=2.0, members=("b", "c"), answered={"c": 109.0})
    assert until == 102.0
