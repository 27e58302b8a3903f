"""While a rollout is paused or halted, new instances are made from the revision before it."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import Fallback, Trend
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, State
from nstance.model.rollout import GroupRecord, Outcome, Revision
from unit.core.core_situation import (
    KEY,
    NOW,
    After,
    after,
    desired,
    healthy,
    lost,
    member,
    name,
    observation,
    replacement,
    unready,
)

BEFORE = Revision(infra_hash="old", started=NOW - 9000.0, outcome=Outcome.COMPLETE, finished=NOW - 8000.0)
PAUSED = Revision(infra_hash="h", started=NOW - 60.0, outcome=Outcome.PAUSED, paused_at=NOW - 30.0)
HALTED = replace(PAUSED, outcome=Outcome.HALTED, paused_at=None, failures=2, message="they fail")
STOPPED = replace(HALTED, failures=0, message="stopped after 1 instance")
OLD = Fallback(desired(3, infra_hash="old", instance_types=("small",), subnets=("old-subnet",)))


def record(*revisions: Revision) -> GroupRecord:
    return GroupRecord(key=KEY, revisions=revisions)


def old(letter: str, state: State = State.RUNNING, **fields: Any) -> Instance:
    return member(letter, state, infra_hash="old", **fields)


def decided(
    members: list[Instance], current: Revision, *, before: tuple[Revision, ...] = (BEFORE,), **view: Any
) -> After:
    group = desired(3, canary=1, instance_types=("large",), subnets=("new-subnet",))
    view = {"group": group, "record": record(*before, current), "fallback": OLD} | view
    return after(members, ev.TimerFired(), **view)


def made(follows: After) -> list[str]:
    return sorted(m.infra_hash for m in follows.made)


@pytest.mark.parametrize(
    ("members", "current", "expected"),
    [
        pytest.param([member("n"), old("a")], PAUSED, ["old"], id="an old one is gone"),
        pytest.param([old("a"), old("b")], PAUSED, ["h"], id="the canary is gone"),
        pytest.param([old("a")], PAUSED, ["h", "old"], id="the canary and an old one are gone"),
        pytest.param([member("n"), old("a")], STOPPED, ["old"], id="stopped after the canary"),
        pytest.param([old("a"), old("b")], STOPPED, ["h"], id="stopped, and the canary is gone"),
        pytest.param([member("n"), old("a")], HALTED, ["old"], id="halted: an old one is gone"),
        pytest.param([old("a"), old("b")], HALTED, ["old"], id="halted: what fails is not tried again"),
        pytest.param([member("n"), old("a")], replace(PAUSED, outcome=Outcome.ROLLING), ["old"], id="about to pause"),
        pytest.param([old("a"), old("b")], replace(PAUSED, outcome=Outcome.ROLLING), ["h"], id="no canary yet"),
        pytest.param(
            [member("n"), old("a")], replace(PAUSED, outcome=Outcome.ROLLING, resumed_at=NOW), ["h", "h"], id="resumed"
        ),
        pytest.param([member("n"), old("a")], replace(PAUSED, outcome=Outcome.COMPLETE), ["h", "h"], id="complete"),
    ],
)
def test_a_lost_instance_is_made_from_the_old_revision(
    members: list[Instance], current: Revision, expected: list[str]
) -> None:
    follows = decided(members, replace(current, failures=min(current.failures, 1)))
    assert made(follows) == expected


def test_it_has_all_of_the_old_revision_and_the_reason_says_so() -> None:
    follows = decided([member("n"), old("a"), old("b", State.DELETING, cause=Cause.GONE, vacant=True)], HALTED)
    [new] = follows.made
    assert (new.instance_type, new.subnet, new.predecessor) == ("small", "old-subnet", name("b"))
    [reason] = [r for r in follows.decision.reasons if r.instance == new.id]
    assert (
        reason.message
        == f"replacement for {name('b')} (gone); made from revision old: the rollout of revision h is halted"
    )


def test_an_unresponsive_instance_gets_a_replacement_of_its_own_revision_that_stays_until_it_returns() -> None:
    members = [member("n"), old("a"), old("b", suspect=True)]
    observed = {"b": lost(20.0)}
    follows = decided(members, PAUSED, observed=observed)
    [new] = follows.made
    assert (new.infra_hash, new.replaces) == ("old", name("b"))
    again = decided([*members, new], PAUSED, observed=observed)
    assert again.members[new.id].state is State.PENDING
    back = decided([*members[:2], old("b"), new], PAUSED, observed={"b": healthy()})
    assert back.members[new.id].state is State.DELETING
    assert back["b"].state is State.RUNNING
    ready = replacement("r", "b", Cause.UNHEALTHY, infra_hash="old")
    both = decided([*members[:2], old("b"), ready], PAUSED)
    assert (both["b"].state, both["r"].state) == (State.RUNNING, State.DRAINING)


def test_a_canary_that_is_unresponsive_is_replaced_by_a_canary() -> None:
    members = [member("n", suspect=True), old("a"), old("b")]
    assert made(decided(members, PAUSED, observed={"n": lost(20.0)})) == ["h"]
    assert made(decided(members, HALTED, observed={"n": lost(20.0)})) == ["old"]


def test_a_replacement_of_a_canary_does_not_depend_on_the_instance_that_the_canary_replaces() -> None:
    """It was created and dropped again without end."""
    canary = replacement("n", "a", Cause.DRIFT, replace_wanted=True)
    follows = decided([old("a"), old("b"), old("c"), canary], HALTED)
    [new] = follows.made
    assert (new.state, new.infra_hash, new.replaces) == (State.PENDING, "old", name("n"))


def test_an_instance_that_cannot_get_its_files_does_not_keep_the_place_of_a_dead_one() -> None:
    """It was to replace that one. It is not unhealthy, because another one of its revision would not get them either."""
    stuck = member("n", ready_at=None, registered=NOW - 9000.0)
    observed = {"n": unready(blocked="token: no such secret")}
    follows = decided([stuck, old("a"), old("b")], HALTED, observed=observed)
    [new] = follows.made
    assert (new.infra_hash, new.replaces, new.replaces_for) == ("old", name("n"), Cause.UNHEALTHY)
    again = decided([stuck, old("a"), old("b"), new], HALTED, observed=observed)
    assert again.decision.changes == ()
    ready = replace(old("x"), replaces=name("n"), replaces_for=Cause.UNHEALTHY)
    since = {"n": unready(blocked="token: no such secret", unready_since=NOW - 60.0)}
    assert decided([stuck, old("a"), old("b"), ready], HALTED, observed=since).in_state(State.DRAINING) == "n"
    # While it shares the place of an old one, nothing is missing.
    sharing = replace(stuck, replaces=name("c"), replaces_for=Cause.DRIFT)
    assert decided([sharing, old("a"), old("b"), old("c")], HALTED, observed=observed).decision.changes == ()
    # Somebody adds the secret.
    healed = decided([replace(stuck, ready_at=NOW), old("a"), old("b"), new], HALTED)
    assert healed.members[new.id].state is State.DELETING
    for current, fallback in ((PAUSED, OLD), (HALTED, None)):
        kept = decided([stuck, old("a"), old("b")], current, fallback=fallback, observed=observed)
        assert kept.made == []


def test_when_the_rollout_goes_on_what_has_not_started_yet_is_made_again() -> None:
    new = replacement("x", "b", Cause.UNHEALTHY, State.PENDING, infra_hash="old")
    members = [member("n"), old("a"), old("b", suspect=True), new]
    resumed = replace(PAUSED, outcome=Outcome.ROLLING, resumed_at=NOW)
    follows = decided(members, resumed, observed={"b": lost(20.0)})
    assert follows["x"].state is State.DELETING
    assert made(follows) == ["h"]


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        pytest.param(Fallback(None, "it is being read"), [], id="being read"),
        pytest.param(replace(OLD, blocked="the image old is being looked up"), [], id="its image is not known yet"),
        pytest.param(None, ["h"], id="lost"),
        pytest.param(Fallback(desired(3, infra_hash="older")), ["h"], id="of another revision"),
    ],
)
def test_a_revision_that_cannot_be_made_now(fallback: Fallback | None, expected: list[str]) -> None:
    assert made(decided([member("n"), old("a")], HALTED, fallback=fallback)) == expected


def test_a_blocked_new_revision_does_not_hold_up_the_old_one() -> None:
    assert made(decided([member("n"), old("a")], HALTED, blocked="the image is not known")) == ["old"]
    assert made(decided([old("a"), old("b")], PAUSED, blocked="the image is not known")) == []


def test_failures_of_the_new_revision_do_not_hold_up_the_old_one() -> None:
    failing = Trend(failures=5, counted_at=NOW - 1.0, retry_at=NOW + 600.0, infra_hash="h")
    assert made(decided([member("n"), old("a")], HALTED, trend=failing)) == ["old"]
    assert made(decided([old("a"), old("b")], PAUSED, trend=failing)) == []
    own = replace(failing, infra_hash="old")
    assert made(decided([member("n"), old("a")], HALTED, trend=own)) == []


def test_a_refused_instance_counts_against_its_own_revision() -> None:
    pending = old("p", State.PENDING, created=NOW - 1.0)
    refused = ev.VmCreateFailed(pending.id, ev.Failure.REFUSED, "no such type")
    group = desired(3, canary=1)
    halted = record(BEFORE, HALTED)
    follows = after([member("n"), old("a"), pending], refused, group=group, record=halted, fallback=OLD)
    assert follows.decision.trend.infra_hash == "old"
    assert follows.record is not None
    assert follows.record.revisions[-1].failures == HALTED.failures


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            (BEFORE, replace(BEFORE, infra_hash="mid", outcome=Outcome.SUPERSEDED)), "old", id="last complete"
        ),
        pytest.param((replace(BEFORE, outcome=Outcome.SUPERSEDED),), "old", id="none was complete"),
        pytest.param((replace(BEFORE, outcome=Outcome.ROLLED_BACK),), "h", id="that one was rolled back"),
        pytest.param((), "h", id="there is none"),
    ],
)
def test_which_revision_it_is(before: tuple[Revision, ...], expected: str) -> None:
    assert made(decided([member("n"), old("a")], HALTED, before=before)) == [expected]


def test_a_full_subnet_of_the_old_revision() -> None:
    pending = old("p", State.PENDING, subnet="s1")
    group = desired(3, subnets=("new-subnet",))
    fallback = Fallback(desired(3, infra_hash="old", subnets=("s1", "s2")))
    full = ev.VmCreateFailed(pending.id, ev.Failure.NO_CAPACITY, "full")
    observed = {"p": observation(last_seen=NOW, own_intent=True, creating=True)}
    halted = record(BEFORE, HALTED)
    follows = after(
        [member("n"), old("a"), pending], full, group=group, record=halted, fallback=fallback, observed=observed
    )
    assert follows["p"].subnet == "s2"


@pytest.mark.parametrize("current", [PAUSED, HALTED])
def test_forced_expiry_does_not_wait_for_a_held_rollout(current: Revision) -> None:
    """It would not end by itself. Everything else that waits for the limits waits for it, too."""
    members = [old(letter, created=NOW - 500.0) for letter in "abc"]
    follows = decided(members, current, policy=Policy(eligible_age=300.0, forced_age=400.0))
    assert [(m.replaces, m.infra_hash) for m in follows.made] == [(name("a"), "h" if current is PAUSED else "old")]
    assert not decided(members, current, policy=Policy(eligible_age=300.0)).made
