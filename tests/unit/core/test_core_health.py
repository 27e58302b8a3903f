"""Finding failed instances: one case per row of the specification's table, and its rules."""

import pytest

from nstance.core import health
from nstance.model import events as ev
from nstance.model.decision import CheckVm, CreateVm, DeleteVm
from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation
from unit.core.core_situation import NOW, after, healthy, lost, member, name, observation, replacement

A, B = member("a"), member("b")
SUSPECT = member("a", suspect=True)
STARTED = replacement("n", "a", Cause.UNHEALTHY, State.STARTING)


def spot(seconds: float | None) -> ev.NoticeReceived:
    return ev.NoticeReceived(A.id, NoticeKind.SPOT, None if seconds is None else NOW + seconds)


SHUTDOWN = ev.NoticeReceived(A.id, NoticeKind.SHUTDOWN)


@pytest.mark.parametrize(
    ("members", "observed", "events", "state", "made", "checked"),
    [
        pytest.param([A], {}, [spot(120.0)], State.DRAINING, 1, "a", id="spot notice: replace and drain now"),
        pytest.param([A], {}, [SHUTDOWN], State.RUNNING, 0, "a", id="shutdown: checked at once"),
        pytest.param([A], {}, [ev.AgentLost(A.id)], State.RUNNING, 0, "a", id="stream closed: checked at once"),
        pytest.param(
            [A],
            {"a": lost(0.5, checks=1, checking=True)},
            [ev.VmChecked(A.id, VmState.DOWN)],
            State.DELETING,
            1,
            "",
            id="stream closed and not running: replace now, no drain",
        ),
        pytest.param(
            [A],
            {"a": lost(0.5, checks=1, checking=True, vm=VmState.UNKNOWN)},
            [ev.VmChecked(A.id, VmState.ABSENT)],
            State.DELETING,
            1,
            "",
            id="stream closed and not found, seen before: replace now",
        ),
        pytest.param(
            [A],
            {"a": lost(0.5, checks=1, checked_at=NOW - 0.1)},
            [ev.VmChecked(A.id, VmState.ABSENT, asked=NOW - 0.3)],
            State.RUNNING,
            0,
            "",
            id="not found, but a listing has shown it since the call",
        ),
        pytest.param(
            [member("a", created=NOW - 119.0, made=NOW - 119.0)],
            {"a": lost(0.5, checks=1, checking=True, checked_at=NOW - 5.0)},
            [ev.VmChecked(A.id, VmState.ABSENT, asked=NOW)],
            State.RUNNING,
            0,
            "",
            id="not found, but young and shown a moment ago: checked again",
        ),
        pytest.param(
            [member("a", created=NOW - 119.0, made=None)],
            {"a": lost(0.5, checks=1, checking=True, checked_at=NOW - 0.6)},
            [ev.VmChecked(A.id, VmState.ABSENT, asked=NOW)],
            State.DELETING,
            1,
            "",
            id="not found, young and shown a moment ago, by a provider whose answers never lag: replace now",
        ),
        pytest.param(
            [member("a", created=NOW - 119.0, made=NOW - 119.0)],
            {"a": lost(0.5, checks=1, checking=True, checked_at=NOW - 5.1)},
            [ev.VmChecked(A.id, VmState.ABSENT, asked=NOW)],
            State.DELETING,
            1,
            "",
            id="not found, young, but not shown of late: replace now",
        ),
        pytest.param(
            [member("a", created=NOW - 121.0)],
            {"a": lost(0.5, checks=1, checking=True, checked_at=NOW - 0.4)},
            [ev.VmChecked(A.id, VmState.ABSENT, asked=NOW - 0.3)],
            State.DELETING,
            1,
            "",
            id="not found, called after a listing has shown it: replace now",
        ),
        pytest.param(
            [A],
            {"a": lost(1.0, checks=1)},
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "a",
            id="running: checked again after 1 s",
        ),
        pytest.param(
            [A], {"a": lost(1.5, checks=2)}, [ev.TimerFired()], State.RUNNING, 0, "", id="... and not before 2 s"
        ),
        pytest.param(
            [A], {"a": lost(9.0)}, [ev.TimerFired()], State.RUNNING, 0, "", id="unresponsive, but not for long enough"
        ),
        pytest.param(
            [A], {"a": lost(11.0)}, [ev.TimerFired()], State.RUNNING, 1, "", id="suspect: the replacement starts"
        ),
        pytest.param(
            [A],
            {"a": lost(11.0, vm=VmState.UNKNOWN)},
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "",
            id="unresponsive, but the VM state is unknown",
        ),
        pytest.param(
            [A],
            {"a": lost(11.0, checked_at=NOW - 20.0, checks=0)},
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "a",
            id="the provider's word is older than the silence",
        ),
        pytest.param(
            [SUSPECT, STARTED],
            {"a": lost(61.0)},
            [ev.TimerFired()],
            State.DRAINING,
            0,
            "",
            id="dead: drained and deleted",
        ),
        pytest.param(
            [SUSPECT, replacement("n", "a", Cause.UNHEALTHY, State.PENDING)],
            {"a": lost(61.0), "n": observation(last_seen=NOW, creating=True)},
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "",
            id="dead, but its replacement is not made yet",
        ),
        pytest.param(
            [SUSPECT, STARTED],
            {"a": lost(61.0, checked_at=NOW - 30.0)},
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "a",
            id="dead, but not on an old answer",
        ),
        pytest.param(
            [A],
            {"a": healthy()},
            [ev.VmChecked(A.id, VmState.DOWN)],
            State.DELETING,
            1,
            "",
            id="garbage collection finds it stopped: replace now, no drain",
        ),
        pytest.param(
            [A],
            {"a": healthy()},
            [ev.VmMissingFromListing(A.id)],
            State.RUNNING,
            0,
            "a",
            id="missing from a listing: looked up",
        ),
        pytest.param(
            [A],
            {"a": healthy(checking=True)},
            [ev.VmChecked(A.id, VmState.ABSENT)],
            State.RUNNING,
            0,
            "",
            id="not found, but its agent is connected",
        ),
        pytest.param(
            [A],
            {"a": healthy(checking=True)},
            [ev.VmChecked(A.id, VmState.UNKNOWN)],
            State.RUNNING,
            0,
            "",
            id="an error is never read as an absence",
        ),
        pytest.param(
            [A], {}, [ev.AgentRestarting(A.id)], State.RUNNING, 0, "", id="a restart is awaited without a check"
        ),
        pytest.param(
            [A],
            {
                "a": observation(
                    last_seen=NOW - 30.0, seen_this_term=True, restarting=True, vm=VmState.RUNNING, checked_at=NOW
                )
            },
            [ev.TimerFired()],
            State.RUNNING,
            0,
            "",
            id="a restart has dead_after",
        ),
    ],
)
def test_finding_failed_instances(
    members: list[Instance],
    observed: dict[str, Observation],
    events: list[ev.Event],
    state: State,
    made: int,
    checked: str,
) -> None:
    follows = after(members, *events, size=1, observed=observed)
    assert follows["a"].state is state
    assert len(follows.made) == made
    assert follows.effects(CheckVm) == checked
    assert (follows.effects(CreateVm) != "") == bool(made)


