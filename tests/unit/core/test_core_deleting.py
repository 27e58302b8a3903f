"""Tombstones are followed up until the provider confirms the end; ended records are kept for a while."""

from typing import Any

import pytest

from nstance.model import events as ev
from nstance.model.decision import CheckVm, DeleteDuplicateVm, DeleteVm, Rejection
from nstance.model.events import NoticeKind, VmState
from nstance.model.ids import ProviderId
from nstance.model.instance import Cause, State
from nstance.model.observation import Observation
from unit.core.core_situation import NOW, after, healthy, member, name, observation

DOOMED = member("a", State.DELETING, cause=Cause.SCALE_DOWN)


def observed(**fields: Any) -> dict[str, Observation]:
    return {"a": observation(**{"last_seen": NOW - 10_000.0} | fields)}


@pytest.mark.parametrize(
    ("known", "events", "state", "deleted", "checked"),
    [
        pytest.param({}, [ev.TimerFired()], State.DELETING, "a", "", id="a new leader deletes what is tombstoned"),
        pytest.param({"deleting": True}, [ev.TimerFired()], State.DELETING, "", "", id="not twice at a time"),
        pytest.param(
            {"creating": True}, [ev.TimerFired()], State.DELETING, "", "", id="not while a create is under way"
        ),
        pytest.param(
            {"creating": True, "vm": VmState.DELETED},
            [ev.TimerFired()],
            State.DELETING,
            "",
            "",
            id="... and not closed either",
        ),
        pytest.param(
            {"deleting": True}, [ev.VmDeleted(name("a"), final=True)], State.DELETED, "", "", id="positively gone"
        ),
        pytest.param(
            {"deleting": True},
            [ev.VmDeleted(name("a"), final=False)],
            State.DELETING,
            "",
            "",
            id="accepted is not done",
        ),
        pytest.param(
            {"deleting": True}, [ev.VmDeleteFailed(name("a"), "?")], State.DELETING, "", "", id="failed: a little later"
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 29.0, "vm": VmState.RUNNING, "checking": True},
            [ev.TimerFired()],
            State.DELETING,
            "",
            "",
            id="accepted and still there: patience",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 31.0, "vm": VmState.RUNNING, "checking": True},
            [ev.TimerFired()],
            State.DELETING,
            "a",
            "",
            id="accepted and still running: deleted again",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 9.0, "check_due": NOW},
            [ev.TimerFired()],
            State.DELETING,
            "",
            "a",
            id="it is looked at",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 9.0, "checking": True},
            [ev.VmChecked(name("a"), VmState.ABSENT)],
            State.DELETING,
            "",
            "",
            id="not found right after a delete may be wrong",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 130.0, "vm": VmState.ABSENT, "absent_since": NOW - 119.0, "checking": True},
            [ev.VmChecked(name("a"), VmState.ABSENT)],
            State.DELETING,
            "",
            "",
            id="not found for less than two minutes",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 130.0, "vm": VmState.ABSENT, "absent_since": NOW - 121.0, "checking": True},
            [ev.VmChecked(name("a"), VmState.ABSENT)],
            State.DELETED,
            "",
            "",
            id="not found for two minutes",
        ),
        pytest.param(
            {"vm": VmState.ABSENT, "absent_since": NOW - 500.0, "checked_at": NOW - 1.0},
            [ev.TimerFired()],
            State.DELETING,
            "a",
            "",
            id="long absent, but the delete was never accepted: a create may come late",
        ),
        pytest.param(
            {"delete_accepted_at": NOW - 9.0, "checking": True},
            [ev.VmChecked(name("a"), VmState.DELETED)],
            State.DELETED,
            "",
            "",
            id="positively terminated",
        ),
    ],
)
def test_following_up_a_tombstone(
    known: dict[str, Any], events: list[ev.Event], state: State, deleted: str, checked: str
) -> None:
    follows = after([DOOMED], *events, observed=observed(**known))
    assert follows["a"].state is state
    assert follows.effects(DeleteVm) == deleted
    assert follows.effects(CheckVm) == checked
    fact = follows.observed[name("a")]
    under_way = fact.calls.creating or fact.calls.deleting or fact.calls.checking
    assert under_way or follows.decision.wake_at is not None


