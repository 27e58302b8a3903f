"""Creating: intent first, what each failure means, and how a group backs off and recovers."""

from dataclasses import replace

import pytest

from nstance.core import creating, offers
from nstance.model import events as ev
from nstance.model.decision import CreateVm, DeleteVm, Trend
from nstance.model.events import Failure, VmState
from nstance.model.ids import ProviderId
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation
from nstance.model.offer import CapacityKey, CapacityScope, Exhaustion, Offer
from unit.core.core_situation import NOW, after, desired, healthy, member, name, observation, replacement

PENDING = member("a", State.PENDING, created=NOW - 10.0, subnet="s1")
ASKED = {"a": observation(last_seen=0.0, own_intent=True, creating=True)}


def failed(failure: Failure) -> ev.VmCreateFailed:
    return ev.VmCreateFailed(PENDING.id, failure, "why", CapacityScope.SUBNET)


def full(*subnets: str, until: float = NOW + 1.0) -> dict[CapacityKey, Exhaustion]:
    return {
        offers.capacity_key(Offer("", "", subnet), CapacityScope.SUBNET, "h"): Exhaustion(until, 1, "full")
        for subnet in subnets
    }


@pytest.mark.parametrize(
    ("failure", "state", "made", "asked"),
    [
        pytest.param(Failure.NO_CAPACITY, State.PENDING, 0, "a", id="no capacity: the next subnet at once, same ID"),
        pytest.param(Failure.REFUSED, State.FAILED, 1, "0", id="failed for good: ends at once, the group tries again"),
        pytest.param(Failure.UNAVAILABLE, State.PENDING, 0, "", id="unavailable: the same ID again, a little later"),
        pytest.param(Failure.UNKNOWN, State.PENDING, 0, "", id="unknown: never a second ID"),
        pytest.param(Failure.STALE, State.DELETING, 1, "0", id="cannot be repeated: tombstone, then another"),
    ],
)
def test_failures(failure: Failure, state: State, made: int, asked: str) -> None:
    follows = after([PENDING], failed(failure), group=desired(1, subnets=("s1", "s2")), observed=ASKED)
    assert follows["a"].state is state
    assert len(follows.made) == made
    assert follows.effects(CreateVm) == asked


def test_no_capacity_moves_to_the_next_subnet_and_avoids_the_full_one() -> None:
    group = desired(1, subnets=("s1", "s2"))
    asked = replace(PENDING, request_hash="of the request for s1")
    follows = after([asked], failed(Failure.NO_CAPACITY), group=group, observed=ASKED)
    # As another request: with the first one's hash it would be taken for one that the configuration has overtaken.
    assert (follows["a"].subnet, follows["a"].request_hash) == ("s2", "")
    exhausted = follows.decision.exhausted
    assert exhausted == {
        key: replace(known, message="why", since=NOW) for key, known in full("s1", until=NOW + 180.0).items()
    }
    # The next instance does not try there; when all were refused, it waits for the first one.
    assert after([], group=group, exhausted=exhausted).made[0].subnet == "s2"
    waiting = after([], group=group, exhausted=full("s1", until=NOW + 2.0) | full("s2", until=NOW + 1.0))
    assert (waiting.made, waiting.decision.wake_at, waiting.codes()) == ([], NOW + 1.0, {"blocked"})
    nowhere = after(
        [replace(PENDING, subnet="s2")], failed(Failure.NO_CAPACITY), group=group, observed=ASKED, exhausted=exhausted
    )
    assert nowhere["a"].state is State.FAILED
    assert nowhere.made == []


@pytest.mark.parametrize("created", [NOW - 10.0, NOW + 10.0], ids=["long ago", "by a clock that was ahead"])
def test_an_intent_of_another_leader_stays_in_its_subnet(created: float) -> None:
    """That leader's call may be on its way. Times do not tell who wrote an intent."""
    inherited = replace(PENDING, created=created)
    observed = {"a": observation(last_seen=0.0, creating=True)}
    view = {"group": desired(1, subnets=("s1", "s2")), "observed": observed, "listening_since": NOW - 20.0}
    follows = after([inherited], failed(Failure.NO_CAPACITY), **view)  # type: ignore[arg-type]
    assert (follows["a"].state, follows["a"].subnet) == (State.DELETING, "s1")
    assert [m.subnet for m in follows.made] == ["s2"]


