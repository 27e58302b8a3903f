"""Voluntary work: rotation within max_surge and max_unavailable, expiry, requested replacements."""

from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import Trend
from nstance.model.group import Policy, UpdateOrder
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation
from unit.core.core_situation import NOW, after, desired, lost, member, name, observation, replacement, unready

OLD = [member(x, infra_hash="old") for x in "abc"]
ASKED = {"n": observation(last_seen=0.0, creating=True)}


@pytest.mark.parametrize(
    ("surge", "unavailable", "made", "left"),
    [
        pytest.param(1, 0, 1, "", id="default: one at a time, replacement first"),
        pytest.param(2, 0, 2, "", id="two at a time"),
        pytest.param(9, 0, 3, "", id="all at once"),
        pytest.param(0, 1, 0, "a", id="one is removed first and keeps its place until it is gone"),
        pytest.param(0, 2, 0, "ab", id="two go first"),
        pytest.param(1, 1, 1, "b", id="one replaced first, one removed first"),
        pytest.param(2, 2, 2, "c", id="two replaced first, the last removed first"),
        pytest.param(0, 0, 1, "", id="both zero would mean never: replacement first"),
    ],
)
def test_limits(surge: int, unavailable: int, made: int, left: str) -> None:
    group = desired(3, max_surge=surge, max_unavailable=unavailable)
    follows = after(OLD, ev.GroupChanged(), group=group)
    assert len(follows.made) == made
    assert follows.in_state(State.DRAINING) == left
    assert all(m.infra_hash == "h" for m in follows.made)


@pytest.mark.parametrize(
    ("surge", "unavailable", "left"),
    [
        pytest.param(1, 0, "", id="default: replacement first"),
        pytest.param(3, 3, "", id="one at a time, whatever the limits allow"),
        pytest.param(0, 1, "a", id="never more than the size: removed first"),
        pytest.param(0, 0, "", id="both zero would mean never: replacement first"),
    ],
)
def test_eligible_expiry_obeys_the_limits(surge: int, unavailable: int, left: str) -> None:
    members = [member(x, created=NOW - 1000.0) for x in "abc"]
    group = desired(3, max_surge=surge, max_unavailable=unavailable)
    follows = after(members, ev.TimerFired(), group=group, policy=Policy(eligible_age=500.0))
    assert [m.replaces for m in follows.made] == ([] if left else [name("a")])
    assert follows.in_state(State.DRAINING) == left
    assert "eligible-expiry" in follows.codes() or not left


@pytest.mark.parametrize(
    ("state", "suspect", "left"),
    [
        pytest.param(State.PENDING, False, "", id="not made yet"),
        pytest.param(State.STARTING, False, "", id="not registered yet"),
        pytest.param(State.RUNNING, False, "a", id="registered: the old one is removed"),
        pytest.param(State.RUNNING, True, "", id="registered, but unresponsive"),
    ],
)
def test_the_old_instance_is_removed_when_the_new_one_is_ready(state: State, suspect: bool, left: str) -> None:
    there = replacement("n", "a", Cause.DRIFT, state, suspect=suspect)
    observed = ASKED if state is State.PENDING else {"n": lost(30.0)} if suspect else {}
    follows = after([*OLD, there], ev.TimerFired(), size=3, observed=observed)
    assert follows.in_state(State.DRAINING) == left


def test_a_starting_replacement_takes_no_place() -> None:
    there = replacement("n", "a", Cause.DRIFT, State.STARTING)
    others = [member(x) for x in "bc"]
    follows = after([OLD[0], *others, there], ev.TimerFired(), group=desired(3, max_surge=1, max_unavailable=1))
    assert follows.in_state(State.DRAINING) == ""


@pytest.mark.parametrize(
    ("members", "observed", "trend"),
    [
        pytest.param([*OLD[:2], member("c", suspect=True, infra_hash="old")], {"c": lost(30.0)}, Trend(), id="suspect"),
        pytest.param(OLD, {}, Trend(failures=3, retry_at=NOW + 60.0, infra_hash="h"), id="backing off"),
    ],
)
def test_rotation_waits(members: list[Instance], observed: dict[str, Observation], trend: Trend) -> None:
    """Nothing starts and nothing is removed while something is wrong."""
    group = desired(3, max_surge=1, max_unavailable=1)
    follows = after(members, ev.GroupChanged(), group=group, observed=observed, trend=trend)
    assert {m.replaces_for for m in follows.made} <= {Cause.UNHEALTHY}
    assert follows.in_state(State.DRAINING) == ""


def test_max_unavailable_holds_while_something_else_is_missing() -> None:
    there = [*OLD[:2], replacement("n", "a", Cause.DRIFT), member("s", State.STARTING)]
    assert after(there, size=3).in_state(State.DRAINING) == ""
    assert after(there, group=desired(3, max_unavailable=1)).in_state(State.DRAINING) == "a"


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
def test_a_reverted_change_keeps_the_old_instance(state: State) -> None:
    there = replacement("n", "a", Cause.DRIFT, state, infra_hash="new")
    follows = after([member("a"), there], ev.GroupChanged(), size=1)
    assert follows["a"].state is State.RUNNING
    assert not follows["n"].counts
    assert follows.made == []


