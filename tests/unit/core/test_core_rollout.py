"""Rollouts: limits, order, canaries, halting, and the stored record."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import Rejection, Trend
from nstance.model.group import Policy, UpdateOrder
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation
from nstance.model.rollout import MAX_REVISIONS, GroupRecord, Outcome, Revision
from unit.core.core_situation import (
    KEY,
    NOW,
    After,
    after,
    desired,
    healthy,
    member,
    name,
    observation,
    replacement,
    unready,
)

BEFORE = Revision(infra_hash="old", started=NOW - 9000.0, outcome=Outcome.COMPLETE, finished=NOW - 8000.0)
ROLLING = Revision(infra_hash="h", started=NOW - 60.0, by="config")


def record(*revisions: Revision) -> GroupRecord:
    return GroupRecord(key=KEY, revisions=revisions)


def rolling(**fields: Any) -> GroupRecord:
    return record(BEFORE, replace(ROLLING, **fields))


def old(letter: str, state: State = State.RUNNING, **fields: Any) -> Instance:
    return member(letter, state, infra_hash="old", **fields)


def outcome(follows: After) -> Outcome:
    current = follows.record.current if follows.record is not None else None
    assert current is not None
    return current.outcome


THREE = [old(x) for x in "abc"]


@pytest.mark.parametrize(
    ("members", "observed", "made", "left"),
    [
        pytest.param(THREE, {}, 1, "", id="one more than the size"),
        pytest.param(
            [*THREE[1:], member("n"), old("a", State.DRAINING, cause=Cause.DRIFT)], {}, 0, "a", id="one drains"
        ),
        pytest.param(
            [*THREE[1:], member("n"), old("a", State.DELETING, cause=Cause.DRIFT)], {}, 0, "", id="one is being deleted"
        ),
        pytest.param([*THREE[1:], member("n"), old("a", State.DELETED, cause=Cause.DRIFT)], {}, 1, "", id="it is gone"),
        pytest.param(
            [*THREE, replacement("n", "a", Cause.DRIFT)], {"n": unready()}, 0, "", id="the new one is not ready"
        ),
        pytest.param([*THREE, replacement("n", "a", Cause.DRIFT)], {}, 0, "a", id="the new one is ready"),
        pytest.param(
            [*THREE, replacement("n", "a", Cause.DRIFT)],
            {"n": healthy(ready=False)},
            0,
            "",
            id="no report to the new leader yet",
        ),
        pytest.param(
            [*THREE, replacement("n", "a", Cause.DRIFT)],
            {"b": unready()},
            0,
            "b",
            id="one that is not ready is no loss",
        ),
        pytest.param(
            [*THREE, member("x", State.DELETING, cause=Cause.GONE)], {}, 0, "", id="an unplanned loss comes first"
        ),
    ],
)
def test_max_surge_one_and_max_unavailable_zero(
    members: list[Instance], observed: dict[str, Observation], made: int, left: str
) -> None:
    follows = after(members, ev.TimerFired(), size=3, observed=observed, record=rolling())
    assert len(follows.made) == made
    assert follows.in_state(State.DRAINING) == left


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        pytest.param("", "a", id="all ready: one is removed first"),
        pytest.param("b", "b", id="the unready one is removed first"),
        pytest.param("bc", "b", id="more than may be missing: still one at a time"),
    ],
)
def test_without_surge_unready_instances_are_replaced_one_by_one(broken: str, left: str) -> None:
    """Also if more are unavailable than allowed: otherwise a revision that fixes them could never be rolled out."""
    group = desired(3, max_surge=0, max_unavailable=1)
    observed = {x: unready() for x in broken}
    follows = after(THREE, ev.GroupChanged(), group=group, observed=observed, record=rolling())
    assert follows.in_state(State.DRAINING) == left
    again = after(list(follows.members.values()), ev.TimerFired(), group=group, observed=observed, record=rolling())
    assert again.made == []  # its place is taken until it is gone
    assert again.in_state(State.DRAINING) == left


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [
        pytest.param({"unready_since": NOW - 1.0}, {"unready_since": NOW - 2.0}, "b", id="the longest unready one"),
        pytest.param(
            {"unready_since": NOW - 2.0, "blocked": "token", "serving": True},
            {"unready_since": NOW - 1.0},
            "b",
            id="not the one that serves with the files that it has",
        ),
        pytest.param(
            {"unready_since": NOW - 2.0, "blocked": "token"},
            {"unready_since": NOW - 1.0, "blocked": "token", "serving": True},
            "a",
            id="both are blocked, and one of them fails",
        ),
    ],
)
def test_which_unready_instance_is_removed_first(a: dict[str, Any], b: dict[str, Any], left: str) -> None:
    """The one that served left, and the other one did not become ready (seed 3300000875)."""
    group = desired(2, max_surge=0, max_unavailable=1)
    there = [member(letter, created=NOW - 500.0) for letter in "ab"]
    observed = {"a": unready(**a), "b": unready(**b)}
    follows = after(there, ev.TimerFired(), group=group, observed=observed, policy=Policy(forced_age=400.0))
    assert follows.in_state(State.DRAINING) == left


def test_an_involuntary_loss_is_replaced_although_a_place_is_occupied() -> None:
    there = [old("a", State.DRAINING, cause=Cause.DRIFT), old("b"), old("c", State.DELETING, cause=Cause.GONE)]
    follows = after(there, ev.TimerFired(), group=desired(3, max_surge=0, max_unavailable=1), record=rolling())
    assert len(follows.made) == 1


SERIAL = {"order": UpdateOrder.SERIAL, "settle": 30.0}


@pytest.mark.parametrize(
    ("members", "observed", "made"),
    [
        pytest.param(THREE, {}, 1, id="the first step"),
        pytest.param([*THREE[1:], member("n")], {"n": healthy(ready_since=NOW - 31.0)}, 1, id="settled"),
        pytest.param([*THREE[1:], member("n")], {"n": healthy(ready_since=NOW - 29.0)}, 0, id="not settled yet"),
        pytest.param([*THREE[1:], member("n")], {"n": unready()}, 0, id="not ready"),
        pytest.param([*THREE[1:], member("n")], {"b": unready()}, 1, id="one that is not ready is next"),
        pytest.param(
            [*THREE[1:], member("n"), old("a", State.DRAINING, cause=Cause.DRIFT)], {}, 0, id="the old one is not gone"
        ),
        pytest.param(THREE, {"b": healthy(ready=False)}, 0, id="one has not reported yet"),
    ],
)
def test_serial(members: list[Instance], observed: dict[str, Observation], made: int) -> None:
    group = desired(3, max_surge=3, **SERIAL)
    follows = after(members, ev.TimerFired(), group=group, observed=observed, record=rolling())
    assert len(follows.made) == made


def test_settling_has_a_timer() -> None:
    follows = after(
        [*THREE[1:], member("n")],
        ev.TimerFired(),
        group=desired(3, **SERIAL),
        observed={"n": healthy(last_seen=NOW, ready_since=NOW - 25.0)},
        record=rolling(),
    )
    assert follows.decision.wake_at == NOW + 5.0


CANARY = {"canary": 1, "max_surge": 3}


@pytest.mark.parametrize(
    ("group", "made", "after_that", "message"),
    [
        pytest.param(CANARY, 1, Outcome.PAUSED, "until it is resumed", id="waits to be resumed"),
        pytest.param(CANARY | {"pause_after_canary": 60.0}, 1, Outcome.PAUSED, "60 s", id="waits for a while"),
        pytest.param(CANARY | {"stop_after_canary": True}, 1, Outcome.HALTED, "as configured", id="stops"),
        pytest.param({"max_surge": 3}, 3, Outcome.ROLLING, "", id="no canaries"),
    ],
)
def test_canaries(group: dict[str, Any], made: int, after_that: Outcome, message: str) -> None:
    begun = after(THREE, ev.GroupChanged(), group=desired(3, **group), record=rolling())
    assert len(begun.made) == made
    done = after([*THREE[1:], member("n")], ev.TimerFired(), group=desired(3, **group), record=rolling())
    assert outcome(done) is after_that
    assert len(done.made) == (0 if group.get("canary") else 2)
    assert message in done.record.current.message  # type: ignore[union-attr]


@pytest.mark.parametrize("done", [Outcome.COMPLETE, Outcome.ROLLING])
def test_canaries_limit_only_rollouts(done: Outcome) -> None:
    """The provider's hints were ignored in a group with canaries."""
    observed = {"a": healthy(notice=ev.NoticeKind.REBALANCE), "b": healthy() if done is Outcome.COMPLETE else unready()}
    there = [member("a"), member("b")]
    follows = after(there, ev.TimerFired(), group=desired(2, **CANARY), observed=observed, record=rolling(outcome=done))
    assert [m.replaces for m in follows.made] == [name("a")]