def test_a_suspect_is_marked_with_a_reason() -> None:
    follows = after([A], ev.TimerFired(), size=1, observed={"a": lost(11.0)})
    assert follows["a"].suspect
    assert follows.made[0].replaces == A.id
    assert {"suspect", "replace"} <= follows.codes()
    assert follows.decision.wake_at == NOW + 49.0


def test_agent_back_drops_the_replacement() -> None:
    follows = after([SUSPECT, STARTED], ev.AgentConnected(A.id), size=1, observed={"a": lost(30.0)})
    assert not follows["a"].suspect
    assert follows.in_state(State.DELETING) == "n"
    assert "recovered" in follows.codes()


@pytest.mark.parametrize(
    ("old", "policy"),
    [
        pytest.param(member("a", suspect=True, infra_hash="old"), Policy(), id="drifted"),
        pytest.param(SUSPECT, Policy(eligible_age=50.0), id="expired"),
        pytest.param(SUSPECT, Policy(forced_age=50.0), id="past its forced age"),
        pytest.param(member("a", suspect=True, replace_wanted=True), Policy(), id="replacement requested"),
    ],
)
def test_agent_back_but_the_replacement_stays(old: Instance, policy: Policy) -> None:
    there = replacement("n", "a", Cause.UNHEALTHY, created=NOW - 10.0)
    follows = after([old, there], ev.AgentConnected(A.id), size=1, observed={"a": lost(30.0)}, policy=policy)
    assert follows["n"].state is State.RUNNING
    assert follows["a"].state is State.DRAINING