@pytest.mark.parametrize("flag", [{"listed": False}, {"mass_absence": True}])
def test_deletions_stop_in_doubt(flag: dict[str, bool]) -> None:
    """A listing that is not believed stops deletions; what the provider confirmed as ended is closed all the same."""
    assert after([DOOMED], **flag).decision.effects == ()
    assert after([DOOMED], observed=observed(vm=VmState.DELETED), **flag)["a"].state is State.DELETED


def test_confirmed_losses_are_replaced_even_if_all_are_lost() -> None:
    follows = after(
        [member(x) for x in "abcd"],
        *(ev.VmChecked(name(x), VmState.DELETED) for x in "abcd"),
        size=4,
        mass_absence=True,
    )
    assert follows.in_state(State.DELETED) == "abcd"
    assert len(follows.made) == 4


@pytest.mark.parametrize(("attempts", "wait"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (99, 30.0)])
def test_failed_deletes_wait(attempts: int, wait: float) -> None:
    known = observed(deleting=True, delete_attempts=attempts)
    follows = after([DOOMED], ev.VmDeleteFailed(name("a"), "?"), observed=known)
    assert follows.decision.wake_at == NOW + wait


@pytest.mark.parametrize("state", [State.DELETED, State.FAILED])
@pytest.mark.parametrize(
    ("ago", "listed", "kept"),
    [
        pytest.param(1799.0, True, True, id="within the retention"),
        pytest.param(1800.0, True, False, id="after it"),
        pytest.param(1800.0, False, True, id="not before the listing: its VM may have turned up"),
    ],
)
def test_retention(state: State, ago: float, listed: bool, kept: bool) -> None:
    follows = after([member("a", state, ended=NOW - ago)], ev.TimerFired(), listed=listed)
    assert (name("a") in follows.members) == kept
    if ago < 1800.0:
        assert follows.decision.wake_at == NOW + 1.0


@pytest.mark.parametrize("state", [State.DELETED, State.FAILED])
def test_a_vm_that_appears_after_its_record_ended_is_deleted(state: State) -> None:
    ended = member("a", state)
    seen = ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-late"))
    follows = after([ended], seen, observed=observed(vm=VmState.DELETED))
    assert (follows["a"].state, follows["a"].ended) == (State.DELETING, None)
    assert [e.provider_id for e in follows.decision.effects if isinstance(e, DeleteVm)] == ["i-late"]
    assert after([ended], ev.VmChecked(name("a"), VmState.DELETED, ProviderId("i-a")))["a"].state is state


def test_an_orphan_gets_a_tombstone_before_it_is_deleted() -> None:
    follows = after([], ev.OrphanFound(name("o"), ProviderId("i-o")))
    (made,) = follows.made
    assert (made.state, made.cause, made.provider_id) == (State.DELETING, Cause.ORPHAN, "i-o")
    assert follows.effects(DeleteVm) == "o"
    known = member("o")
    assert after([known], ev.OrphanFound(name("o"), ProviderId("i-o")), size=1).members == {known.id: known}


