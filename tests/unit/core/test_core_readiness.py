"""Readiness in decisions: which instances are ready, which are unhealthy, and when their replacement waits."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import Trend
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation
from unit.core.core_situation import (
    NOW,
    After,
    after,
    desired,
    healthy,
    member,
    name,
    replacement,
    unready,
)

YOUNG = {"registered": NOW - 50.0, "ready_at": None}
LATE = {"registered": NOW - 700.0, "ready_at": None, "created": NOW - 800.0}
FAILING = "failing checks: web"


def test_the_record_stores_the_first_readiness() -> None:
    report = ev.ReadinessReported(name("a"), files=True)
    follows = after([member("a", **YOUNG)], report, size=1, observed={"a": unready()})
    assert follows["a"].ready_at == NOW
    assert follows.observation("a").agent.ready
    assert "ready" in follows.codes()
    again = after([follows["a"]], report, size=1, now=NOW + 5.0)
    assert again["a"].ready_at == NOW
    assert again.codes() == set()


def test_files_that_can_be_rendered_again_restart_the_ready_timeout() -> None:
    """An instance was removed at the moment when its files arrived."""
    blocked = unready(blocked="no secret")
    follows = after(
        [member("a", **LATE)], ev.ReadinessReported(name("a"), files=False), size=1, observed={"a": blocked}
    )
    assert follows["a"].state is State.RUNNING
    assert follows.observation("a").agent.unblocked_at == NOW


def test_an_instance_whose_revision_could_not_be_read_is_not_late() -> None:
    """It was given up because it had not reported, although only its leader could not tell what it should report."""
    unknown, late = ev.ReadinessUnknown(name("a")), member("a", **LATE)
    follows = after([late], unknown, size=1, observed={"a": healthy(ready=False)})
    assert follows["a"].state is State.RUNNING
    assert not follows.observation("a").agent.not_ready  # it is not known to be unready
    # As soon as the revision is known, it has the whole time again.
    report = ev.ReadinessReported(name("a"), files=False)
    later = after([late], report, size=1, observed={"a": follows.observation("a")})
    assert later["a"].state is State.RUNNING
    assert later.observation("a").agent.unblocked_at == NOW


@pytest.mark.parametrize("event", [ev.AgentLost(name("a")), ev.AgentRestarting(name("a"))], ids=["lost", "restarting"])
def test_a_disconnected_instance_is_not_ready(event: ev.Event) -> None:
    assert not after([member("a")], event, size=1).observation("a").agent.ready


@pytest.mark.parametrize(
    ("fields", "observed", "group", "view", "state"),
    [
        pytest.param(YOUNG, unready(), {}, {}, State.RUNNING, id="in time"),
        pytest.param(LATE, unready(), {}, {}, State.DRAINING, id="never ready"),
        pytest.param(LATE, healthy(ready=False), {}, {}, State.DRAINING, id="never reported"),
        pytest.param(LATE, unready(), {"ready_timeout": 900.0}, {}, State.RUNNING, id="its template gives it longer"),
        pytest.param({}, unready(), {}, {}, State.RUNNING, id="was ready before: it is only not ready"),
        pytest.param(LATE, healthy(), {}, {}, State.RUNNING, id="ready at last"),
        pytest.param(LATE, unready(blocked="no secret"), {}, {}, State.RUNNING, id="blocked: another one would be too"),
        pytest.param(
            LATE, unready(unblocked_at=NOW - 5.0), {}, {}, State.RUNNING, id="its files could not be made before"
        ),
        pytest.param(LATE, unready(), {}, {"mass_silence": True}, State.RUNNING, id="the fault is probably here"),
        pytest.param(LATE, unready(), {}, {"listed": False}, State.RUNNING, id="not before the listing"),
        pytest.param(
            LATE,
            unready(),
            {},
            {"listening_since": NOW - 20.0, "reconnect_grace": 30.0},
            State.RUNNING,
            id="a new leader gives agents the time to come back",
        ),
        pytest.param(LATE, unready(connected_since=NOW - 1.0), {}, {}, State.RUNNING, id="it has just come back"),
    ],
)
def test_never_ready(
    fields: dict[str, Any], observed: Observation, group: dict[str, Any], view: dict[str, Any], state: State
) -> None:
    follows = after(
        [member("a", **fields)], ev.TimerFired(), group=desired(1, **group), observed={"a": observed}, **view
    )
    assert follows["a"].state is state
    if state is State.DRAINING:
        assert follows["a"].cause is Cause.UNHEALTHY
        assert len(follows.made) == 1
        assert follows.decision.trend.failures == 1


def test_there_is_a_timer_for_readiness() -> None:
    for observed in (unready(last_seen=NOW), healthy(ready=False, check_due=NOW + 900.0)):
        follows = after(
            [member("a", **YOUNG)], ev.TimerFired(), group=desired(1, ready_timeout=55.0), observed={"a": observed}
        )
        assert follows.decision.wake_at == NOW + 5.0


@pytest.mark.parametrize(
    ("connected_after", "due_after"),
    [
        pytest.param(0.1, 3.0, id="connected at once: exactly then"),
        pytest.param(2.0, 4.0, id="connected later: it gets as long again"),
        pytest.param(60.0, 70.0, id="reconnected: it may have become ready meanwhile"),
    ],
)
def test_a_short_ready_timeout_is_met(connected_after: float, due_after: float) -> None:
    registered = NOW - 100.0
    observed = unready(connected_since=registered + connected_after)
    for seconds, made in ((due_after - 0.01, 0), (due_after, 1)):
        now = registered + seconds
        young = member("a", registered=registered, ready_at=None)
        observed = unready(connected_since=registered + connected_after, last_seen=now)
        group = desired(1, ready_timeout=3.0)
        view = {"now": now, "observed": {"a": observed}}
        follows = after([young], ev.TimerFired(), group=group, **view)  # type: ignore[arg-type]
        assert len(follows.made) == made
        # An agent that registered with another leader gets the time in which agents reconnect.
        early = after([young], ev.TimerFired(), group=group, listening_since=registered + 1.0, **view)  # type: ignore[arg-type]
        assert early.made == [] or seconds > 11.0


def test_a_group_whose_instances_never_become_ready_backs_off() -> None:
    trend = Trend(failures=3, infra_hash="h")
    follows = after([member("a", **LATE)], ev.TimerFired(), size=1, observed={"a": unready()}, trend=trend)
    assert follows["a"].state is State.DRAINING
    assert follows.made == []
    assert "back-off" in follows.codes()


def test_an_instance_that_becomes_ready_while_it_drains_is_kept() -> None:
    leaving = member("a", State.DRAINING, cause=Cause.UNHEALTHY, **LATE)
    still = after([leaving], ev.TimerFired(), size=1, observed={"a": unready()})
    assert still["a"].state is State.DRAINING
    report = ev.ReadinessReported(name("a"), files=True)
    follows = after([leaving, member("n", State.STARTING)], report, size=1, observed={"a": unready()})
    assert follows["a"].state is State.RUNNING
    assert follows["a"].ready_at == NOW


def failing(seconds: float) -> Observation:
    return unready(FAILING, failing_since=NOW - seconds)


@pytest.mark.parametrize(
    ("group", "seconds", "made"),
    [
        pytest.param({}, 9000.0, 0, id="off by default"),
        pytest.param({"unhealthy_after": 60.0}, 59.0, 0, id="not for long enough"),
        pytest.param({"unhealthy_after": 60.0}, 61.0, 1, id="unhealthy: its replacement is made first"),
    ],
)
def test_failing_checks(group: dict[str, Any], seconds: float, made: int) -> None:
    follows = after([member("a")], ev.TimerFired(), group=desired(1, **group), observed={"a": failing(seconds)})
    assert [m.replaces for m in follows.made] == [name("a")] * made
    assert follows["a"].state is State.RUNNING


@pytest.mark.parametrize(
    ("taker", "state"),
    [
        pytest.param(unready(), State.RUNNING, id="its replacement is not ready"),
        pytest.param(healthy(), State.DRAINING, id="it is"),
    ],
)
def test_an_unhealthy_instance_is_removed_when_its_replacement_is_ready(taker: Observation, state: State) -> None:
    members = [member("a"), replacement("n", "a", Cause.UNHEALTHY)]
    observed = {"a": failing(61.0), "n": taker}
    follows = after(members, ev.TimerFired(), group=desired(1, unhealthy_after=60.0), observed=observed)
    assert follows["a"].state is state


def test_a_check_that_passes_again_drops_the_replacement() -> None:
    members = [member("a"), replacement("n", "a", Cause.UNHEALTHY, State.STARTING)]
    follows = after(members, ev.TimerFired(), group=desired(1, unhealthy_after=60.0))
    assert follows["n"].state is State.DELETING
    assert follows["a"].state is State.RUNNING


def four(unhealthy: int, **fields: Any) -> After:
    members = [replace(member(x), **fields) for x in "abcd"]
    observed = {x: failing(61.0) for x in "abcd"[:unhealthy]}
    return after(members, ev.TimerFired(), group=desired(4, unhealthy_after=60.0), observed=observed)


@pytest.mark.parametrize(
    ("unhealthy", "made"),
    [pytest.param(2, 2, id="two of four"), pytest.param(3, 1, id="three of four: the cause is probably shared")],
)
def test_many_at_once_are_replaced_one_by_one(unhealthy: int, made: int) -> None:
    follows = four(unhealthy)
    assert len(follows.made) == made
    assert ("not-ready" in follows.codes()) is (made == 1)


def test_many_that_never_became_ready_are_removed_one_by_one_after_a_change_of_leaders() -> None:
    """They may have served. Without this, none of them is removed and the group is stuck."""
    members = [member(x, **LATE) for x in "abc"]
    observed = {x: unready() for x in "abc"}
    follows = after(members, ev.TimerFired(), size=3, observed=observed, listening_since=NOW - 100.0)
    assert follows.in_state(State.DRAINING) == "a"
    again = after(
        list(follows.members.values()),
        ev.TimerFired(),
        size=3,
        observed=observed,
        trend=follows.decision.trend,
        listening_since=NOW - 100.0,
    )
    assert again.in_state(State.DRAINING) == "a"


def test_many_instances_that_never_served_are_removed_at_once() -> None:
    since = {"registered": NOW - 700.0, "ready_at": None}
    follows = four(3, **since)
    assert follows.in_state(State.DRAINING) == "abc"


def test_replacing_one_by_one_is_reported_once() -> None:
    members = [member(x) for x in "abc"]
    observed = {x: failing(61.0) for x in "abc"}
    group = desired(3, unhealthy_after=60.0)
    first = after(members, ev.TimerFired(), group=group, observed=observed)
    assert first.decision.trend.unready
    again = after(
        list(first.members.values()), ev.TimerFired(), group=group, observed=observed, trend=first.decision.trend
    )
    assert again.codes() == set()
    assert again.made == []
    over = after(members, ev.TimerFired(), group=group, trend=first.decision.trend)
    assert not over.decision.trend.unready


@pytest.mark.parametrize(
    ("members", "observed", "left"),
    [
        pytest.param([member("a"), member("b")], {"b": unready()}, "b", id="not ready before ready"),
        pytest.param([member("a", infra_hash="x"), member("b")], {"b": unready()}, "b", id="not ready before drifted"),
        pytest.param([member("a"), member("b")], {"b": healthy(ready=False)}, "a", id="without a report: neither"),
    ],
)
def test_scaling_down_removes_unready_instances_first(
    members: list[Instance], observed: dict[str, Observation], left: str
) -> None:
    assert after(members, ev.GroupChanged(), size=1, observed=observed).in_state(State.DRAINING) == left
