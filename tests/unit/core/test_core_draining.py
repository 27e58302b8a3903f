"""Draining: whether it is awaited, what ends it, and how a new leader continues it."""

from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import DeleteVm
from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, State
from unit.core.core_situation import NOW, after, desired, healthy, lost, member, name, replacement


@pytest.mark.parametrize(
    ("group", "view", "observed", "state"),
    [
        pytest.param({}, {}, {}, State.DRAINING, id="an operator is there"),
        pytest.param({"drain_timeout": 0.0}, {}, {}, State.DELETING, id="timeout 0: no waiting"),
        pytest.param({}, {"operator_seen": None}, {}, State.DELETING, id="no operator ever"),
        pytest.param({}, {"operator_seen": NOW - 61.0}, {}, State.DELETING, id="no operator within its lease"),
        pytest.param({}, {"operator_seen": NOW - 59.0}, {}, State.DRAINING, id="an operator within its lease"),
        pytest.param({}, {}, {"a": healthy(vm=VmState.DOWN)}, State.DELETING, id="VM not running: no drain"),
    ],
)
def test_whether_a_drain_is_awaited(
    group: dict[str, Any], view: dict[str, Any], observed: dict[str, Any], state: State
) -> None:
    follows = after([member("a")], ev.GroupChanged(), group=desired(0, **group), observed=observed, **view)
    assert follows["a"].state is state
    assert follows.effects(DeleteVm) == ("a" if state is State.DELETING else "")


def test_the_deadline_is_stored_and_has_a_timer() -> None:
    follows = after([member("a")], ev.GroupChanged(), group=desired(0, drain_timeout=7.0))
    drain = follows["a"].drain
    assert drain is not None
    assert (drain.started, drain.deadline, drain.cause, drain.waits) == (NOW, NOW + 7.0, Cause.SCALE_DOWN, True)
    assert follows.decision.wake_at == NOW + 7.0


DRAINING = member("a", State.DRAINING, deadline=NOW + 5.0)
SILENT = member("a", State.DRAINING, cause=Cause.UNHEALTHY, deadline=NOW + 5.0)


@pytest.mark.parametrize(
    ("drained", "events", "observed", "now", "state"),
    [
        pytest.param(DRAINING, [ev.TimerFired()], {}, NOW + 4.9, State.DRAINING, id="nothing cuts it short"),
        pytest.param(DRAINING, [ev.TimerFired()], {}, NOW + 5.0, State.DELETING, id="its deadline"),
        pytest.param(DRAINING, [ev.DrainAcknowledged(name("a"))], {}, NOW, State.DELETING, id="its acknowledgement"),
        pytest.param(DRAINING, [ev.VmChecked(name("a"), VmState.DOWN)], {}, NOW, State.DELETING, id="its VM is gone"),
        pytest.param(
            DRAINING, [ev.AgentConnected(name("a"))], {}, NOW, State.DRAINING, id="an agent does not stop a scale-down"
        ),
        pytest.param(
            SILENT, [ev.AgentConnected(name("a"))], {"a": lost(70.0)}, NOW, State.RUNNING, id="agent reconnected"
        ),
        pytest.param(
            member("a", State.DRAINING, cause=Cause.UNHEALTHY, infra_hash="x"),
            [ev.AgentConnected(name("a"))],
            {"a": lost(70.0)},
            NOW,
            State.DRAINING,
            id="the agent came back, but it is drifted",
        ),
        pytest.param(
            SILENT,
            [ev.AgentConnected(name("a")), ev.NoticeReceived(name("a"), NoticeKind.SPOT)],
            {"a": lost(70.0)},
            NOW,
            State.DRAINING,
            id="the agent came back to say that it ends",
        ),
    ],
)
def test_what_ends_a_drain(
    drained: Instance, events: list[ev.Event], observed: dict[str, Any], now: float, state: State
) -> None:
    taker = replacement("n", "a", Cause.UNHEALTHY, State.STARTING, created=NOW)
    follows = after([drained, taker], *events, size=1, observed=observed, now=now)
    assert follows["a"].state is state
    assert follows["n"].state is (State.DELETING if state is State.RUNNING else State.STARTING)