class TestDuplicateVms:
    """Two VMs with one ID: the one without the agent is deleted, after its tombstone."""

    FOUND = ev.DuplicateVmFound(name("a"), ProviderId("i-2"))
    SPEAKS = ev.AgentSeenOnVm(name("a"), ProviderId("i-2"), ip4="10.0.0.2")

    def test_found(self) -> None:
        follows = after([member("a")], self.FOUND, size=1)
        assert follows["a"].duplicate_vm == "i-2"
        assert follows["a"].state is State.RUNNING
        assert follows.decision.effects == (DeleteDuplicateVm(name("a"), ProviderId("i-2")),)

    def test_its_delete_is_repeated_until_it_is_gone(self) -> None:
        doubled = member("a", duplicate_vm=ProviderId("i-2"))
        assert after([doubled], size=1, observed={"a": healthy(duplicate_delete_due=NOW + 5.0)}).decision.effects == ()
        assert len(after([doubled], size=1, observed={"a": healthy(duplicate_delete_due=NOW)}).decision.effects) == 1
        gone = after([doubled], ev.DuplicateVmDeleted(name("a"), ProviderId("i-2")), size=1)
        assert gone["a"].duplicate_vm is None

    @pytest.mark.parametrize("record", [member("a", provider_id=None), member("a", provider_id=ProviderId("i-2"))])
    def test_the_only_vm_is_no_duplicate(self, record: Any) -> None:
        assert after([record], self.FOUND, size=1)["a"].duplicate_vm is None

    @pytest.mark.parametrize("state", [State.RUNNING, State.DRAINING])
    def test_the_vm_with_the_agent_is_kept(self, state: State) -> None:
        """Nothing is deleted yet: the VM that was known is found as the double by the next listing."""
        follows = after([member("a", state, ip4="10.0.0.1")], self.SPEAKS, size=int(state is State.RUNNING))
        assert (follows["a"].provider_id, follows["a"].ip4, follows["a"].duplicate_vm) == ("i-2", "10.0.0.2", None)
        assert (follows["a"].state, follows.decision.effects, follows.codes()) == (state, (), {"orphan"})

    @pytest.mark.parametrize(
        "record",
        [
            pytest.param(member("a", duplicate_vm=ProviderId("i-2")), id="its tombstone is written"),
            pytest.param(member("a", State.DELETING), id="the instance is deleted"),
            pytest.param(member("a", State.DELETED), id="the instance is gone"),
        ],
    )
    def test_too_late_to_choose(self, record: Any) -> None:
        assert after([record], self.SPEAKS, size=1)["a"].provider_id == "i-a"

    def test_not_deleted_in_doubt(self) -> None:
        assert after([member("a")], self.FOUND, size=1, listed=False).decision.effects == ()

    def test_the_record_stays_open_until_it_is_deleted(self) -> None:
        doomed = member("a", State.DELETING, duplicate_vm=ProviderId("i-2"))
        follows = after([doomed], observed=observed(vm=VmState.DELETED, duplicate_delete_due=NOW + 5.0))
        assert follows["a"].state is State.DELETING
        assert follows.decision.effects == ()


EVENTS_OF_ONE = [
    ev.VmCreated(name("q"), ProviderId("i")),
    ev.VmCreateFailed(name("q"), ev.Failure.REFUSED, ""),
    ev.VmDeleted(name("q"), final=True),
    ev.VmDeleteFailed(name("q"), ""),
    ev.VmChecked(name("q"), VmState.RUNNING),
    ev.VmMissingFromListing(name("q")),
    ev.DuplicateVmFound(name("q"), ProviderId("i")),
    ev.AgentSeenOnVm(name("q"), ProviderId("i")),
    ev.DuplicateVmDeleted(name("q"), ProviderId("i")),
    ev.Registered(id=name("q"), public_key="k", certificate_serial="1", certificate_expires=0.0),
    ev.Renewed(id=name("q"), public_key="k", certificate_serial="1", certificate_expires=0.0),
    ev.AgentConnected(name("q")),
    ev.AgentLost(name("q")),
    ev.AgentRestarting(name("q")),
    ev.NoticeReceived(name("q"), NoticeKind.SPOT),
    ev.DrainAcknowledged(name("q")),
    ev.DeletionRequested(name("q")),
    ev.ReplacementRequested(name("q")),
]