PAUSED = {"outcome": Outcome.PAUSED, "paused_at": NOW - 60.0}


@pytest.mark.parametrize(
    ("events", "pause", "observed", "made"),
    [
        pytest.param([], None, {}, 0, id="not resumed"),
        pytest.param([], 61.0, {}, 0, id="not yet"),
        pytest.param([], 60.0, {}, 2, id="its time is over"),
        pytest.param([], 60.0, {"n": unready()}, 0, id="its time is over, but its canary is not ready"),
        pytest.param([ev.RolloutResumed()], None, {}, 2, id="resumed"),
    ],
)
def test_a_pause(events: list[ev.Event], pause: float | None, observed: dict[str, Observation], made: int) -> None:
    group = desired(3, pause_after_canary=pause, **CANARY)
    members = [*THREE[1:], member("n")]
    follows = after(members, *events, ev.TimerFired(), group=group, observed=observed, record=rolling(**PAUSED))
    assert len(follows.made) == made
    assert outcome(follows) is (Outcome.ROLLING if made else Outcome.PAUSED)


@pytest.mark.parametrize("pause", [None, 60.0, 1000.0])
def test_a_pause_has_its_canaries(pause: float | None) -> None:
    """The pause ended, and all were replaced, although the canary was lost and nobody had looked at another one."""
    group = desired(3, pause_after_canary=pause, **CANARY)
    paused = rolling(**PAUSED)
    # An instance of the earlier revision has taken its place.
    lost = after(THREE, ev.TimerFired(), group=group, record=paused)
    assert (outcome(lost), [m.infra_hash for m in lost.made]) == (Outcome.ROLLING, ["h"])
    assert any("goes on until it can pause again: 0 of 1 instance left" in r.message for r in lost.decision.reasons)
    # Its place is empty.
    empty = after(THREE[1:], ev.TimerFired(), group=group, record=paused)
    assert (outcome(empty), [m.infra_hash for m in empty.made]) == (Outcome.ROLLING, ["h"])
    # The next one is ready: a pause of its own.
    again = after([*THREE[1:], member("n")], ev.TimerFired(), group=group, record=lost.record)
    assert (outcome(again), again.made) == (Outcome.PAUSED, [])
    current = again.record.current if again.record is not None else None
    assert current is not None
    assert current.paused_at == NOW
    # More are configured.
    more = after([*THREE[1:], member("n")], ev.TimerFired(), group=replace(group, canary=2), record=paused)
    assert (outcome(more), len(more.made)) == (Outcome.ROLLING, 1)