def test_a_new_intent_is_marked_as_own() -> None:
    follows = after([], size=1)
    assert follows.observed[follows.made[0].id].calls.own_intent
    wanted = ev.InstanceRequested(id=name("d"), vars={})
    assert after([], wanted, size=0).observation("d").calls.own_intent


@pytest.mark.parametrize(
    ("observed", "state"),
    [
        pytest.param(observation(last_seen=0.0, own_intent=True, creating=True), State.DELETED, id="never requested"),
        pytest.param(
            observation(last_seen=0.0, creating=True), State.DELETING, id="an earlier leader may have requested it"
        ),
        pytest.param(
            observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=1),
            State.DELETING,
            id="an earlier call, unknown",
        ),
    ],
)
def test_an_unneeded_create_that_was_not_sent(observed: Observation, state: State) -> None:
    """Its record ends at once if the provider was certainly never called; otherwise the VM is deleted."""
    leaving = replace(PENDING, state=State.DELETING, cause=Cause.SCALE_DOWN)
    waiting = after([leaving], ev.TimerFired(), size=0, observed={"a": observed})
    assert waiting.effects(DeleteVm) == ""  # not before the create that waits for its turn is settled
    follows = after([leaving], failed(Failure.UNSENT), size=0, observed={"a": observed})
    assert follows["a"].state is state
    assert follows.effects(DeleteVm) == ("" if state is State.DELETED else "a")
    assert not follows.observation("a").calls.creating


def test_a_nearly_full_subnet_comes_last() -> None:
    group = desired(2, subnets=("s1", "s2"))
    assert {m.subnet for m in after([], group=group, crowded={"s1"}).made} == {"s2"}
    assert {m.subnet for m in after([], group=group, crowded={"s1", "s2"}).made} == {"s1", "s2"}
    assert {m.subnet for m in after([], group=group, crowded={"s1"}, exhausted=full("s2")).made} == {"s1"}


def test_subnets_are_filled_evenly() -> None:
    follows = after([member("a", subnet="s1")], group=desired(4, subnets=("s1", "s2")))
    assert sorted(m.subnet for m in follows.made) == ["s1", "s2", "s2"]


@pytest.mark.parametrize(("attempts", "wait"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (500, 30.0)])
def test_an_unknown_create_is_repeated_with_growing_waits(attempts: int, wait: float) -> None:
    observed = {"a": observation(last_seen=0.0, creating=True, create_attempts=attempts)}
    follows = after([PENDING], failed(Failure.UNKNOWN), size=1, observed=observed)
    assert follows.observation("a").calls.create_due == NOW + wait
    assert follows.decision.wake_at == NOW + wait
    again = after([PENDING], ev.TimerFired(), size=1, observed={"a": observation(last_seen=0.0, create_due=NOW)})
    assert again.effects(CreateVm) == "a"


def test_a_new_leader_repeats_the_create_with_the_same_id() -> None:
    """After a crash before, during or after the create call: only the record is known."""
    follows = after([PENDING], ev.GroupChanged(), size=1, listed=False)
    assert follows.effects(CreateVm) == "a"
    assert follows.made == []


@pytest.mark.parametrize(
    ("failures", "wait"), [(0, 0.0), (1, 30.0), (2, 60.0), (3, 120.0), (5, 480.0), (6, 600.0), (900, 600.0)]
)
def test_repeated_failures_back_off(failures: int, wait: float) -> None:
    trend = Trend(failures=failures, infra_hash="h")
    follows = after([PENDING], failed(Failure.REFUSED), size=1, observed=ASKED, trend=trend)
    assert follows.decision.trend.retry_at == NOW + wait
    assert len(follows.made) == (wait == 0.0)
    if wait:
        assert follows.decision.wake_at == NOW + wait
        assert "back-off" in follows.codes()


def test_failures_of_one_attempt_count_once() -> None:
    three = [member(letter, State.PENDING, created=NOW - 10.0) for letter in "abc"]
    trend = Trend(failures=1, counted_at=NOW - 1.0, infra_hash="h")
    follows = after(three, failed(Failure.REFUSED), size=3, trend=trend, observed=ASKED)
    assert follows.decision.trend.failures == 1