@pytest.mark.parametrize("event", EVENTS_OF_ONE, ids=lambda e: type(e).__name__)
def test_events_of_unknown_instances_are_rejected(event: ev.Event) -> None:
    follows = after([member("a")], event, size=1)
    assert follows.decision.changes == ()
    assert follows.decision.effects == ()
    assert follows.decision.rejections == {0: Rejection.UNKNOWN}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", EVENTS_OF_ONE, ids=lambda e: type(e).__name__)
def test_any_event_in_any_state_also_twice(event: Any, state: State) -> None:
    """Outcomes arrive late and out of order: nothing raises, and a repetition changes nothing."""
    instance = member("q", state, created=NOW, provider_id=ProviderId("i"))
    size = int(instance.counts)
    once = after([instance], event, size=size)
    twice = after([instance], event, event, size=size)
    assert [m.state for m in once.members.values()] == [m.state for m in twice.members.values()]
    assert once.decision.effects == twice.decision.effects


REGISTERED = ev.Registered(id=name("a"), public_key="k", certificate_serial="1", certificate_expires=9.0, ip4="agent")


@pytest.mark.parametrize(
    ("state", "key", "refusal"),
    [
        pytest.param(State.PENDING, "", None, id="faster than the provider's answer"),
        pytest.param(State.STARTING, "", None, id="as expected"),
        pytest.param(State.RUNNING, "k", None, id="its reply was lost: the same key"),
        pytest.param(State.RUNNING, "other", "key-bound", id="the same nonce with another key"),
        pytest.param(State.DELETING, "", "ending", id="tombstoned"),
        pytest.param(State.FAILED, "", "ending", id="never launched"),
        pytest.param(State.DELETED, "k", "ending", id="gone"),
    ],
)
def test_registration(state: State, key: str, refusal: str | None) -> None:
    registered = NOW - 5.0 if key else None
    instance = member("a", state, created=NOW, public_key=key, registered=registered, ip4="cloud")
    follows = after([instance], REGISTERED, size=1)
    assert [r.value for r in follows.decision.rejections.values()] == ([refusal] if refusal else [])
    assert follows["a"].public_key == (key or ("" if refusal else "k"))
    assert follows["a"].ip4 == "cloud"
    if refusal is None:
        assert follows["a"].state is State.RUNNING
    if refusal == "key-bound":
        assert "security" in follows.codes()


def test_of_two_registrations_only_the_first_wins() -> None:
    """With two keys and one nonce, as an attacker would."""
    other = ev.Registered(id=name("a"), public_key="z", certificate_serial="2", certificate_expires=9.0)
    follows = after([member("a", State.STARTING)], REGISTERED, other, size=1)
    assert follows["a"].public_key == "k"
    assert follows.decision.rejections == {1: Rejection.KEY_BOUND}


def test_an_agent_that_registers_before_the_create_answer_gets_its_provider_id() -> None:
    unknown = member("a", provider_id=None)
    failed = ev.VmCreateFailed(name("a"), ev.Failure.UNKNOWN, "")
    assert after([unknown], failed, size=1, observed={"a": healthy(creating=True)}).effects(CheckVm) == "a"
    known = after([unknown], ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-9"), ip4="1.2.3.4"), size=1)
    assert (known["a"].provider_id, known["a"].ip4) == ("i-9", "1.2.3.4")


def test_an_unknown_status_still_shows_that_the_vm_exists() -> None:
    instance = member("a", State.STARTING, seen=False, created=NOW)
    follows = after([instance], ev.VmChecked(name("a"), VmState.UNKNOWN, ProviderId("i-a")), size=1)
    assert follows["a"].seen
    assert follows.observation("a").calls.check_due is None


def test_a_healthy_idle_group_writes_nothing() -> None:
    members = [member(x) for x in "abc"]
    listing = [ev.VmChecked(m.id, VmState.RUNNING, m.provider_id) for m in members]
    follows = after(members, *listing, ev.TimerFired(), size=3)
    assert follows.decision.changes == ()
    assert follows.decision.effects == ()
    assert follows.decision.reasons == ()