def test_a_pause_does_not_end_in_a_group_of_size_zero() -> None:
    group = desired(0, pause_after_canary=60.0, **CANARY)
    follows = after([], ev.TimerFired(), group=group, record=rolling(**PAUSED))
    assert outcome(follows) is Outcome.PAUSED
    grown = after([], ev.TimerFired(), group=replace(group, size=3), record=rolling(**PAUSED))
    assert outcome(grown) is Outcome.ROLLING
    none = after([], ev.TimerFired(), group=replace(group, canary=0), record=rolling(**PAUSED))
    assert outcome(none) is Outcome.ROLLING


def test_expiry_waits_while_a_rollout_is_held() -> None:
    """Its replacement would be of the new revision."""
    aged = Policy(eligible_age=50.0)
    there = [member("a"), old("b", created=NOW - 10.0)]
    for held in (Outcome.HALTED, Outcome.PAUSED):
        follows = after(there, ev.TimerFired(), size=2, policy=aged, record=rolling(outcome=held))
        assert follows.made == []
    assert len(after([member("a")], ev.TimerFired(), size=1, policy=aged, record=rolling()).made) == 1


NEVER = {"registered": NOW - 700.0, "ready_at": None, "created": NOW - 30.0}
TAKER = replacement("n", "a", Cause.DRIFT, **NEVER)