def test_a_drain_is_cancelled_only_if_there_is_a_place() -> None:
    """A group that shrank meanwhile, or whose place was taken by a registered instance, does not keep it."""
    observed = {"a": lost(70.0)}
    assert after([SILENT], ev.AgentConnected(name("a")), size=0, observed=observed)["a"].state is State.DRAINING
    taken = after([SILENT, member("z")], ev.AgentConnected(name("a")), size=1, observed=observed)
    assert taken["a"].state is State.DRAINING
    booting = after([SILENT, member("z", State.STARTING)], ev.AgentConnected(name("a")), size=1, observed=observed)
    assert (booting["a"].state, booting["z"].state) == (State.RUNNING, State.DELETING)


def test_an_unresponsive_on_demand_instance_recovers() -> None:
    alone = member("a", State.DRAINING, cause=Cause.UNHEALTHY, on_demand=True)
    observed = {"a": lost(70.0)}
    assert after([alone], ev.AgentConnected(name("a")), size=0, observed=observed)["a"].state is State.RUNNING
    aged = after([alone], ev.AgentConnected(name("a")), size=0, observed=observed, policy=Policy(ondemand_age=50.0))
    assert aged["a"].state is State.DRAINING


@pytest.mark.parametrize("listed", [False, True])
def test_a_new_leader_continues_drains(listed: bool) -> None:
    """Only the record is known: its deadline holds, but nothing is deleted before the listing."""
    view = {"listed": listed, "listening_since": NOW - 1.0}
    from_record = {"a": lost(0.0, seen_this_term=False, lost_at=None, vm=VmState.UNKNOWN, checked_at=None, checks=0)}
    before = after([DRAINING], ev.GroupChanged(), size=0, observed=from_record, **view)
    assert before["a"] == DRAINING
    assert before.decision.wake_at == NOW + 5.0
    late = after([DRAINING], ev.GroupChanged(), size=0, observed=from_record, now=NOW + 6.0, **view)
    assert late["a"].state is State.DELETING
    assert late.effects(DeleteVm) == ("a" if listed else "")


@pytest.mark.parametrize("state", [s for s in State if s is not State.DRAINING])
def test_acknowledging_an_instance_that_does_not_drain_is_rejected(state: State) -> None:
    instance = member("a", state, created=NOW)
    size = int(instance.counts)
    plain = after([instance], size=size)
    follows = after([instance], ev.DrainAcknowledged(instance.id), size=size)
    assert follows.members == plain.members
    assert [r.value for r in follows.decision.rejections.values()] == ["not-draining"]


def test_an_acknowledgement_while_paused_deletes_when_the_group_is_resumed() -> None:
    """Nothing is deleted while paused, neither at the deadline nor for an acknowledgement; neither is lost."""
    paused = after([DRAINING], ev.DrainAcknowledged(DRAINING.id), group=desired(0, paused=True))
    assert paused["a"].state is State.DRAINING
    assert paused.decision.rejections == {}
    assert paused.effects(DeleteVm) == ""
    late = after([paused["a"]], ev.TimerFired(), group=desired(0, paused=True), now=NOW + 600.0)
    assert late["a"].state is State.DRAINING
    resumed = after([paused["a"]], ev.GroupChanged(), group=desired(0))
    assert resumed["a"].state is State.DELETING
    assert resumed["a"].message == "drained"


def test_requested_deletion_of_a_draining_instance_is_final() -> None:
    follows = after([SILENT], ev.DeletionRequested(name("a")), size=1)
    assert follows["a"].drain is not None
    back = after([follows["a"]], ev.AgentConnected(name("a")), size=1)
    assert back["a"].state is State.DRAINING


def test_a_draining_vm_that_ends_is_checked_soon() -> None:
    follows = after([DRAINING], ev.AgentLost(name("a")), size=0)
    assert len(follows.decision.effects) == 1
    again = after([DRAINING], ev.VmChecked(name("a"), VmState.RUNNING), size=0, observed={"a": lost(0.1, checks=1)})
    assert again.observation("a").calls.check_due == NOW + 0.9
