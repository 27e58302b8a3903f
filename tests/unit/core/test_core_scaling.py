"""Scaling: what counts, who goes first, what is taken back; and that a plan, once applied, leaves nothing to plan."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.core.decide import decide
from nstance.model import events as ev
from nstance.model.decision import CreateVm, Decision, DeleteVm, Observation, View
from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, Put, State
from unit.core.core_situation import KEY, NOW, after, desired, fresh_ids, healthy, lost, member, name, replacement


@pytest.mark.parametrize(
    ("size", "members", "made", "left"),
    [
        pytest.param(2, [], 2, "", id="empty group fills up"),
        pytest.param(1, [member("a", State.PENDING)], 0, "", id="an unknown create counts, so none is doubled"),
        pytest.param(1, [member("a", State.STARTING)], 0, "", id="starting counts"),
        pytest.param(1, [member("a", State.DRAINING, cause=Cause.SPOT)], 1, "", id="draining is no capacity"),
        pytest.param(1, [member("a", State.DELETING)], 1, "", id="deleting is no capacity"),
        pytest.param(1, [member("a", State.FAILED)], 1, "", id="a failed create is tried again at once"),
        pytest.param(1, [member("a", on_demand=True)], 1, "", id="on-demand is never counted"),
        pytest.param(0, [member("a", on_demand=True)], 0, "", id="on-demand is never scaled down"),
        pytest.param(1, [member("a"), member("b")], 0, "a", id="oldest goes first"),
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
        pytest.param(0, [member("a"), member("b", State.DRAINING)], 0, "a", id="to zero, and the drain goes on"),
        pytest.param(
            1,
            [member("a", suspect=True), replacement("n", "a", Cause.UNHEALTHY, State.STARTING)],
            0,
            "",
            id="a newcomer shares the place",
        ),
        pytest.param(
            0,
            [member("a", suspect=True), replacement("n", "a", Cause.UNHEALTHY, State.STARTING)],
            0,
            "an",
            id="the whole place goes",
        ),
        pytest.param(
            2,
            [
                *(member(x, infra_hash="x") for x in "abc"),
                *(replacement(n, o, Cause.DRIFT, State.STARTING) for n, o in ("na", "ob", "pc")),
            ],
            0,
            "an",
            id="one place goes, the other newcomers stay",
        ),
        pytest.param(
            1,
            [member("a", infra_hash="x"), replacement("n", "a", Cause.DRIFT), member("b", infra_hash="x")],
            0,
            "ab",
            id="a newcomer that has registered is kept rather than one that drifted",
        ),
    ],
)
def test_scale(size: int, members: list[Instance], made: int, left: str) -> None:
    silent = {m.id[-1]: lost(30.0) for m in members if m.suspect}
    follows = after(members, ev.GroupChanged(), group=desired(size, max_surge=9), facts=silent)
    before = {m.id: m for m in members}
    gone = (m.id[-1] for m in follows.members.values() if m.id in before and before[m.id].counts and not m.counts)
    assert "".join(sorted(gone)) == left
    assert len(follows.made) == made


def test_a_registered_newcomer_outlives_the_suspect_it_replaces() -> None:
    there = replacement("n", "a", Cause.UNHEALTHY)
    follows = after([member("a", suspect=True), there, member("x")], size=1, facts={"a": lost(30.0)})
    assert follows.in_state(State.RUNNING) == "x"
    follows = after([member("a", suspect=True), there], group=desired(1), facts={"a": lost(30.0)})
    assert follows.in_state(State.RUNNING) == "an"


@pytest.mark.parametrize(
    ("drains", "facts", "cancelled"),
    [
        pytest.param("abc", {}, "bc", id="newest first"),
        pytest.param("abc", {"c": healthy(vm=VmState.DOWN)}, "ab", id="not one whose VM is gone"),
        pytest.param("abc", {"c": lost(20.0)}, "ab", id="not one that is silent"),
        pytest.param("abc", {"c": healthy(notice=NoticeKind.SPOT)}, "ab", id="not one that is about to end"),
    ],
)
def test_growing_takes_drains_back(drains: str, facts: dict[str, Observation], cancelled: str) -> None:
    """F12: bounded churn."""
    follows = after([member(x, State.DRAINING) for x in drains], ev.GroupChanged(), size=2, facts=facts)
    assert follows.in_state(State.RUNNING) == cancelled
    assert follows.made == []
    assert all(follows[x].drain is None and follows[x].cause is None for x in cancelled)
    assert "drain-cancelled" in follows.codes()


@pytest.mark.parametrize(
    "drain",
    [
        pytest.param(member("a", State.DRAINING, cause=Cause.REQUESTED), id="somebody asked for its deletion"),
        pytest.param(member("a", State.DRAINING, infra_hash="x"), id="drifted"),
        pytest.param(member("a", State.DRAINING, on_demand=True), id="on-demand"),
        pytest.param(member("a", State.DELETING, cause=Cause.SCALE_DOWN), id="a tombstone is never taken back"),
    ],
)
def test_growing_makes_a_new_one(drain: Instance) -> None:
    follows = after([drain], ev.GroupChanged(), size=1)
    assert len(follows.made) == 1
    assert follows["a"].state is drain.state


def test_flapping_sizes_churn_nothing() -> None:
    """F12."""
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
    """Deleting a group is scaling it down to zero: its instances remember how long it drains."""
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


def test_group_deleted_while_things_are_pending() -> None:
    members = [
        member("a", State.PENDING, created=NOW),
        member("b", State.STARTING),
        member("c", suspect=True),
        replacement("n", "c", Cause.UNHEALTHY, State.STARTING),
        member("d", State.DRAINING),
    ]
    follows = after(members, ev.GroupChanged(), desired=None, facts={"c": lost(30.0)})
    assert follows.in_state(State.DELETING) == "abn"
    assert follows.in_state(State.DRAINING) == "cd"
    assert follows.effects(CreateVm) == ""


def test_a_paused_group_rests_but_keeps_its_promises() -> None:
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
    """Forced expiry, then unhealthy, then scale-up: the order of creations is the order of priority."""
    members = [member("a", suspect=True), member("b", created=NOW - 500.0)]
    follows = after(members, size=3, facts={"a": lost(30.0)}, policy=Policy(forced_age=400.0))
    assert [m.replaces for m in sorted(follows.made, key=lambda m: m.id)] == [name("b"), name("a"), None]


def test_a_recovered_chain_keeps_the_first() -> None:
    chain = [
        member("a", suspect=True),
        replacement("b", "a", Cause.UNHEALTHY, suspect=True),
        replacement("c", "b", Cause.UNHEALTHY),
    ]
    facts = {"a": lost(30.0), "b": lost(30.0)}
    follows = after(chain, ev.AgentConnected(name("a")), size=1, facts=facts)
    assert follows.in_state(State.RUNNING) == "a"


@pytest.mark.parametrize("mass_absence", [True, False])
@pytest.mark.parametrize("last", [State.PENDING, State.RUNNING])
@pytest.mark.parametrize("end", ["spot", "gone"])
def test_in_a_chain_the_place_of_one_that_goes_is_handed_on(end: str, last: State, mass_absence: bool) -> None:
    """The replacement of a replacement got a place of its own, and the first one a second replacement (seed 5834)."""
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
    follows = after(chain, event, size=1, facts={"a": lost(30.0)}, mass_absence=mass_absence)
    assert not follows["b"].counts
    assert (follows["c"].state, follows["c"].replaces, follows["c"].replaces_for) == (last, name("a"), Cause.UNHEALTHY)
    assert follows["a"].state is State.RUNNING
    assert follows.made == []


def test_a_place_that_was_handed_on_is_kept_by_one_that_falls_silent() -> None:
    chain = [
        member("a", suspect=True),
        replacement("b", "a", Cause.UNHEALTHY),
        replacement("c", "b", Cause.SPOT),
    ]
    facts = {"a": lost(30.0), "c": lost(30.0)}
    follows = after(chain, ev.VmChecked(name("b"), ev.VmState.DELETED), size=1, facts=facts)
    assert follows["c"].suspect
    assert follows["c"].replaces == name("a")


STATES = st.sampled_from(State)
CAUSES = st.sampled_from([Cause.UNHEALTHY, Cause.DRIFT, Cause.SPOT, Cause.REQUESTED, Cause.ELIGIBLE_EXPIRY])
TIMES = st.sampled_from([0.0, 1.0, 9.0, 11.0, 59.0, 61.0, 130.0, 400.0])


@st.composite
def situations(draw: st.DrawFn) -> tuple[View, Policy]:
    letters = "abcdefgh"[: draw(st.integers(0, 8))]
    members, facts = [], {}
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
            facts[name(letter)] = Observation(
                last_seen=NOW - draw(TIMES),
                connected=registered and draw(st.booleans()),
                met=registered and draw(st.booleans()),
                lost=NOW - draw(TIMES) if draw(st.booleans()) else None,
                restarting=draw(st.booleans()),
                notice=notice,
                notice_at=NOW - draw(TIMES),
                notice_deadline=NOW + draw(TIMES) if notice is not None and draw(st.booleans()) else None,
                vm=vm,
                vm_at=None if vm is VmState.UNKNOWN else NOW - draw(TIMES),
                absent_since=NOW - draw(TIMES) if vm is VmState.ABSENT else None,
                checking=draw(st.booleans()),
                checks=draw(st.integers(0, 6)),
                check_due=NOW + draw(TIMES) - 10.0 if draw(st.booleans()) else None,
                creating=draw(st.booleans()),
                deleting=draw(st.booleans()),
                deletion_begun=NOW - draw(TIMES) if draw(st.booleans()) else None,
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
        facts=facts,
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
    return replace(view, members=members, facts={**view.facts, **decision.facts}, trend=decision.trend)


@settings(max_examples=500, deadline=None)
@given(situations())
def test_any_plan_settles(situation: tuple[View, Policy]) -> None:
    """From any state, likely or not: deciding again at the same instant changes nothing, asks nothing, wakes alike."""
    view, policy = situation
    first = decide(view, (ev.TimerFired(),), now=NOW, policy=policy, fresh_ids=fresh_ids())
    second = decide(apply(view, first), (), now=NOW, policy=policy, fresh_ids=iter(()))
    assert second.changes == ()
    assert second.effects == ()
    assert second.wake_at == first.wake_at
    assert first.wake_at is None or first.wake_at > NOW