@pytest.mark.parametrize(
    ("group", "blocked", "made"),
    [
        pytest.param(desired(1), "", 0, id="closed"),
        pytest.param(desired(1, infra_hash="corrected"), "", 1, id="a corrected configuration need not wait"),
        pytest.param(desired(1, infra_hash="corrected"), "no image", 0, id="blocked for another reason"),
    ],
)
def test_backoff_and_blocked_groups_create_nothing(group: object, blocked: str, made: int) -> None:
    trend = Trend(failures=4, retry_at=NOW + 100.0, infra_hash="h")
    assert len(after([], group=group, trend=trend, blocked=blocked).made) == made  # type: ignore[arg-type]


def test_backoff_delays_replacements_with_a_timer() -> None:
    trend = Trend(failures=4, retry_at=NOW + 5.0, infra_hash="h")
    follows = after(
        [member("a", suspect=True)], size=1, trend=trend, observed={"a": healthy(last_seen=NOW - 20.0, checked_at=NOW)}
    )
    assert follows.made == []
    assert follows["a"].state is State.RUNNING
    assert follows.decision.wake_at == NOW + 5.0


def test_success_resets_the_backoff() -> None:
    registered = ev.Registered(id=name("a"), public_key="k", certificate_serial="1", certificate_expires=NOW)
    trend = Trend(failures=4, retry_at=NOW + 100.0, no_capacity_until=NOW + 9.0, infra_hash="h")
    follows = after([member("a", State.STARTING)], registered, size=1, trend=trend)
    assert follows.decision.trend == trend  # it may yet never connect
    follows = after(
        [follows["a"]], ev.AgentConnected(name("a")), size=1, trend=trend, observed={"a": follows.observation("a")}
    )
    assert follows.decision.trend == trend  # it may yet never be ready
    ready = ev.ReadinessReported(name("a"), files=True)
    follows = after([follows["a"]], ready, size=1, trend=trend, observed={"a": follows.observation("a")})
    assert follows.decision.trend == Trend(no_capacity_until=NOW + 9.0)
    assert follows["a"].ready_at == NOW


def test_an_older_instance_does_not_reset_the_backoff() -> None:
    trend = Trend(failures=4, retry_at=NOW + 100.0, infra_hash="h")
    ready = ev.ReadinessReported(name("a"), files=True)
    follows = after([member("a")], ev.AgentConnected(name("a")), ready, size=1, trend=trend)
    assert follows.decision.trend == trend


NEVER_CONNECTED = observation(
    last_seen=NOW - 11.0,
    seen_this_term=True,
    awaiting_connection=True,
    vm=VmState.RUNNING,
    checked_at=NOW,
    checks=4,
)


def test_an_agent_that_registers_and_never_connects_counts_as_a_failure() -> None:
    old = member("a", created=NOW - 30.0)
    first = after([old], size=1, observed={"a": NEVER_CONNECTED})
    assert first["a"].suspect
    assert first.decision.trend.failures == 1
    assert len(first.made) == 1
    again = after([first["a"]], size=1, observed={"a": NEVER_CONNECTED}, trend=first.decision.trend)
    assert again.decision.trend.failures == 1  # counted once
    second = after([old], size=1, observed={"a": NEVER_CONNECTED}, trend=Trend(failures=1, infra_hash="h"))
    assert second["a"].suspect
    assert second.made == []
    assert second.decision.trend.retry_at == NOW + creating.BACKOFF.first
    assert "back-off" in second.codes()


def test_a_vm_that_ends_before_it_is_ready_counts_as_a_failure() -> None:
    observed = replace(NEVER_CONNECTED, vm=replace(NEVER_CONNECTED.vm, state=VmState.DOWN))
    assert after([member("a", ready_at=None)], size=1, observed={"a": observed}).decision.trend.failures == 1
    assert after([member("a")], size=1, observed={"a": observed}).decision.trend.failures == 0