@pytest.mark.parametrize(
    ("seen", "since", "checked", "gone"),
    [
        pytest.param(True, 0.0, 0.0, True, id="seen before: one miss is enough"),
        pytest.param(False, 0.0, 0.0, False, id="never seen: listings lag"),
        pytest.param(False, 119.0, 0.0, False, id="misses over less than two minutes"),
        pytest.param(False, 121.0, 0.0, True, id="consistent misses over two minutes"),
        pytest.param(False, 121.0, 60.0, False, id="one old miss does not become two minutes of misses"),
    ],
)
def test_absence(seen: bool, since: float, checked: float, gone: bool) -> None:
    observed = observation(
        last_seen=NOW - 10_000.0, vm=VmState.ABSENT, checked_at=NOW - checked, absent_since=NOW - since
    )
    follows = after([member("a", State.STARTING, seen=seen)], ev.TimerFired(), size=1, observed={"a": observed})
    assert (follows["a"].state is State.DELETING) == gone
    assert len(follows.made) == gone
    if not gone:
        assert follows.observation("a").calls.check_due == NOW + 10.0


def test_a_pending_instance_is_never_absent() -> None:
    """Until its create is settled there may be no VM."""
    observed = observation(last_seen=0.0, vm=VmState.ABSENT, checked_at=NOW, absent_since=NOW - 500.0, creating=True)
    follows = after([member("a", State.PENDING)], ev.VmMissingFromListing(A.id), size=1, observed={"a": observed})
    assert follows["a"].state is State.PENDING
    assert follows.decision.effects == ()


@pytest.mark.parametrize(
    ("silence", "suspect"),
    [pytest.param(30.0, False, id="within the grace"), pytest.param(41.0, True, id="after it")],
)
def test_new_leader_waits_for_agents(silence: float, suspect: bool) -> None:
    """Silence counts since this leader began to listen, and a fleet gets its time to reconnect."""
    follows = after(
        [A],
        ev.TimerFired(),
        size=1,
        observed={"a": observation(last_seen=NOW - 900.0, vm=VmState.RUNNING, checked_at=NOW)},
        listening_since=NOW - silence,
        reconnect_grace=40.0,
    )
    assert follows["a"].suspect == suspect


def test_mass_silence_replaces_only_what_the_provider_confirms() -> None:
    follows = after(
        [member("a", suspect=True), B, member("c")],
        ev.VmChecked(name("c"), VmState.DELETED),
        size=3,
        observed={"a": lost(100.0), "b": lost(30.0), "c": lost(30.0)},
        mass_silence=True,
    )
    assert follows.in_state(State.RUNNING) == "ab"
    assert not follows["b"].suspect
    assert len(follows.made) == 1
    assert follows.decision.wake_at is not None


@pytest.mark.parametrize(
    ("passed", "suspect", "state"),
    [
        (0.0, False, State.RUNNING),
        (9.0, False, State.RUNNING),
        (11.0, True, State.RUNNING),
        (61.0, True, State.DRAINING),
    ],
)
def test_after_a_mass_silence_remaining_agents_get_their_whole_time(passed: float, suspect: bool, state: State) -> None:
    """When the normal rules return, silence counts from then on."""
    stand_in = replacement("d", "a", Cause.UNHEALTHY)
    follows = after(
        [A, B, stand_in],
        ev.TimerFired(),
        size=2,
        observed={"a": lost(300.0), "b": healthy(), "d": healthy()},
        listening_since=NOW - passed,
    )
    assert (follows["a"].suspect, follows["a"].state) == (suspect, state)