@pytest.mark.parametrize(
    ("failures", "most", "after_that"),
    [
        pytest.param(0, 2, Outcome.ROLLING, id="the first one"),
        pytest.param(1, 2, Outcome.HALTED, id="the second one"),
        pytest.param(0, 1, Outcome.HALTED, id="one is enough here"),
    ],
)
def test_halt(failures: int, most: int, after_that: Outcome) -> None:
    follows = after(
        [*THREE, TAKER],
        ev.TimerFired(),
        group=desired(3, max_failures=most),
        observed={"n": unready()},
        record=rolling(failures=failures),
    )
    assert follows.in_state(State.DRAINING) == "n"
    assert outcome(follows) is after_that
    assert ("rollout-halted" in follows.codes()) is (after_that is Outcome.HALTED)


@pytest.mark.parametrize(
    ("instance", "event"),
    [
        pytest.param(
            replacement("n", "a", Cause.DRIFT, State.STARTING, created=NOW - 400.0),
            ev.TimerFired(),
            id="never registered",
        ),
        pytest.param(
            replacement("n", "a", Cause.DRIFT, State.PENDING),
            ev.VmCreateFailed(name("n"), ev.Failure.REFUSED, "no such type"),
            id="refused",
        ),
        pytest.param(
            replacement("n", "a", Cause.DRIFT, ready_at=None),
            ev.VmChecked(name("n"), ev.VmState.DOWN, None),
            id="ended before it was ready",
        ),
    ],
)
def test_what_counts_as_a_failure(instance: Instance, event: ev.Event) -> None:
    observed = (
        {"n": observation(last_seen=NOW)} if instance.state is not State.RUNNING else {"n": unready(connected=False)}
    )
    follows = after([*THREE, instance], event, size=3, observed=observed, record=rolling(failures=1))
    assert outcome(follows) is Outcome.HALTED


def test_missing_capacity_is_no_failure_of_the_revision() -> None:
    coming = replacement("n", "a", Cause.DRIFT, State.PENDING)
    event = ev.VmCreateFailed(name("n"), ev.Failure.NO_CAPACITY, "full")
    observed = {"n": observation(last_seen=NOW, own_intent=True, creating=True)}
    follows = after([*THREE, coming], event, size=3, observed=observed, record=rolling(failures=1))
    assert follows["n"].state is State.FAILED
    assert outcome(follows) is Outcome.ROLLING


def test_the_first_revision_of_a_group_does_not_halt() -> None:
    """There is nothing to protect, and the group retries with its back-off."""
    follows = after(
        [member("n", **NEVER)],
        ev.TimerFired(),
        size=1,
        observed={"n": unready()},
        record=record(replace(ROLLING, failures=5)),
    )
    assert outcome(follows) is Outcome.ROLLING


BLOCKED = unready("its files cannot be made: no secret", blocked="no secret")