@pytest.mark.parametrize(
    ("state", "fields", "goes"),
    [
        pytest.param(State.STARTING, {}, True, id="not registered"),
        pytest.param(State.RUNNING, {"ready_at": None}, True, id="not ready: it may never be"),
        pytest.param(State.RUNNING, {}, False, id="ready: it serves until it is rotated itself"),
    ],
)
def test_a_replacement_of_an_outdated_configuration_is_created_again(
    state: State, fields: dict[str, Any], goes: bool
) -> None:
    there = replacement("n", "a", Cause.DRIFT, state, infra_hash="older", **fields)
    observed = {"n": unready()} if "ready_at" in fields else {}
    follows = after([OLD[0], there], ev.GroupChanged(), group=desired(1, drain_timeout=0.0), observed=observed)
    assert (follows["n"].state is State.DELETING) is goes
    assert follows["a"].state is (State.RUNNING if goes else State.DELETING)
    assert follows.made == []  # its VM is still there: one more would be too many
    if goes:
        gone = after([OLD[0]], ev.GroupChanged(), size=1)
        assert [m.replaces for m in gone.made] == [name("a")]


@pytest.mark.parametrize(
    ("failures", "state"),
    [
        pytest.param(0, State.STARTING, id="the group waits for it: it is rotated later"),
        pytest.param(2, State.DELETING, id="what failed is not waited for once it was corrected"),
    ],
)
def test_starting_when_the_configuration_changes(failures: int, state: State) -> None:
    starts = member("a", State.STARTING, infra_hash="old")
    follows = after([starts], ev.GroupChanged(), size=1, trend=Trend(failures=failures, infra_hash="old"))
    assert follows["a"].state is state


def test_rotation_runs_to_its_end() -> None:
    """Step by step, with every replacement becoming ready and every drain taking a while: three replacements, never fewer than
    three ready, never more than four there."""
    members: list[Instance] = list(OLD)
    gone: list[str] = []
    for _ in range(20):
        before = {m.id for m in members if m.state is State.DRAINING}
        follows = after(members, ev.TimerFired(), size=3)
        made = {m.id for m in follows.made}
        gone += [m.id[-1] for m in members if m.id in before]
        members = [m for m in follows.members.values() if m.id not in made and m.id not in before]
        # Who was made is ready in the next round, under an ID of the form that the tables use.
        members += [member("xyz"[len(gone)], replaces=m.replaces, replaces_for=m.replaces_for) for m in follows.made]
        assert len(members) <= 4
        assert sum(m.state is State.RUNNING for m in members) >= 3
    assert sorted(m.id[-1] for m in members) == ["x", "y", "z"]
    assert gone == ["a", "b", "c"]


AGED = Policy(eligible_age=50.0)
YOUNG = NOW - 10.0


@pytest.mark.parametrize(
    ("members", "observed", "replaced"),
    [
        pytest.param([member("a"), member("b", created=NOW - 200.0)], {}, "b", id="the oldest, one at a time"),
        pytest.param([member("a", created=YOUNG), member("b", created=YOUNG)], {}, "", id="none is old"),
        pytest.param([member("a"), member("b", State.STARTING)], {}, "", id="not while the group is not whole"),
        pytest.param(
            [member("a"), member("b", suspect=True)], {"b": lost(30.0)}, "b", id="not while one is suspect: that one"
        ),
        pytest.param(
            [member("a"), member("b"), replacement("n", "b", Cause.ELIGIBLE_EXPIRY, State.STARTING, created=YOUNG)],
            {},
            "",
            id="not while another is being renewed",
        ),
        pytest.param([member("a"), member("b", infra_hash="x")], {}, "b", id="drift comes first"),
    ],
)
def test_eligible_expiry(members: list[Instance], observed: dict[str, Observation], replaced: str) -> None:
    follows = after(members, ev.TimerFired(), size=2, policy=AGED, observed=observed)
    assert "".join(m.replaces[-1] for m in follows.made if m.replaces) == replaced


def test_ages_have_a_timer() -> None:
    healthy_for_long = Policy(suspect_after=1e6, eligible_age=150.0, forced_age=300.0, ondemand_age=120.0)
    assert after([member("a")], size=1, policy=healthy_for_long).decision.wake_at == NOW + 50.0
    alone = after([member("a", on_demand=True)], size=0, policy=healthy_for_long)
    assert alone.decision.wake_at == NOW + 20.0
    later = Policy(suspect_after=1e6, forced_age=300.0)
    assert after([member("a")], size=1, policy=later).decision.wake_at == NOW + 200.0


FORCED = Policy(forced_age=50.0)


