"""The transition table, exhaustively, and the checker of records."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.core.draft import Draft
from nstance.model.consistency import violations
from nstance.model.decision import TROUBLE, ReasonCode, View
from nstance.model.group import Policy
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind, ProviderId, TenantId, instance_id
from nstance.model.instance import CAPACITY, ENDED, TRANSITIONS, Cause, Drain, Instance, State, reachable

P, S, R = State.PENDING, State.STARTING, State.RUNNING
DRAINING, DELETING, DELETED, FAILED = State.DRAINING, State.DELETING, State.DELETED, State.FAILED
ALLOWED = {
    *((P, to) for to in (S, R, DELETING, FAILED)),
    *((S, to) for to in (R, DELETING, FAILED)),
    *((R, to) for to in (DRAINING, DELETING)),
    *((DRAINING, to) for to in (R, DELETING)),
    (DELETING, DELETED),
    *((ended, DELETING) for ended in (DELETED, FAILED)),
}
KEY = GroupKey(TenantId("t"), GroupName("g"))
ID, OTHER = instance_id(Kind("web"), 1), instance_id(Kind("web"), 2)


def instance(state: State, **fields: Any) -> Instance:
    return Instance(id=ID, tenant=KEY.tenant, group=KEY.name, state=state, created=1.0, **fields)


@pytest.mark.parametrize("before", list(State))
@pytest.mark.parametrize("to", list(State))
def test_transitions(before: State, to: State) -> None:
    """A transition that the table does not allow is rejected where records are changed."""
    view = View(key=KEY, desired=None, members={ID: instance(before)}, observations={})
    draft = Draft(view, now=2.0, policy=Policy(), fresh_ids=iter(()))
    assert (to in TRANSITIONS[before]) == ((before, to) in ALLOWED)
    if (before, to) in ALLOWED or before is to:
        assert draft.put(instance(to)).state is to
    else:
        with pytest.raises(AssertionError, match=str(before)):
            draft.put(instance(to))


def test_each_state_leads_to_an_end() -> None:
    for state in State:
        assert DELETED in reachable(state)


@pytest.mark.parametrize("state", list(State))
def test_what_counts(state: State) -> None:
    assert instance(state).counts == (state in (P, S, R)) == (state in CAPACITY)
    assert not instance(state, on_demand=True).counts
    assert (state in ENDED) == (state in (DELETED, FAILED))


def test_trouble_is_a_code() -> None:
    assert set(ReasonCode) > TROUBLE


def test_every_cause_is_a_reason() -> None:
    assert {cause.value for cause in Cause} <= {code.value for code in ReasonCode}


RUNNING = instance(R, registered=2.0, public_key="k", provider_id=ProviderId("i"))
DRAIN = Drain(started=1.0, cause=Cause.SPOT, deadline=2.0, waits=True)


@pytest.mark.parametrize(
    "record",
    [
        instance(P),
        instance(S, provider_id=ProviderId("i")),
        RUNNING,
        replace(RUNNING, suspect=True, duplicate_vm=ProviderId("j"), replaces=OTHER),
        replace(RUNNING, state=DRAINING, drain=DRAIN),
        replace(RUNNING, state=DELETING, drain=DRAIN),
        instance(DELETED, ended=2.0),
        instance(FAILED, ended=2.0),
    ],
)
def test_no_violations(record: Instance) -> None:
    assert violations({ID: record}) == []


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (replace(RUNNING, id=OTHER), "is stored under"),
        (replace(RUNNING, state=DRAINING), "is draining without"),
        (replace(RUNNING, drain=DRAIN), "is running and has a drain"),
        (instance(R, provider_id=ProviderId("i")), "without a public key"),
        (replace(RUNNING, public_key=""), "has a key without registration"),
        (replace(RUNNING, ended=1.0), "has an end"),
        (instance(DELETED), "has an end"),
        (instance(P, suspect=True), "is suspect"),
        (replace(RUNNING, replaces=ID), "replaces itself"),
        (replace(RUNNING, on_demand=True, replaces=OTHER), "is on-demand and replaces"),
        (replace(RUNNING, duplicate_vm=ProviderId("i")), "is its own duplicate VM"),
        (instance(S), "is starting without"),
    ],
)
def test_violations(record: Instance, problem: str) -> None:
    assert any(problem in sentence for sentence in violations({ID: record}))


def test_no_valid_id() -> None:
    odd = replace(RUNNING, id=InstanceId("pet"))
    assert violations({odd.id: odd}) == ["pet: has no valid ID"]


def test_what_two_records_may_not_share() -> None:
    """One key belongs to one identity, and one VM to one record."""
    twin = replace(RUNNING, id=OTHER)
    found = violations({ID: RUNNING, OTHER: twin})
    assert len(found) == 2