@pytest.mark.parametrize("observed", [pytest.param(unready(), id="not ready"), pytest.param(BLOCKED, id="blocked")])
def test_a_rollout_halts_also_when_all_old_instances_are_gone(observed: Observation) -> None:
    """With `max_unavailable` they leave first: a group of one stayed empty for good, and was never rolled back."""
    group, new = desired(1, max_surge=0, max_unavailable=1, max_failures=1), member("n", **NEVER)
    follows = after([new], ev.TimerFired(), group=group, observed={"n": observed}, record=rolling())
    assert outcome(follows) is Outcome.HALTED
    unproven = record(replace(BEFORE, outcome=Outcome.SUPERSEDED), ROLLING)
    follows = after([new], ev.TimerFired(), group=group, observed={"n": observed}, record=unproven)
    assert outcome(follows) is Outcome.ROLLING


def test_files_that_cannot_be_rendered_halt_the_rollout() -> None:
    follows = after([*THREE, TAKER], ev.TimerFired(), size=3, observed=dict.fromkeys("abcn", BLOCKED), record=rolling())
    assert outcome(follows) is Outcome.HALTED
    assert "no secret" in follows.record.current.message  # type: ignore[union-attr]
    assert follows.made == []
    assert follows.in_state(State.DRAINING) == ""
    early = after(
        [*THREE, replace(TAKER, registered=NOW - 20.0)],
        ev.TimerFired(),
        size=3,
        observed={"n": BLOCKED},
        record=rolling(),
    )
    assert outcome(early) is Outcome.ROLLING


@pytest.mark.parametrize(
    ("since", "current", "after_that"),
    [
        pytest.param(700.0, {}, Outcome.HALTED, id="for long"),
        pytest.param(500.0, {}, Outcome.ROLLING, id="not for long"),
        pytest.param(None, {}, Outcome.ROLLING, id="since now, under this leader"),
        pytest.param(700.0, {"started": NOW - 60.0}, Outcome.ROLLING, id="by another revision before"),
        pytest.param(700.0, {"resumed_at": NOW - 60.0}, Outcome.ROLLING, id="and resumed"),
    ],
)
def test_a_revision_that_cannot_be_created_halts(
    since: float | None, current: dict[str, Any], after_that: Outcome
) -> None:
    """A mistyped image halted nothing, and no lost instance was replaced any more."""
    blocked: dict[str, Any] = {"blocked": "the image x cannot be found", "size": 3}
    trend = Trend(blocked_since=None if since is None else NOW - since)
    there = rolling(**{"started": NOW - 9000.0} | current)
    follows = after(THREE[1:], ev.TimerFired(), record=there, trend=trend, **blocked)
    assert outcome(follows) is after_that
    assert follows.decision.trend.blocked_since == (NOW if since is None else NOW - since)
    first = record(replace(ROLLING, started=NOW - 9000.0))
    alone = after([], ev.TimerFired(), record=first, trend=trend, **blocked)
    assert outcome(alone) is Outcome.ROLLING
    again = after(THREE, ev.TimerFired(), size=3, record=there, trend=trend)
    assert again.decision.trend.blocked_since is None


def test_resuming_restarts_the_ready_timeout() -> None:
    halted = rolling(outcome=Outcome.HALTED, failures=2, finished=NOW - 5.0, message="no secret")
    follows = after(
        [*THREE, TAKER], ev.RolloutResumed(), size=3, observed=dict.fromkeys("abcn", BLOCKED), record=halted
    )
    assert outcome(follows) is Outcome.ROLLING
    assert follows.record.current.failures == 0  # type: ignore[union-attr]
    assert follows.decision.rejections == {}
    idle = after([member("a")], ev.RolloutResumed(), size=1, record=record(replace(ROLLING, outcome=Outcome.COMPLETE)))
    assert idle.decision.rejections == {0: Rejection.NOT_HELD}