@pytest.mark.parametrize(
    ("state", "age", "listed", "silence", "state_after"),
    [
        pytest.param(State.STARTING, 299.0, True, False, State.STARTING, id="in time"),
        pytest.param(State.STARTING, 301.0, True, False, State.DELETING, id="never registered: deleted and replaced"),
        pytest.param(State.PENDING, 301.0, True, False, State.DELETING, id="never made: its nonce is out of date"),
        pytest.param(State.STARTING, 301.0, False, False, State.STARTING, id="not before the listing"),
        pytest.param(State.STARTING, 301.0, True, True, State.STARTING, id="not during mass silence"),
    ],
)
def test_registration_timeout(state: State, age: float, listed: bool, silence: bool, state_after: State) -> None:
    instance = member("a", state, created=NOW - age)
    follows = after([instance], ev.TimerFired(), size=1, listed=listed, mass_silence=silence)
    assert follows["a"].state is state_after
    given_up = state_after is State.DELETING
    assert len(follows.made) == given_up
    assert follows.decision.trend.failures == given_up


@pytest.mark.parametrize(
    "doubt",
    [
        pytest.param({"listed": False}, id="the provider was not listed yet"),
        pytest.param({"mass_silence": True}, id="during mass silence"),
        pytest.param({"listening_since": NOW - 1.0, "reconnect_grace": 60.0}, id="agents have time to come back"),
    ],
)
@pytest.mark.parametrize(("age", "asked"), [(299.0, "a"), (301.0, "")])
def test_an_intent_is_not_created_after_its_registration_deadline(
    age: float, asked: str, doubt: dict[str, object]
) -> None:
    """Its nonce expired, so that VM could never register; and a provider that forgot the token by now would create a second
    VM. Where it may not be given up yet, it waits."""
    late = member("a", State.PENDING, created=NOW - age)
    follows = after([late], ev.TimerFired(), size=1, observed={"a": observation(last_seen=0.0)}, **doubt)
    assert follows["a"].state is State.PENDING
    assert follows.effects(CreateVm) == asked


def test_a_call_that_waits_too_long_in_the_queue_is_no_failure_of_the_group() -> None:
    """The provider is slow, so the group does not back off."""
    waiting = member("a", State.PENDING, created=NOW - 301.0, provider_id=None)
    follows = after(
        [waiting], ev.TimerFired(), size=1, observed={"a": observation(last_seen=0.0, creating=True, own_intent=True)}
    )
    assert follows["a"].state is State.DELETING
    assert len(follows.made) == 1
    assert follows.decision.trend.failures == 0


def test_after_an_outage_late_vms_get_the_reconnect_grace() -> None:
    """Nothing is deleted until the listing is complete and agents had their time."""
    old = member("a", State.STARTING, created=NOW - 86_400.0)
    follows = after([old], ev.TimerFired(), size=1, listening_since=NOW - 5.0, reconnect_grace=60.0)
    assert follows["a"].state is State.STARTING
    assert follows.decision.wake_at == NOW + 55.0


def test_the_console_of_a_failed_vm_is_kept_once() -> None:
    doomed = member("a", State.DELETING, cause=Cause.UNREGISTERED)
    first = after([doomed])
    assert [e.keep_console for e in first.decision.effects if isinstance(e, DeleteVm)] == [True]
    again = after([doomed], observed={"a": observation(last_seen=0.0, delete_attempts=1)})
    assert [e.keep_console for e in again.decision.effects if isinstance(e, DeleteVm)] == [False]


def test_a_vm_that_ends_before_it_registers_counts_as_a_failure() -> None:
    follows = after([member("a", State.STARTING)], ev.VmChecked(name("a"), VmState.DOWN, ProviderId("i-a")), size=1)
    assert follows.decision.trend.failures == 1
    assert len(follows.made) == 1


@pytest.mark.parametrize(
    ("state", "after_state"),
    [
        pytest.param(State.PENDING, State.STARTING, id="as expected"),
        pytest.param(State.RUNNING, State.RUNNING, id="the agent was faster"),
        pytest.param(State.DELETING, State.DELETING, id="no longer desired"),
        pytest.param(State.FAILED, State.DELETING, id="given up, and there it is"),
        pytest.param(State.DELETED, State.DELETING, id="closed, and there it is"),
    ],
)
def test_created(state: State, after_state: State) -> None:
    instance = member("a", state, provider_id=None)
    observed = {
        "a": observation(last_seen=NOW - 1.0, creating=True, connected=True, seen_this_term=True, vm=VmState.DELETED)
    }
    if state is State.RUNNING:
        observed = {"a": healthy(creating=True)}
    follows = after(
        [instance], ev.VmCreated(name("a"), ProviderId("i-1")), size=int(instance.counts), observed=observed
    )
    assert follows["a"].state is after_state
    assert follows["a"].provider_id == "i-1"
    assert follows.effects(DeleteVm) == ("a" if after_state is State.DELETING else "")


