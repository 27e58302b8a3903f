"""Scaling: what counts, what is removed first, which drains are cancelled; and an applied plan leaves nothing to do."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.core.decide import decide
from nstance.model import events as ev
from nstance.model.decision import CreateVm, Decision, DeleteVm, View
from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, Put, State
from nstance.model.observation import Observation
from unit.core.core_situation import (
    KEY,
    NOW,
    after,
    desired,
    fresh_ids,
    healthy,
    lost,
    member,
    name,
    observation,
    replacement,
)


@pytest.mark.parametrize(
    ("size", "members", "made", "left"),
    [
        pytest.param(2, [], 2, "", id="empty group fills up"),
        pytest.param(1, [member("a", State.PENDING)], 0, "", id="an unknown create counts as capacity"),
        pytest.param(1, [member("a", State.STARTING)], 0, "", id="starting counts"),
        pytest.param(1, [member("a", State.DRAINING, cause=Cause.SPOT)], 1, "", id="draining is no capacity"),
        pytest.param(1, [member("a", State.DELETING)], 1, "", id="deleting is no capacity"),
        pytest.param(1, [member("a", State.FAILED)], 1, "", id="a failed create is tried again at once"),
        pytest.param(1, [member("a", on_demand=True)], 1, "", id="on-demand is never counted"),
        pytest.param(0, [member("a", on_demand=True)], 0, "", id="on-demand is never scaled down"),
        pytest.param(1, [member("a"), member("b")], 0, "a", id="oldest is removed first"),
        pytest.param(1, [member("a"), member("b", State.STARTING)], 0, "b", id="unregistered before registered"),
        pytest.param(1, [member("a"), member("b", suspect=True)], 0, "b", id="suspect before healthy"),
        pytest.param(1, [member("a"), member("b", infra_hash="x")], 0, "b", id="drifted before current"),
        pytest.param(
            2,
            [member("a"), member("b", suspect=True), member("c", State.PENDING), member("d")],
            0,
            "bc",
            id="unregistered, then suspect",
        ),
        pytest.param(
            1,
            [member("a", infra_hash="x"), member("b", suspect=True)],
            1,
            "b",
            id="suspect before drifted; the drifted one is rotated then",
        ),
        pytest.param(
            2,
            [member("a"), member("b", removal_rank=1), member("c", removal_rank=0), member("d", State.STARTING)],
            0,
            "bc",
            id="chosen ones before all others",
        ),
        pytest.param(
            2,
            [member("a"), member("b", State.STARTING), member("c", removal_rank=0)],
            0,
            "c",
            id="a chosen one before one that never registered",
        ),
        pytest.param(
            1,
            [
                member("a", suspect=True),
                replacement("n", "a", Cause.UNHEALTHY, State.STARTING, removal_rank=0),
                member("b", State.STARTING),
            ],
            0,
            "an",
            id="with a chosen replacement goes the place that it shares",
        ),
        pytest.param(2, [member("a"), member("b", removal_rank=0)], 0, "", id="a chosen one stays while the size does"),
        pytest.param(0, [member("a"), member("b", State.DRAINING)], 0, "a", id="to zero, and the drain continues"),
        pytest.param(
            1,
            [member("a", suspect=True), replacement("n", "a", Cause.UNHEALTHY, State.STARTING)],
            0,
            "",
            id="a replacement shares the place",
        ),
        pytest.param(
            0,
            [member("a", suspect=True), replacement("n", "a", Cause.UNHEALTHY, State.STARTING)],
            0,
            "an",
            id="both in the place are removed",
        ),
        pytest.param(
            2,
            [
                *(member(x, infra_hash="x") for x in "abc"),
                *(replacement(n, o, Cause.DRIFT, State.STARTING) for n, o in ("na", "ob", "pc")),
            ],
            0,
            "an",
            id="one place is freed, the other replacements stay",
        ),
        pytest.param(
            1,
            [member("a", infra_hash="x"), replacement("n", "a", Cause.DRIFT), member("b", infra_hash="x")],
            0,
            "ab",
            id="a registered replacement is kept rather than a drifted instance",
        ),
    ],
)
def test_scale(size: int, members: list[Instance], made: int, left: str) -> None:
    silent = {m.id[-1]: lost(30.0) for m in members if m.suspect}
    follows = after(members, ev.GroupChanged(), group=desired(size, max_surge=9), observed=silent)
    before = {m.id: m for m in members}
    gone = (m.id[-1] for m in follows.members.values() if m.id in before and before[m.id].counts and not m.counts)
    assert "".join(sorted(gone)) == left
    assert len(follows.made) == made


def test_scaling_down_keeps_a_registered_replacement_of_a_suspect() -> None:
    there = replacement("n", "a", Cause.UNHEALTHY)
    follows = after([member("a", suspect=True), there, member("x")], size=1, observed={"a": lost(30.0)})
    assert follows.in_state(State.RUNNING) == "x"
    follows = after([member("a", suspect=True), there], group=desired(1), observed={"a": lost(30.0)})
    assert follows.in_state(State.RUNNING) == "an"


@pytest.mark.parametrize(
    ("drains", "observed", "cancelled"),
    [
        pytest.param("abc", {}, "bc", id="newest first"),
        pytest.param("abc", {"c": healthy(vm=VmState.DOWN)}, "ab", id="not one whose VM is gone"),
        pytest.param("abc", {"c": lost(20.0)}, "ab", id="not an unresponsive one"),
        pytest.param("abc", {"c": healthy(notice=NoticeKind.SPOT)}, "ab", id="not one that is about to end"),
    ],
)
def test_growing_cancels_drains(drains: str, observed: dict[str, Observation], cancelled: str) -> None:
    """A size that changes back and forth causes little churn."""
    follows = after([member(x, State.DRAINING) for x in drains], ev.GroupChanged(), size=2, observed=observed)
    assert follows.in_state(State.RUNNING) == cancelled
    assert follows.made == []
    assert all(follows[x].drain is None and follows[x].cause is None for x in cancelled)
    assert "drain-cancelled" in follows.codes()


@pytest.mark.parametrize(
    "drain",
    [
        pytest.param(member("a", State.DRAINING, cause=Cause.REQUESTED), id="deletion requested"),
        pytest.param(member("a", State.DRAINING, infra_hash="x"), id="drifted"),
        pytest.param(member("a", State.DRAINING, on_demand=True), id="on-demand"),
        pytest.param(member("a", State.DELETING, cause=Cause.SCALE_DOWN), id="a tombstone is never taken back"),
    ],
)
def test_growing_creates_an_instance(drain: Instance) -> None:
    follows = after([drain], ev.GroupChanged(), size=1)
    assert len(follows.made) == 1
    assert follows["a"].state is drain.state


def test_flapping_sizes_churn_nothing() -> None:
    members = [member(x) for x in "abc"]
    for _ in range(20):
        down = after(members, ev.GroupChanged(), size=0)
        assert down.in_state(State.DRAINING) == "abc"
        up = after(list(down.members.values()), ev.GroupChanged(), size=3)
        members = list(up.members.values())
        assert (up.in_state(State.RUNNING), up.made) == ("abc", [])


@pytest.mark.parametrize(
    ("view", "state"),
    [
        pytest.param({}, State.DRAINING, id="group deleted: scale-down to zero, with drains"),
        pytest.param({"listed": False}, State.RUNNING, id="not before the listing"),
        pytest.param({"mass_absence": True}, State.RUNNING, id="not after a listing that looks wrong"),
    ],
)
def test_group_deletion(view: dict[str, Any], state: State) -> None:
    follows = after([member("a"), member("b", on_demand=True)], ev.GroupChanged(), **{"desired": None} | view)
    assert follows["a"].state is state
    assert follows["b"].state is State.RUNNING


@pytest.mark.parametrize(
    ("kept", "state", "seconds"),
    [(25.0, State.DRAINING, 25.0), (0.0, State.DELETING, None), (None, State.DRAINING, 40.0)],
)
def test_a_deleted_group_drains_by_its_own_timeout(kept: float | None, state: State, seconds: float | None) -> None:
    """Deleting a group scales it down to zero: its instances remember the drain timeout."""
    policy = Policy(default_drain_timeout=40.0)
    follows = after([member("a", drain_timeout=kept)], ev.GroupChanged(), desired=None, policy=policy)
    assert follows["a"].state is state
    drain = follows["a"].drain
    assert (drain.deadline - drain.started if drain is not None else None) == seconds


def test_instances_remember_their_groups_drain_timeout() -> None:
    policy = Policy(default_drain_timeout=40.0)
    made = after([], ev.GroupChanged(), group=desired(1, drain_timeout=25.0), policy=policy).made
    assert [m.drain_timeout for m in made] == [25.0]
    changed = after(
        [member("a", drain_timeout=25.0)], ev.GroupChanged(), group=desired(1, drain_timeout=7.0), policy=policy
    )
    assert changed["a"].drain_timeout == 7.0
    default = after(
        [member("a", drain_timeout=25.0)], ev.GroupChanged(), group=desired(1, drain_timeout=40.0), policy=policy
    )
    assert default["a"].drain_timeout is None
    resting = after(
        [member("a", drain_timeout=7.0)], ev.GroupChanged(), group=desired(1, drain_timeout=7.0), policy=policy
    )
    assert resting.decision.changes == ()


def test_a_group_deleted_while_instances_start() -> None:
    members = [
        member("a", State.PENDING, created=NOW),
        member("b", State.STARTING),
        member("c", suspect=True),
        replacement("n", "c", Cause.UNHEALTHY, State.STARTING),
        member("d", State.DRAINING),
    ]
    follows = after(members, ev.GroupChanged(), desired=None, observed={"c": lost(30.0)})
    assert follows.in_state(State.DELETING) == "abn"
    assert follows.in_state(State.DRAINING) == "cd"
    assert follows.effects(CreateVm) == ""


def test_a_paused_group_plans_nothing_and_finishes_started_work() -> None:
    members = [
        member("a", State.PENDING, created=NOW),
        member("b", State.DELETING),
        member("c", State.DRAINING, deadline=NOW - 5.0),
        member("d", infra_hash="x"),
    ]
    follows = after(members, ev.VmChecked(name("d"), VmState.DOWN), group=desired(9, paused=True))
    assert follows.made == []
    assert follows.in_state(State.DRAINING) == "c"
    assert follows.in_state(State.RUNNING) == "d"
    assert (follows.effects(CreateVm), follows.effects(DeleteVm)) == ("a", "b")


def test_urgent_work_gets_its_vm_first() -> None:
    """Unhealthy, then forced expiry, then drift: the order of creations is the order of priority."""
    members = [member("a", suspect=True), member("b", infra_hash="old"), member("c", created=NOW - 500.0)]
    group = desired(3, max_surge=2)
    follows = after(members, group=group, observed={"a": lost(30.0)}, policy=Policy(forced_age=400.0))
    assert [m.replaces for m in sorted(follows.made, key=lambda m: m.id)] == [name("a"), name("c")]
    whole = after(members[1:], group=desired(2, max_surge=2), policy=Policy(forced_age=400.0))
    assert [m.replaces for m in sorted(whole.made, key=lambda m: m.id)] == [name("c"), name("b")]


def test_a_recovered_chain_keeps_the_first() -> None:
    chain = [
        member("a", suspect=True),
        replacement("b", "a", Cause.UNHEALTHY, suspect=True),
        replacement("c", "b", Cause.UNHEALTHY),
    ]
    observed = {"a": lost(30.0), "b": lost(30.0)}
    follows = after(chain, ev.AgentConnected(name("a")), size=1, observed=observed)
    assert follows.in_state(State.RUNNING) == "a"


@pytest.mark.parametrize("mass_absence", [True, False])
@pytest.mark.parametrize("last", [State.PENDING, State.RUNNING])
@pytest.mark.parametrize("end", ["spot", "gone"])
def test_in_a_chain_of_replacements_the_place_is_passed_on(end: str, last: State, mass_absence: bool) -> None:
    """Otherwise the replacement of a replacement gets its own place, and the first instance a second replacement."""
    chain = [
        member("a", suspect=True),
        replacement("b", "a", Cause.UNHEALTHY),
        replacement("c", "b", Cause.SPOT, last),
    ]
    event = (
        ev.NoticeReceived(name("b"), ev.NoticeKind.SPOT, NOW + 60.0)
        if end == "spot"
        else ev.VmChecked(name("b"), ev.VmState.DELETED)
    )
    follows = after(chain, event, size=1, observed={"a": lost(30.0)}, mass_absence=mass_absence)
    assert not follows["b"].counts
    assert (follows["c"].state, follows["c"].replaces, follows["c"].replaces_for) == (last, name("a"), Cause.UNHEALTHY)
    assert follows["a"].state is State.RUNNING
    assert follows.made == []


def test_a_place_that_was_passed_on_is_kept_by_an_unresponsive_instance() -> None:
    chain = [
        member("a", suspect=True),
        replacement("b", "a", Cause.UNHEALTHY),
        replacement("c", "b", Cause.SPOT),
    ]
    observed = {"a": lost(30.0), "c": lost(30.0)}
    follows = after(chain, ev.VmChecked(name("b"), ev.VmState.DELETED), size=1, observed=observed)
    assert follows["c"].suspect
    assert follows["c"].replaces == name("a")


STATES = st.sampled_from(State)
CAUSES = st.sampled_from([Cause.UNHEALTHY, Cause.DRIFT, Cause.SPOT, Cause.REQUESTED, Cause.ELIGIBLE_EXPIRY])
TIMES = st.sampled_from([0.0, 1.0, 9.0, 11.0, 59.0, 61.0, 130.0, 400.0])


@st.composite
def situations(draw: st.DrawFn) -> tuple[View, Policy]:
    letters = "abcdefgh"[: draw(st.integers(0, 8))]
    members, observed = [], {}
    for position, letter in enumerate(letters):
        state = draw(STATES)
        registered = state in (State.RUNNING, State.DRAINING)
        fields: dict[str, Any] = {
            "created": NOW - draw(TIMES),
            "on_demand": draw(st.integers(0, 5)) == 0,
            "infra_hash": draw(st.sampled_from(["h", "h", "x"])),
            "suspect": registered and draw(st.booleans()),
            "replace_wanted": state is State.RUNNING and draw(st.integers(0, 9)) == 0,
            "seen": draw(st.booleans()),
        }
        if state is State.DRAINING:
            fields |= {"cause": draw(CAUSES | st.just(Cause.SCALE_DOWN)), "deadline": NOW + draw(TIMES) - 60.0}
        if position and not fields["on_demand"] and draw(st.booleans()):
            fields |= {"replaces": name(letters[draw(st.integers(0, position - 1))]), "replaces_for": draw(CAUSES)}
        members.append(member(letter, state, **fields))
        if draw(st.integers(0, 4)):
            vm = draw(st.sampled_from(VmState))
            notice = draw(st.sampled_from([None, None, None, *NoticeKind]))
            observed[name(letter)] = observation(
                last_seen=NOW - draw(TIMES),
                connected=registered and draw(st.booleans()),
                seen_this_term=registered and draw(st.booleans()),
                lost_at=NOW - draw(TIMES) if draw(st.booleans()) else None,
                restarting=draw(st.booleans()),
                notice=notice,
                notice_at=NOW - draw(TIMES),
                notice_deadline=NOW + draw(TIMES) if notice is not None and draw(st.booleans()) else None,
                vm=vm,
                checked_at=None if vm is VmState.UNKNOWN else NOW - draw(TIMES),
                absent_since=NOW - draw(TIMES) if vm is VmState.ABSENT else None,
                checking=draw(st.booleans()),
                checks=draw(st.integers(0, 6)),
                check_due=NOW + draw(TIMES) - 10.0 if draw(st.booleans()) else None,
                creating=draw(st.booleans()),
                deleting=draw(st.booleans()),
                delete_accepted_at=NOW - draw(TIMES) if draw(st.booleans()) else None,
            )
    group = desired(
        draw(st.integers(0, 6)),
        max_surge=draw(st.integers(0, 2)),
        max_unavailable=draw(st.integers(0, 2)),
        drain_timeout=draw(st.sampled_from([0.0, 60.0])),
        paused=draw(st.integers(0, 9)) == 0,
    )
    view = View(
        key=KEY,
        desired=None if draw(st.integers(0, 9)) == 0 else group,
        members={m.id: m for m in members},
        observations=observed,
        listed=draw(st.integers(0, 5)) != 0,
        listening_since=NOW - draw(TIMES),
        reconnect_grace=30.0,
        mass_silence=draw(st.integers(0, 5)) == 0,
        mass_absence=draw(st.integers(0, 5)) == 0,
        operator_seen=draw(st.sampled_from([None, NOW])),
    )
    policy = Policy(
        eligible_age=draw(st.sampled_from([None, 100.0])),
        forced_age=draw(st.sampled_from([None, 300.0])),
        ondemand_age=draw(st.sampled_from([None, 100.0])),
    )
    return view, policy


def apply(view: View, decision: Decision) -> View:
    members = dict(view.members)
    for change in decision.changes:
        if isinstance(change, Put):
            members[change.instance.id] = change.instance
        else:
            del members[change.id]
    return replace(
        view, members=members, observations={**view.observations, **decision.observations}, trend=decision.trend
    )


@settings(max_examples=300, deadline=None)
@given(situations())
def test_any_plan_settles(situation: tuple[View, Policy]) -> None:
    """From any state: deciding again at the same time changes nothing, calls nothing, and wakes at the same time."""
    view, policy = situation
    first = decide(view, (ev.TimerFired(),), now=NOW, policy=policy, fresh_ids=fresh_ids())
    second = decide(apply(view, first), (), now=NOW, policy=policy, fresh_ids=iter(()))
    assert second.changes == ()
    assert second.effects == ()
    assert second.wake_at == first.wake_at
    assert first.wake_at is None or first.wake_at > NOW


def test_an_order_of_removal_replaces_the_one_before_and_removes_nothing() -> None:
    members = [member("a"), member("b", removal_rank=0), member("c"), member("d", State.DRAINING)]
    order = ev.RemovalOrdered((name("c"), name("a"), name("d")), by="opr-1")
    follows = after(members, order, size=3)
    changed = {each.instance.id: each.instance for each in follows.decision.changes if isinstance(each, Put)}
    assert {id: each.removal_rank for id, each in changed.items()} == {name("a"): 1, name("b"): None, name("c"): 0}
    assert {each.state for each in changed.values()} == {State.RUNNING}
    assert not [each for each in follows.decision.effects if isinstance(each, DeleteVm)]
