"""While a rollout is paused or halted, new instances are made from the revision before it."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.core import offers
from nstance.model import events as ev
from nstance.model.decision import Fallback, Trend
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, State
from nstance.model.offer import CapacityScope, Exhaustion, Offer
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
    assert reason.message == f"replacing {name('b')}: gone; made from revision old: the rollout of revision h is halted"


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


def test_an_earlier_one_where_that_one_is_lost() -> None:
    """It was superseded before it was stored. All lost instances were made from the new revision (seed 3300003361)."""
    never_complete = replace(BEFORE, outcome=Outcome.SUPERSEDED)
    before = (never_complete, replace(never_complete, infra_hash="lost"))
    follows = decided([member("n"), old("a")], PAUSED, before=before)
    assert made(follows) == ["old"]
    again = decided([member("n"), old("a"), *follows.made], PAUSED, before=before, trend=Trend(failures=1))
    assert again.decision.changes == ()


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


@pytest.mark.parametrize(("infra_hash", "subnet"), [("h", "new-subnet"), ("old", "old-subnet"), ("superseded", None)])
def test_an_instance_moves_only_to_offers_of_its_own_revision(infra_hash: str, subnet: str | None) -> None:
    """It got the offers of the current one, and its own arguments (seed 4200002025)."""
    pending = member("p", State.PENDING, infra_hash=infra_hash, instance_type="huge", subnet="s1")
    full = ev.VmCreateFailed(pending.id, ev.Failure.NO_CAPACITY, "full")
    group = desired(3, canary=1, instance_types=("large",), subnets=("new-subnet",))
    observed = {"p": observation(last_seen=NOW, own_intent=True, creating=True)}
    view: dict[str, Any] = {"record": record(BEFORE, PAUSED), "fallback": OLD}
    follows = after([member("n"), old("a"), pending], full, group=group, observed=observed, **view)
    if subnet is not None:
        assert (follows["p"].state, follows["p"].subnet, follows.made) == (State.PENDING, subnet, [])
    else:
        assert (follows["p"].state, follows["p"].cause) == (State.DELETING, Cause.SUPERSEDED)
        assert [(m.infra_hash, m.subnet) for m in follows.made] == [("old", "old-subnet")]
    # Nobody else asks for an on-demand instance again.
    requested = after([replace(pending, on_demand=True)], full, group=group, observed=observed, **view)
    assert requested["p"].state is State.PENDING


@pytest.mark.parametrize("current", [PAUSED, HALTED])
def test_forced_expiry_does_not_wait_for_a_held_rollout(current: Revision) -> None:
    """It would not end by itself. Everything else that waits for the limits waits for it, too."""
    members = [old(letter, created=NOW - 500.0) for letter in "ab"]
    for expired, revision in ((members, "old"), ([], "h" if current is PAUSED else "old")):
        canary = member("n", created=NOW - (50.0 if expired else 500.0))
        there = [canary, *(expired or [old("a"), old("b")])]
        follows = decided(there, current, policy=Policy(eligible_age=300.0, forced_age=400.0))
        assert [(m.replaces, m.infra_hash) for m in follows.made] == [(name("a" if expired else "n"), revision)]
        assert not decided(there, current, policy=Policy(eligible_age=300.0)).made


# ---- the new revision has no capacity

ROLLING = Revision(infra_hash="h", started=NOW - 60.0)
FULL = {
    kind: {
        offers.capacity_key(Offer("", *offer), CapacityScope.OFFER, revision): Exhaustion(NOW + wait, 1, "full", NOW)
    }
    for kind, offer, revision, wait in (
        ("new", ("large", "new-subnet"), "h", 60.0),
        ("old", ("small", "old-subnet"), "old", 5.0),
    )
}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param(replace(ROLLING, resumed_at=NOW - 30.0), ["old", "old"], id="rolling"),
        pytest.param(ROLLING, ["old", "old"], id="no canary yet"),
        pytest.param(PAUSED, ["old", "old"], id="the canary is gone, too"),
        pytest.param(replace(ROLLING, outcome=Outcome.COMPLETE), [], id="complete: there is nothing else"),
    ],
)
def test_lost_instances_are_made_from_the_old_revision_while_only_that_has_capacity(
    outcome: Revision, expected: list[str]
) -> None:
    gone = [
        old("b", State.DELETING, cause=Cause.GONE, vacant=True),
        member("n", State.DELETING, cause=Cause.GONE, vacant=True),
    ]
    assert made(decided([old("a"), *gone], outcome, exhausted=FULL["new"])) == expected
    assert made(decided([old("a"), *gone], outcome)) != ["old", "old"]


def test_the_reason_says_that_there_is_no_capacity() -> None:
    gone = old("b", State.DELETING, cause=Cause.GONE, vacant=True)
    follows = decided([old("a"), old("c"), gone], ROLLING, exhausted=FULL["new"])
    [new] = follows.made
    [reason] = [r for r in follows.decision.reasons if r.instance == new.id]
    assert (
        reason.message
        == f"replacing {name('b')}: gone; made from revision old: large in new-subnet has no capacity: full"
    )
    # It is not dropped, neither while it starts nor when there is capacity again, and an agent that returns is kept.
    for exhausted in (FULL["new"], {}):
        again = decided([old("a"), old("c"), new], ROLLING, exhausted=exhausted, trend=Trend(failures=1))
        assert again.members[new.id].state is State.PENDING


def test_an_unresponsive_instance_is_replaced_by_what_has_capacity() -> None:
    members, observed = [old("a"), old("c"), old("b", suspect=True)], {"b": lost(20.0)}
    follows = decided(members, ROLLING, observed=observed, exhausted=FULL["new"])
    [new] = follows.made
    assert (new.infra_hash, new.replaces) == ("old", name("b"))
    for exhausted in (FULL["new"], {}):
        again = decided([*members, new], ROLLING, observed=observed, exhausted=exhausted)
        assert again.members[new.id].state is State.PENDING
        assert not again.made
    back = decided([old("a"), old("c"), old("b"), new], ROLLING, observed={"b": healthy()}, exhausted=FULL["new"])
    assert (back["b"].state, back.members[new.id].state) == (State.RUNNING, State.DELETING)


def test_what_can_wait_does() -> None:
    rolling = replace(ROLLING, resumed_at=NOW - 30.0)
    three = [old(letter) for letter in "abc"]
    assert not decided(three, rolling, exhausted=FULL["new"]).made  # a rotation
    assert made(decided(three, rolling)) == ["h"]
    assert not decided([*three[:2], old("c", replace_wanted=True)], rolling, exhausted=FULL["new"]).made
    assert not decided(three[:2], rolling, exhausted=FULL["new"]).made  # growth
    # What a rotation removed first waits, and does not hold up a loss.
    rotated = old("b", State.DELETED, cause=Cause.DRIFT, vacant=True)
    gone = old("c", State.DELETING, cause=Cause.GONE, vacant=True)
    follows = decided([old("a"), rotated, gone], rolling, exhausted=FULL["new"])
    assert [(m.infra_hash, m.predecessor) for m in follows.made] == [("old", name("c"))]


def test_when_neither_has_capacity_the_first_that_has_some_again_is_tried() -> None:
    gone = old("c", State.DELETING, cause=Cause.GONE, vacant=True)
    follows = decided([old("a"), old("b"), gone], ROLLING, exhausted={**FULL["new"], **FULL["old"]})
    assert not follows.made
    assert follows.decision.wake_at == NOW + 5.0


def test_a_loss_waits_no_longer_than_until_the_new_revision_has_capacity() -> None:
    """Also where the earlier revision has capacity, and must wait after failures."""
    gone = old("c", State.DELETING, cause=Cause.GONE, vacant=True)
    failing = Trend(failures=3, retry_at=NOW + 300.0, infra_hash="old")
    soon = {key: replace(full, until=NOW + 2.0) for key, full in FULL["new"].items()}
    follows = decided([old("a"), old("b"), gone], ROLLING, exhausted=soon, trend=failing)
    assert not follows.made
    assert follows.decision.wake_at == NOW + 2.0


def test_a_clock_behind_the_start_of_the_rollout_makes_nothing_that_would_be_dropped() -> None:
    """What was created before the rollout is dropped where it has not started."""
    gone = old("c", State.DELETING, cause=Cause.GONE, vacant=True)
    late = replace(ROLLING, started=NOW + 4.0)
    follows = decided([old("a"), old("b"), gone], late, exhausted=FULL["new"])
    assert not follows.made
    assert follows.decision.wake_at == NOW + 4.0
    pending = replacement("x", "b", Cause.UNHEALTHY, State.PENDING, infra_hash="old")
    members = [old("a"), old("c"), old("b", suspect=True), pending]
    dropped = decided(
        members, replace(ROLLING, resumed_at=NOW - 60.0), observed={"b": lost(20.0)}, exhausted=FULL["new"]
    )
    assert dropped["x"].state is State.DELETING
    assert made(dropped) == ["old"]


@pytest.mark.parametrize("letter", "bc")
def test_why_a_place_is_empty_is_known_until_it_is_filled(letter: str) -> None:
    """Otherwise a place that waits for the new revision would look like a loss after a while, or the other way round."""
    cause = Cause.DRIFT if letter == "b" else Cause.GONE
    left = old(letter, State.DELETED, cause=cause, ended=NOW - 90_000.0)
    refused = member("p", State.FAILED, cause=Cause.REFUSED, predecessor=left.id, vacant=True, ended=NOW - 80_000.0)
    rolling = replace(ROLLING, resumed_at=NOW - 30.0)
    follows = decided([old("a"), old("d"), left, refused], rolling, exhausted=FULL["new"])
    assert (made(follows), left.id in follows.members) == (([], True) if letter == "b" else (["old"], True))
    filled = replace(refused, vacant=False)
    assert left.id not in decided([old("a"), old("d"), old("e"), left, filled], rolling).members