def test_a_second_vm_does_not_take_over_the_record() -> None:
    follows = after([member("a", State.STARTING)], ev.VmCreated(name("a"), ProviderId("i-other")), size=1)
    assert follows["a"].provider_id == "i-a"


def test_an_unneeded_create_is_settled_before_it_is_deleted() -> None:
    """Surplus intents get a tombstone, then their outcome is awaited, then the VM is deleted."""
    first = after([PENDING], ev.GroupChanged(), size=0, observed=ASKED)
    assert first["a"].state is State.DELETING
    assert first.decision.effects == ()
    tombstone = first["a"]
    for outcome in (ev.VmCreated(name("a"), ProviderId("i-1")), failed(Failure.UNKNOWN), failed(Failure.REFUSED)):
        then = after([tombstone], outcome, size=0, observed=ASKED)
        assert then.effects(DeleteVm) == "a", outcome


ON_DEMAND = ev.InstanceRequested(name("z"), "big", {"k": "v"})


def test_on_demand_is_above_the_size_and_idempotent() -> None:
    follows = after([member("a")], ON_DEMAND, ON_DEMAND, size=1)
    made = follows.made
    assert [(m.id, m.on_demand, m.instance_type, dict(m.vars)) for m in made] == [(name("z"), True, "big", {"k": "v"})]
    assert follows.decision.rejections == {}


@pytest.mark.parametrize(
    ("known", "group", "refusal"),
    [
        pytest.param([member("z")], desired(1), "exists", id="the ID is a managed instance's"),
        pytest.param(
            [member("z", State.DELETED, on_demand=True)], desired(0), "ending", id="an ID is never used again"
        ),
        pytest.param([], desired(0, paused=True), "paused", id="paused"),
    ],
)
def test_on_demand_rejected(known: list[Instance], group: object, refusal: str) -> None:
    follows = after(known, ON_DEMAND, group=group)  # type: ignore[arg-type]
    assert [r.value for r in follows.decision.rejections.values()] == [refusal]
    assert follows.made == []


def test_on_demand_failures_do_not_count_for_the_group() -> None:
    odd = member("a", State.PENDING, on_demand=True)
    follows = after([odd], failed(Failure.REFUSED), size=0, observed=ASKED, trend=Trend(failures=3))
    assert follows["a"].state is State.FAILED
    assert follows.decision.trend.failures == 3
    assert follows.made == []


def test_a_replacement_is_linked_to_what_it_replaces() -> None:
    follows = after([member("a", replace_wanted=True)], size=1)
    assert [(m.replaces, m.replaces_for) for m in follows.made] == [(name("a"), Cause.REQUESTED)]
    linked = replacement("n", "a", Cause.REQUESTED, State.PENDING)
    asked = {"n": observation(last_seen=0.0, creating=True)}
    assert after([member("a", replace_wanted=True), linked], size=1, observed=asked).made == []


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.UNKNOWN])
def test_calls_that_fail_again_and_again_are_shown_until_a_vm_comes(failure: Failure) -> None:
    event = ev.VmCreateFailed(PENDING.id, failure, "AWS does not accept the credentials")
    first = after([PENDING], event, size=1, observed=ASKED)
    assert first.decision.trend.last_error == ""  # once is nothing
    again = replace(ASKED["a"], calls=replace(first.observation("a").calls, creating=True))
    second = after([PENDING], event, size=1, observed={"a": again}, trend=first.decision.trend)
    assert "AWS does not accept the credentials" in second.decision.trend.last_error
    created = ev.VmCreated(PENDING.id, ProviderId("i-1"))
    healed = after([PENDING], created, size=1, observed={"a": again}, trend=second.decision.trend)
    assert healed.decision.trend.last_error == ""