def test_mass_silence_holds_drains_for_silence() -> None:
    drained = member("a", State.DRAINING, cause=Cause.UNHEALTHY, deadline=NOW - 1.0)
    assert (
        after([drained, B], ev.TimerFired(), size=1, mass_silence=True, observed={"a": lost(90.0)})["a"].state
        is State.DRAINING
    )
    assert after([drained, B], ev.TimerFired(), size=1, observed={"a": lost(90.0)})["a"].state is State.DELETING


def test_mass_silence_holds_the_replacement_of_an_instance_that_is_unresponsive_again() -> None:
    """It drains because the old instance reconnected; now it may be the only healthy one."""
    replacement = member("a", State.DRAINING, cause=Cause.SUPERSEDED, deadline=NOW - 1.0)
    silent = {"b": lost(11.0)}
    assert (
        after([replacement, B], ev.TimerFired(), size=1, mass_silence=True, observed=silent)["a"].state
        is State.DRAINING
    )
    assert after([replacement, B], ev.TimerFired(), size=1)["a"].state is State.DELETING


@pytest.mark.parametrize(
    ("passed", "vm", "state"),
    [
        pytest.param(1.0, VmState.RUNNING, State.RUNNING, id="still running, within the grace"),
        pytest.param(1.0, VmState.DOWN, State.DELETING, id="stopping: replaced at once"),
        pytest.param(5.0, VmState.RUNNING, State.DRAINING, id="still running after the grace"),
    ],
)
def test_shutdown_notice(passed: float, vm: VmState, state: State) -> None:
    observed = healthy(notice=NoticeKind.SHUTDOWN, notice_at=NOW - passed, vm=vm, checked_at=NOW, checks=6)
    follows = after([A], ev.TimerFired(), size=1, observed={"a": observed})
    assert follows["a"].state is state
    assert len(follows.made) == (state is not State.RUNNING)


@pytest.mark.parametrize(("checks", "delay"), [(1, 0.4), (2, 0.8), (3, 1.4), (4, 2.0), (5, 4.0)])
def test_after_a_shutdown_notice_the_next_look_comes_soon(checks: int, delay: float) -> None:
    """The VM was still running a moment ago. Its replacement waits for the look that finds it off."""
    observed = healthy(notice=NoticeKind.SHUTDOWN, notice_at=NOW - 0.1, checks=checks)
    follows = after([A], ev.TimerFired(), size=1, observed={"a": observed})
    assert follows.observation("a").calls.check_due == pytest.approx(NOW - 0.1 + delay, rel=0, abs=1e-3)


def test_shutdown_notice_asks_a_few_times_only() -> None:
    observed = healthy(notice=NoticeKind.SHUTDOWN, notice_at=NOW - 4.5, checks=6)
    assert after([A], ev.VmChecked(A.id, VmState.RUNNING), size=1, observed={"a": observed}).decision.effects == ()


@pytest.mark.parametrize(
    ("deadline", "until"),
    [
        pytest.param(120.0, 120.0, id="the provider's deadline"),
        pytest.param(1000.0, 300.0, id="at most the drain timeout"),
        pytest.param(None, 30.0, id="no deadline named: the shortest that clouds give"),
    ],
)
def test_spot_drains_until_the_deadline(deadline: float | None, until: float) -> None:
    follows = after([A], spot(deadline), size=1)
    drain = follows["a"].drain
    assert drain is not None
    assert drain.deadline == NOW + until
    assert follows.decision.wake_at is not None
    assert follows.decision.wake_at <= drain.deadline


def test_spot_without_an_operator_serves_until_its_replacement_is_made() -> None:
    first = after([A], spot(60.0), size=1, operator_seen=None)
    assert first["a"].state is State.RUNNING
    made = first.made[0]
    assert (made.replaces, made.replaces_for) == (A.id, Cause.SPOT)
    then = after(
        [A, replacement("n", "a", Cause.SPOT, State.STARTING)],
        size=1,
        operator_seen=None,
        observed={"a": healthy(notice=NoticeKind.SPOT, notice_at=NOW - 9.0, notice_deadline=NOW + 50.0, checks=4)},
    )
    assert then["a"].state is State.DELETING
    assert then.effects(DeleteVm) == "a"


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_repeated_notices_change_nothing(kind: NoticeKind) -> None:
    """Also during a drain, and for unknown instances."""
    notice = ev.NoticeReceived(A.id, kind, NOW + 60.0)
    once = after([A, B], notice, size=2)
    twice = after([A, B], notice, notice, size=2)
    assert once.members == twice.members
    drains = member("a", State.DRAINING)
    assert after([drains, B], notice, size=1)["a"] == drains
    assert after([B], notice, size=1).members == {B.id: B}


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_later_notice_does_not_weaken_an_earlier_one(kind: NoticeKind) -> None:
    """Without an operator that drains, it serves until the deadline of the first notice."""
    certain = healthy(notice=NoticeKind.SPOT, notice_at=NOW - 9.0, notice_deadline=NOW + 50.0, checks=4)
    later = ev.NoticeReceived(A.id, kind, NOW + 500.0)
    follows = after([A], later, size=1, operator_seen=None, observed={"a": certain})
    assert follows.observation("a").agent.notice is NoticeKind.SPOT
    assert follows.observation("a").agent.notice_deadline == NOW + 50.0