@pytest.mark.parametrize(
    ("limits", "made", "left"),
    [
        pytest.param({}, "a", "", id="default: one at a time, replacement first"),
        pytest.param({"max_surge": 2}, "ab", "", id="two at a time"),
        pytest.param({"max_surge": 2, "order": UpdateOrder.SERIAL}, "a", "", id="one after the other"),
        pytest.param({"max_surge": 0, "max_unavailable": 1}, "", "a", id="one is removed first"),
        pytest.param({"canary": 1}, "a", "", id="canaries are not for it"),
    ],
)
def test_forced_expiry_obeys_the_limits(limits: dict[str, Any], made: str, left: str) -> None:
    """All of a group that were created together were replaced at once, also those of a quorum."""
    members = [member(x) for x in "abc"]
    follows = after(members, ev.TimerFired(), group=desired(3, **limits), policy=FORCED)
    assert "".join(m.replaces[-1] for m in follows.made if m.replaces) == made
    assert follows.in_state(State.DRAINING) == left


@pytest.mark.parametrize(
    ("state", "observed", "left"),
    [
        pytest.param(State.PENDING, {"n": observation(last_seen=0.0, creating=True)}, "", id="not made yet"),
        pytest.param(State.STARTING, {}, "", id="made, not registered yet"),
        pytest.param(State.RUNNING, {"n": unready()}, "", id="not ready: it may have no files"),
        pytest.param(State.RUNNING, {}, "a", id="ready"),
    ],
)
def test_forced_expiry_removes_for_a_ready_replacement(
    state: State, observed: dict[str, Observation], left: str
) -> None:
    """A VM that had just been created was enough, and a template that lacks a secret cost all instances their place."""
    there = replacement("n", "a", Cause.FORCED_EXPIRY, state, created=YOUNG)
    follows = after([member("a"), member("b"), there], ev.TimerFired(), size=2, policy=FORCED, observed=observed)
    assert follows.in_state(State.DRAINING) == left
    assert follows.made == []


def test_forced_expiry_counts_what_is_under_way() -> None:
    """An unresponsive instance has its replacement already: one more VM would be too many."""
    members = [member("a", suspect=True), member("b")]
    follows = after(members, size=2, observed={"a": lost(30.0)}, policy=FORCED)
    assert [m.replaces for m in follows.made] == [name("a")]


@pytest.mark.parametrize(
    ("instance", "state"),
    [
        pytest.param(member("a", on_demand=True), State.DRAINING, id="past its age: drained, not replaced"),
        pytest.param(member("a", on_demand=True, created=YOUNG), State.RUNNING, id="young"),
    ],
)
def test_on_demand_expiry(instance: Instance, state: State) -> None:
    follows = after([instance], ev.TimerFired(), size=0, policy=Policy(ondemand_age=50.0))
    assert follows["a"].state is state
    assert follows.made == []


@pytest.mark.parametrize(
    ("instance", "group", "refusal"),
    [
        pytest.param(member("a"), desired(1), None, id="marked, and replaced first"),
        pytest.param(member("a", on_demand=True), desired(0), "on-demand", id="on-demand is never replaced"),
        pytest.param(member("a", State.DRAINING), desired(0), "ending", id="already draining"),
        pytest.param(member("a"), desired(1, paused=True), "paused", id="paused"),
    ],
)
def test_requested_replacement(instance: Instance, group: object, refusal: str | None) -> None:
    follows = after([instance], ev.ReplacementRequested(name("a")), group=group)  # type: ignore[arg-type]
    assert [r.value for r in follows.decision.rejections.values()] == ([refusal] if refusal else [])
    assert len(follows.made) == (refusal is None)
    assert follows["a"].state is instance.state


def test_a_requested_replacement_survives_a_failed_create() -> None:
    """The request is in the record, so it is repeated, also by the next leader."""
    wanted = member("a", replace_wanted=True)
    failed = member("n", State.FAILED, replaces=name("a"), replaces_for=Cause.REQUESTED)
    assert [m.replaces for m in after([wanted, failed], size=1).made] == [name("a")]
    done = after([wanted, replacement("n", "a", Cause.REQUESTED)], size=1)
    assert done["a"].cause is Cause.REQUESTED


def test_replacing_an_unregistered_instance_needs_no_drain() -> None:
    follows = after([member("a", State.STARTING)], ev.ReplacementRequested(name("a")), size=1)
    assert follows["a"].state is State.DELETING
    assert len(follows.made) == 1


@pytest.mark.parametrize(("seconds", "state"), [(4.0, State.RUNNING), (6.0, State.DRAINING)])
def test_an_old_instance_that_is_unready_for_a_moment_still_counts(seconds: float, state: State) -> None:
    """Its agent has just reconnected or is receiving new files: without it the group would be below its limit."""
    members = [
        member("a", infra_hash="old"),
        member("b", replaces=name("a"), replaces_for=Cause.DRIFT),
        member("c", State.STARTING),
    ]
    observed = {"a": unready(unready_since=NOW - seconds)}
    follows = after(members, ev.TimerFired(), size=2, observed=observed)
    assert follows["a"].state is state