@pytest.mark.parametrize(
    ("members", "observed"),
    [
        pytest.param(THREE, {}, id="nothing starts"),
        pytest.param([*THREE, replacement("n", "a", Cause.DRIFT)], {}, id="nothing is removed"),
    ],
)
def test_a_halted_rollout_changes_nothing(members: list[Instance], observed: dict[str, Observation]) -> None:
    follows = after(members, ev.TimerFired(), size=3, observed=observed, record=rolling(outcome=Outcome.HALTED))
    assert follows.made == []
    assert follows.in_state(State.DRAINING) == ""


def test_requested_replacements_continue_while_halted() -> None:
    members = [*THREE, replacement("n", "a", Cause.REQUESTED)]
    follows = after(
        [replace(members[0], replace_wanted=True), *members[1:]],
        ev.TimerFired(),
        size=3,
        record=rolling(outcome=Outcome.HALTED),
        mass_absence=True,
        mass_since=NOW - 100.0,
    )
    assert follows["a"].cause is Cause.REQUESTED


@pytest.mark.parametrize("flag", ["mass_silence", "mass_absence"])
@pytest.mark.parametrize(
    ("since", "made"),
    [
        pytest.param(NOW - 30.0, 0, id="began during the rollout: it stops"),
        pytest.param(NOW - 90.0, 1, id="the revision is newer: probably the fix"),
    ],
)
def test_rollouts_during_mass_silence_or_mass_absence(flag: str, since: float, made: int) -> None:
    view = {flag: True, "mass_since": since}
    follows = after(THREE, ev.TimerFired(), size=3, record=rolling(), **view)
    assert len(follows.made) == made
    ready = after([*THREE, replacement("n", "a", Cause.DRIFT)], ev.TimerFired(), size=3, record=rolling(), **view)
    assert ready.in_state(State.DRAINING) == "a" * made


def test_no_rollout_before_the_revision_is_stored() -> None:
    follows = after(THREE, ev.GroupChanged(), size=3, record=rolling(), revision_stored=False)
    assert follows.made == []
    lost = after(THREE[:2], ev.GroupChanged(), size=3, record=rolling(), revision_stored=False)
    assert len(lost.made) == 1  # what is missing is made all the same


# ---- the record


def test_a_change_of_the_configuration_starts_a_revision() -> None:
    follows = after(THREE, ev.GroupChanged(), group=desired(3, changed_by="opr-1"), record=record(BEFORE))
    assert follows.record is not None
    assert [(r.infra_hash, r.outcome, r.by) for r in follows.record.revisions] == [
        ("old", Outcome.COMPLETE, ""),
        ("h", Outcome.ROLLING, "opr-1"),
    ]
    assert "rollout" in follows.codes()


@pytest.mark.parametrize(
    ("was", "rolled_back", "now"),
    [
        pytest.param(Outcome.ROLLING, False, Outcome.SUPERSEDED, id="superseded"),
        pytest.param(Outcome.HALTED, False, Outcome.SUPERSEDED, id="halted, and corrected"),
        pytest.param(Outcome.COMPLETE, False, Outcome.COMPLETE, id="complete stays so"),
        pytest.param(Outcome.HALTED, True, Outcome.ROLLED_BACK, id="rolled back"),
        pytest.param(Outcome.COMPLETE, True, Outcome.ROLLED_BACK, id="complete, and rolled back"),
    ],
)
def test_the_outcome_of_the_previous_revision(was: Outcome, rolled_back: bool, now: Outcome) -> None:
    group = desired(3, infra_hash="new", canary=1, rolled_back_from="h" if rolled_back else "")
    follows = after(THREE, ev.GroupChanged(), group=group, record=rolling(outcome=was))
    assert follows.record is not None
    assert follows.record.revisions[-2].outcome is now
    # What was rolled out before needs no canaries.
    assert (follows.record.revisions[-1].resumed_at is not None) is rolled_back