def test_rebalance_is_a_hint_and_replaced_first() -> None:
    hint = ev.NoticeReceived(A.id, NoticeKind.REBALANCE)
    first = after([A, B], hint, size=2)
    assert first.in_state(State.RUNNING) == "ab"
    assert [m.replaces for m in first.made] == [A.id]
    noticed = {"a": healthy(notice=NoticeKind.REBALANCE)}
    there = replacement("n", "a", Cause.SPOT)
    assert after([A, B, there], size=2, observed=noticed).in_state(State.DRAINING) == "a"
    # A new leader does not know the hint: the replacement still takes the place.
    assert after([A, B, there], size=2).in_state(State.DRAINING) == "a"


def test_nothing_is_concluded_before_the_listing() -> None:
    follows = after(
        [A, member("b", suspect=True), replacement("n", "b", Cause.UNHEALTHY)],
        ev.VmChecked(A.id, VmState.DELETED),
        size=1,
        observed={"b": lost(90.0)},
        listed=False,
    )
    assert follows.in_state(State.RUNNING) == "abn"


def test_a_healthy_group_wakes_when_its_first_agent_could_be_unresponsive() -> None:
    follows = after([A], ev.TimerFired(), size=1, observed={"a": healthy(last_seen=NOW - 9.0)})
    assert follows.decision.wake_at == NOW + 1.0


@pytest.mark.parametrize(
    ("waited", "asked", "wake"),
    [
        pytest.param(0.5, "", NOW + 0.5, id="it is still on its way"),
        pytest.param(1.0, "a", None, id="late: checked"),
    ],
)
def test_an_agent_that_registers_and_does_not_connect_is_checked(waited: float, asked: str, wake: float | None) -> None:
    """It may have been killed in between: no connection ends, and `suspect_after` would take ten seconds."""
    registered = observation(last_seen=NOW - waited, seen_this_term=True, awaiting_connection=True)
    follows = after([member("a")], ev.TimerFired(), size=1, observed={"a": registered})
    assert follows.effects(CheckVm) == asked
    assert wake is None or follows.decision.wake_at == wake
    assert not follows["a"].suspect


def test_checks_before_a_registration_do_not_delay_those_after_it() -> None:
    event = ev.Registered(id=name("a"), public_key="k", certificate_serial="1", certificate_expires=NOW)
    follows = after([member("a", State.STARTING)], event, size=1, observed={"a": observation(last_seen=0.0, checks=4)})
    assert follows.decision.wake_at == NOW + health.CONNECT_SECONDS


@pytest.mark.parametrize(("seconds", "state"), [(59.0, State.RUNNING), (61.0, State.DRAINING)])
def test_an_adopted_agent_gets_the_time_of_its_back_off(seconds: float, state: State) -> None:
    """It was rejected while its VM was held, so it may be away for longer than an agent that was connected."""
    away = observation(
        last_seen=NOW - seconds, seen_this_term=True, adopted=True, vm=VmState.RUNNING, checked_at=NOW, checks=4
    )
    replacement_vm = member("b", State.STARTING, replaces=name("a"))
    policy = Policy(suspect_after=5.0, dead_after=15.0)
    follows = after([member("a"), replacement_vm], ev.TimerFired(), observed={"a": away}, policy=policy, size=1)
    assert follows["a"].state is state
