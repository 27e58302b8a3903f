"""A provider's answers lag behind creates and deletes: what they prove within that time, also for a new leader."""

import pytest

from nstance.core.observe import CONSISTENCY_LAG_SECONDS
from nstance.model import events as ev
from nstance.model.decision import DeleteVm
from nstance.model.events import VmState
from nstance.model.instance import State
from unit.core.core_situation import NOW, after, member, name, observation

A = name("a")
NEW_LEADER = {"a": observation(last_seen=NOW - 1.0)}  # it knows nothing but the record
ABSENT = ev.VmChecked(A, VmState.ABSENT, asked=NOW)


@pytest.mark.parametrize(
    ("made", "state"),
    [
        pytest.param(NOW - 3.5, State.STARTING, id="just made: unknown"),
        pytest.param(NOW - CONSISTENCY_LAG_SECONDS, State.DELETING, id="the lag is over: gone"),
        pytest.param(None, State.DELETING, id="a provider whose answers never lag: gone"),
    ],
)
def test_a_new_leader_believes_an_absence_only_after_the_lag(made: float | None, state: State) -> None:
    follows = after([member("a", State.STARTING, seen=True, made=made)], ABSENT, size=1, observed=NEW_LEADER)
    assert follows["a"].state is state
    if state is State.STARTING:
        assert made is not None
        assert follows.observation("a").calls.check_due == made + CONSISTENCY_LAG_SECONDS


def test_the_record_stores_when_the_vm_was_created() -> None:
    follows = after([member("a", State.PENDING)], ev.VmCreated(A, "i-a"), size=1)
    assert follows["a"].made == NOW
    consistent = after([member("a", State.PENDING)], ev.VmCreated(A, "i-a", seen=True), size=1)
    assert consistent["a"].made is None


def test_a_vm_found_by_a_check_existed_by_then() -> None:
    follows = after([member("a", State.PENDING)], ev.VmChecked(A, VmState.RUNNING, "i-a"), size=1)
    assert (follows["a"].seen, follows["a"].made) == (True, NOW)
    known = after([member("a", State.STARTING, seen=False, made=NOW - 9.0)], ev.VmChecked(A, VmState.RUNNING, "i-a"))
    assert known["a"].made == NOW - 9.0


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        pytest.param(NOW - 1.0, State.DELETED, id="called before it was deleted"),
        pytest.param(NOW + CONSISTENCY_LAG_SECONDS - 0.1, State.DELETED, id="a lagging answer"),
        pytest.param(NOW + CONSISTENCY_LAG_SECONDS, State.DELETING, id="it is really there"),
    ],
)
def test_a_deleted_vm_that_still_shows_is_not_deleted_again(asked: float, state: State) -> None:
    gone = member("a", State.DELETED, ended=NOW)
    shown = ev.VmChecked(A, VmState.RUNNING, "i-a", asked=asked)
    follows = after([gone], shown, now=NOW + CONSISTENCY_LAG_SECONDS + 1.0)
    assert follows["a"].state is state
    assert follows.effects(DeleteVm) == ("a" if state is State.DELETING else "")
