"""An instance names the one whose place it takes, also after a change of leaders."""

import pytest

from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Trend
from nstance.model.events import Failure, VmState
from nstance.model.instance import Cause, Instance, Put, State
from nstance.model.observation import Observation
from unit.core.core_situation import NOW, After, after, desired, healthy, member, name, observation, replacement

GONE = {"a": healthy(connected=False, lost_at=NOW - 1.0, vm=VmState.DOWN, checked_at=NOW)}


def made_for(follows: After) -> list[tuple[str, str]]:
    """Codes and messages of the creations."""
    ids = {m.id for m in follows.made}
    return [(r.code.value, r.message) for r in follows.decision.reasons if r.instance in ids]


def test_a_replacement_names_the_instance_that_is_gone() -> None:
    follows = after([member("a"), member("b"), member("c")], size=3, observed=GONE)
    [made] = follows.made
    assert (made.replaces, made.predecessor) == (None, name("a"))
    assert made_for(follows) == [("replace", f"replacing {name('a')}: gone")]
    assert not follows["a"].vacant


@pytest.mark.parametrize(
    ("members", "event", "observed", "cause"),
    [
        pytest.param(
            [member("a", State.STARTING, created=NOW - 301.0)], ev.TimerFired(), {}, "unregistered", id="never came"
        ),
        pytest.param(
            [member("a")],
            ev.NoticeReceived(name("a"), ev.NoticeKind.SPOT, NOW + 30.0),
            {},
            "spot-termination",
            id="spot, drained by an operator",
        ),
        pytest.param([member("a")], ev.DeletionRequested(name("a")), {}, "requested", id="deleted by a person"),
    ],
)
def test_a_replacement_names_the_cause(
    members: list[Instance], event: ev.Event, observed: dict[str, Observation], cause: str
) -> None:
    follows = after(members, event, size=1, observed=observed)
    assert made_for(follows) == [("replace", f"replacing {name('a')}: {cause}")]


def test_growth_is_reported_as_scaling_up() -> None:
    follows = after([member("a")], size=3)
    assert made_for(follows) == [("scale-up", "scaling up: 1 of 3 instances running")] * 2
    assert {m.replaces or m.predecessor for m in follows.made} == {None}


def test_growth_and_a_replacement_at_once() -> None:
    follows = after([member("a"), member("b")], size=3, observed=GONE)
    assert [code for code, _ in made_for(follows)] == ["replace", "scale-up"]


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED])
def test_a_group_that_backs_off_remembers_its_vacancies(state: State) -> None:
    """So does the next leader, which has only the records, also when the VM is long gone."""
    waiting = Trend(failures=3, retry_at=NOW + 60.0, infra_hash="h")
    first = after([member("a")], size=1, observed=GONE, trend=waiting)
    assert first.made == []
    assert first["a"].vacant
    ended = NOW if state is State.DELETED else None
    later = after([member("a", state, cause=Cause.GONE, vacant=True, ended=ended)], ev.GroupChanged(), size=1)
    assert made_for(later) == [("replace", f"replacing {name('a')}: gone")]
    assert not later["a"].vacant


def test_a_place_that_is_no_longer_wanted_is_not_vacant() -> None:
    left = member("a", State.DELETED, cause=Cause.GONE, vacant=True)
    smaller = after([left, member("b")], ev.GroupChanged(), size=1)
    assert not smaller["a"].vacant
    again = after([smaller["a"], member("b")], ev.GroupChanged(), size=2)
    assert [code for code, _ in made_for(again)] == ["scale-up"]


def test_a_loss_while_the_size_shrinks_leaves_no_vacancy() -> None:
    follows = after([member("a"), member("b")], size=1, observed=GONE)
    assert follows.made == []
    assert not follows["a"].vacant


def test_an_instance_removed_for_size_is_not_replaced() -> None:
    follows = after([member("a"), member("b")], size=1)
    assert not any(m.vacant for m in follows.members.values())


def test_an_instance_with_a_replacement_leaves_no_vacancy() -> None:
    old = member("a", suspect=True)
    follows = after([old, replacement("b", "a", Cause.UNHEALTHY, State.STARTING)], size=1, observed=GONE)
    assert follows.made == []
    assert not follows["a"].vacant


@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.STALE])
def test_a_failed_replacement_is_created_again_for_the_same_instance(failure: Failure) -> None:
    old = member("a", State.DELETED, cause=Cause.GONE)
    tried = member("b", State.PENDING, created=NOW - 10.0, predecessor=old.id)
    event = ev.VmCreateFailed(tried.id, failure, "no")
    follows = after(
        [old, tried], event, size=1, observed={"b": observation(last_seen=0.0, own_intent=True, creating=True)}
    )
    assert made_for(follows) == [("replace", f"replacing {name('a')}: gone")]


def test_an_unregistered_replacement_is_created_again_for_the_same_instance() -> None:
    old = member("a", State.DELETED, cause=Cause.GONE)
    tried = member("b", State.STARTING, created=NOW - 301.0, predecessor=old.id)
    follows = after([old, tried], ev.TimerFired(), size=1)
    assert made_for(follows) == [("replace", f"replacing {name('a')}: gone")]


def test_failed_growth_is_repeated_as_growth() -> None:
    tried = member("b", State.PENDING, created=NOW - 10.0)
    event = ev.VmCreateFailed(tried.id, Failure.REFUSED, "no")
    follows = after([tried], event, size=1, observed={"b": observation(last_seen=0.0, own_intent=True, creating=True)})
    assert [code for code, _ in made_for(follows)] == [ReasonCode.SCALE_UP.value]


def test_a_replacement_yields_to_an_instance_that_recovers() -> None:
    """The replacement has a place of its own and has not registered; the other instance has."""
    gone = member("a", State.DELETED, cause=Cause.GONE)
    coming = member("b", State.STARTING, predecessor=gone.id)
    back = member("c", State.DRAINING, cause=Cause.UNHEALTHY)
    follows = after([gone, coming, back], ev.AgentConnected(back.id), group=desired(1))
    assert follows["c"].state is State.RUNNING


def test_a_place_is_taken_before_others_are_added() -> None:
    """A reader of the journal entry, in order, never sees growth beside a vacant place."""
    vacancy = member("a", State.DELETING, cause=Cause.DRIFT, vacant=True)
    follows = after([vacancy], size=3)
    order = [change.instance for change in follows.decision.changes if isinstance(change, Put)]
    taken = next(i for i, record in enumerate(order) if record.id == vacancy.id and not record.vacant)
    assert [record.predecessor for record in order[:taken]] == [vacancy.id]
    assert [record.predecessor for record in order[taken + 1 :]] == [None, None]


@pytest.mark.parametrize(
    ("size", "made"),
    [
        pytest.param(4, 2, id="each has a place"),
        pytest.param(3, 1, id="one place too many makes up for one of them"),
        pytest.param(2, 0, id="two do for both"),
    ],
)
def test_a_place_above_the_size_is_not_filled_again(size: int, made: int) -> None:
    """After a listing that looks wrong nothing is deleted, so a group that shrank still has all its instances."""
    there = [member("a", replace_wanted=True), member("b", replace_wanted=True), member("c"), member("d")]
    follows = after(there, ev.TimerFired(), size=size, mass_absence=True)
    assert [m.replaces_for for m in follows.made] == [Cause.REQUESTED] * made
    assert follows.in_state(State.RUNNING) == "abcd"
    # It is about the number alone: as soon as deletions go on, those above the size leave.
    later = after([m for m in follows.members.values() if m not in follows.made], ev.TimerFired(), size=size)
    assert len(later.in_state(State.RUNNING)) == size