@pytest.mark.parametrize(
    ("members", "observed", "size", "complete"),
    [
        pytest.param([member("a"), member("b")], {}, 2, True, id="all current and ready"),
        pytest.param([member("a"), old("b")], {}, 2, False, id="one is old"),
        pytest.param([member("a"), member("b")], {"b": unready()}, 2, False, id="one is not ready"),
        pytest.param([member("a"), member("b")], {"b": healthy(ready=False)}, 2, False, id="one has not reported"),
        pytest.param([member("a")], {}, 2, False, id="one is missing"),
        pytest.param([], {}, 0, False, id="nothing was tried"),
    ],
)
def test_complete(members: list[Instance], observed: dict[str, Observation], size: int, complete: bool) -> None:
    follows = after(members, ev.TimerFired(), size=size, observed=observed, record=rolling())
    assert (outcome(follows) is Outcome.COMPLETE) is complete


def test_the_last_complete_revision_is_never_forgotten() -> None:
    many = [replace(ROLLING, infra_hash=f"h{n}", outcome=Outcome.SUPERSEDED) for n in range(MAX_REVISIONS - 1)]
    follows = after(THREE, ev.GroupChanged(), size=3, record=record(BEFORE, *many))
    assert follows.record is not None
    assert len(follows.record.revisions) == MAX_REVISIONS
    assert follows.record.last_complete() == BEFORE


def test_a_revision_that_an_instance_has_stays_in_the_history() -> None:
    """An on-demand instance is never replaced, and gets its files from its revision."""
    lasting = old("a", on_demand=True)
    many = [replace(BEFORE, infra_hash=f"h{n}") for n in range(2 * MAX_REVISIONS)]
    follows = after([lasting], ev.GroupChanged(), size=0, record=record(BEFORE, *many))
    assert follows.record is not None
    assert [r.infra_hash for r in follows.record.revisions] == ["old", *(f"h{n}" for n in range(12, 20)), "h"]
    gone = replace(lasting, state=State.DELETED, ended=NOW - 1.0)
    follows = after([gone], ev.GroupChanged(), size=0, record=record(BEFORE, *many))
    assert follows.record is not None
    assert [r.infra_hash for r in follows.record.revisions] == [*(f"h{n}" for n in range(11, 20)), "h"]


def test_the_revision_that_a_rollback_restores() -> None:
    bad = replace(ROLLING, infra_hash="bad", outcome=Outcome.HALTED)
    assert record(BEFORE, bad).last_complete() == BEFORE
    back = replace(BEFORE, started=NOW, outcome=Outcome.COMPLETE)
    assert record(BEFORE, replace(bad, outcome=Outcome.ROLLED_BACK), back).last_complete() is None
    assert record(bad).last_complete() is None
    assert record().last_complete() is None


def test_new_files_belong_to_the_same_revision() -> None:
    done = rolling(outcome=Outcome.COMPLETE)
    follows = after([member("a")], ev.GroupChanged(), group=desired(1, parts_hash="r2"), record=done)
    assert follows.record is not None
    assert len(follows.record.revisions) == 2
    assert follows.record.revisions[-1].runtime_hash == "r2"
    assert outcome(follows) is Outcome.COMPLETE


def test_the_record_of_a_deleted_group_is_dropped_with_its_last_instance() -> None:
    ended = member("a", State.DELETED, ended=NOW - 9000.0)
    follows = after([ended], ev.TimerFired(), record=rolling(), desired=None)
    assert follows.decision.record is not None
    assert follows.decision.record.is_empty
    still = after(
        [member("a", State.DELETING, cause=Cause.SCALE_DOWN)], ev.TimerFired(), record=rolling(), desired=None
    )
    assert still.decision.record is None


def test_a_paused_group_records_nothing() -> None:
    follows = after(THREE, ev.GroupChanged(), group=desired(3, paused=True), record=record(BEFORE))
    assert follows.decision.record is None


def test_backoff_holds_a_rollout_without_surge() -> None:
    trend = Trend(failures=3, retry_at=NOW + 60.0, infra_hash="h")
    group = desired(3, max_surge=0, max_unavailable=1)
    assert after(THREE, ev.TimerFired(), group=group, trend=trend, record=rolling()).in_state(State.DRAINING) == ""
