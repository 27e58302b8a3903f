"""What a complete listing proves about the records, and what it does not."""

from typing import Any

import pytest

from nstance.core.inventory import Anomaly, Comparison, Scope, Sightings, compare
from nstance.core.liveness import is_mass_silence
from nstance.model import events as ev
from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId
from nstance.model.instance import Instance, State
from nstance.model.vm import SeenVm
from unit.core.core_situation import KEY, member, name

CLUSTER, SHARD = ClusterId("c"), ShardId("s")


def vm(letter: str, **fields: Any) -> SeenVm:
    tags: dict[str, Any] = {"cluster": CLUSTER, "shard": SHARD, "tenant": KEY.tenant, "group": KEY.name}
    known = {"id": name(letter), "provider_id": ProviderId(f"i-{letter}"), "state": VmState.RUNNING}
    return SeenVm(**known | tags | fields)


def compared(
    vms: list[SeenVm],
    records: list[Instance],
    sightings: Sightings | None = None,
    *,
    address: str = "somewhere",
    delete: bool = False,
) -> tuple[Comparison, list[ev.Event]]:
    addresses = {r.id: address for r in records} if address else {}
    known = {r.id: r for r in records}
    scope = Scope(cluster=CLUSTER, shard=SHARD, agent_addresses=addresses, delete_unknown=delete)
    result = compare(vms, known, sightings or {}, scope)
    return result, [e for events in result.events.values() for e in events]


@pytest.mark.parametrize(
    ("state", "missed"),
    [
        (State.PENDING, False),
        (State.STARTING, True),
        (State.RUNNING, True),
        (State.DRAINING, True),
        (State.DELETING, False),
        (State.DELETED, False),
        (State.FAILED, False),
    ],
)
def test_expected_vms_that_are_missing(state: State, missed: bool) -> None:
    result, events = compared([], [member("a", state)])
    assert events == ([ev.VmMissingFromListing(name("a"))] if missed else [])
    assert result.missing == ((name("a"),) if missed else ())
    assert not result.mass_absence


def test_listed_vms_are_checked() -> None:
    _, events = compared([vm("a", ip4="1.2.3.4")], [member("a", State.PENDING)])
    assert events == [ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-a"), ip4="1.2.3.4")]


@pytest.mark.parametrize("fields", [{"cluster": None, "tenant": None}, {"shard": ShardId("edited")}])
def test_the_record_wins_over_edited_tags(fields: dict[str, Any]) -> None:
    _, events = compared([vm("a", **fields)], [member("a")])
    assert events == [ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-a"))]


def test_an_orphan_needs_two_sightings() -> None:
    first, events = compared([vm("x")], [], delete=True)
    assert (events, first.sightings) == ([], {(Anomaly.ORPHAN, name("x")): 1})
    _, events = compared([vm("x")], [], first.sightings, delete=True)
    assert events == [ev.OrphanFound(name("x"), ProviderId("i-x"))]
    # Not seen in between: it starts over.
    between, _ = compared([], [], first.sightings)
    assert between.sightings == {}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"cluster": None}, id="no cluster"),
        pytest.param({"cluster": ClusterId("other")}, id="another cluster"),
        pytest.param({"shard": None}, id="no shard"),
        pytest.param({"shard": ShardId("other")}, id="another shard"),
        pytest.param({"tenant": None}, id="no tenant"),
        pytest.param({"group": None}, id="no group"),
        pytest.param({"tenant": TenantId("../x")}, id="no valid tenant"),
        pytest.param({"group": GroupName("A--B")}, id="no valid group"),
        pytest.param({"id": InstanceId("i-am-a-pet")}, id="no valid ID"),
        pytest.param({"state": VmState.DELETED}, id="gone already"),
    ],
)
def test_vms_of_others_are_never_orphans(fields: dict[str, Any]) -> None:
    """Also if somebody edited tags, or another cluster uses the same account."""
    stranger = vm("x", **fields)
    result, events = compared([stranger], [], {(Anomaly.ORPHAN, stranger.id): 5}, delete=True)
    assert (events, result.sightings) == ([], {})


@pytest.mark.parametrize("state", [State.DELETED, State.FAILED])
def test_a_vm_whose_record_ended_needs_two_sightings(state: State) -> None:
    """Listings show for a while what was just deleted."""
    first, events = compared([vm("a")], [member("a", state)])
    assert events == []
    _, events = compared([vm("a")], [member("a", state)], first.sightings)
    assert events == [ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-a"))]
    _, events = compared([vm("a", state=VmState.DELETED)], [member("a", state)], first.sightings)
    assert events == []


@pytest.mark.parametrize("before", [Anomaly.ORPHAN, Anomaly.DUPLICATE])
def test_earlier_sightings_do_not_count_after_the_end(before: Anomaly) -> None:
    """A listing that lags shows an orphan for a moment after it was deleted."""
    result, events = compared([vm("a")], [member("a", State.DELETED)], {(before, name("a")): 2})
    assert (events, result.sightings) == ([], {(Anomaly.LATE, name("a")): 1})


class TestDuplicateVms:
    SECOND = vm("a", provider_id=ProviderId("i-2"))

    def test_two_sightings(self) -> None:
        first, events = compared([self.SECOND, vm("a")], [member("a")])
        assert events == [ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-a"))]
        _, events = compared([self.SECOND, vm("a")], [member("a")], first.sightings)
        assert [e for e in events if not isinstance(e, ev.VmChecked)] == [
            ev.DuplicateVmFound(name("a"), self.SECOND.provider_id)
        ]

    @pytest.mark.parametrize("state", [State.RUNNING, State.DRAINING])
    @pytest.mark.parametrize(
        ("address", "found"),
        [
            pytest.param(
                "10.0.0.1", [ev.DuplicateVmFound(name("a"), ProviderId("i-2"))], id="the known one has registered"
            ),
            pytest.param(
                "10.0.0.2",
                [ev.AgentSeenOnVm(name("a"), ProviderId("i-2"), ip4="10.0.0.2")],
                id="the other one has registered",
            ),
            pytest.param("", [], id="no agent is connected: it may be either"),
            pytest.param("192.0.2.1", [ev.DuplicateVmFound(name("a"), ProviderId("i-2"))], id="address of neither"),
        ],
    )
    def test_the_vm_without_the_agent_is_deleted(self, state: State, address: str, found: list[ev.Event]) -> None:
        vms = [vm("a", provider_id=ProviderId("i-2"), ip4="10.0.0.2"), vm("a", ip4="10.0.0.1")]
        _, events = compared(vms, [member("a", state)], {(Anomaly.DUPLICATE, name("a")): 1}, address=address)
        assert events[1:] == found

    def test_one_that_never_registered_needs_no_address(self) -> None:
        _, events = compared(
            [vm("a"), self.SECOND], [member("a", State.STARTING)], {(Anomaly.DUPLICATE, name("a")): 1}, address=""
        )
        assert events[1:] == [ev.DuplicateVmFound(name("a"), ProviderId("i-2"))]

    def test_a_deleted_vm_is_no_duplicate(self) -> None:
        dead = vm("a", provider_id=ProviderId("i-2"), state=VmState.DELETED)
        _, events = compared([dead, vm("a")], [member("a")], {(Anomaly.DUPLICATE, name("a")): 1})
        assert not any(isinstance(e, ev.DuplicateVmFound) for e in events)

    def test_the_duplicate_is_not_mistaken_for_the_recorded_vm(self) -> None:
        result, events = compared([self.SECOND], [member("a")])
        assert events == [ev.VmMissingFromListing(name("a"))]
        assert result.sightings == {(Anomaly.DUPLICATE, name("a")): 1}

    @pytest.mark.parametrize("turned", [False, True])
    def test_an_intent_adopts_the_same_one_whatever_the_order(self, turned: bool) -> None:
        vms = [vm("a"), self.SECOND]
        _, events = compared(vms[::-1] if turned else vms, [member("a", State.PENDING)])
        assert events == [ev.VmChecked(name("a"), VmState.RUNNING, ProviderId("i-2"))]


@pytest.mark.parametrize(
    ("total", "missing", "mass"),
    [
        pytest.param(3, 3, False, id="three of three: believed, and looked up"),
        pytest.param(4, 4, True, id="four of four"),
        pytest.param(20, 4, False, id="four of twenty: a fifth"),
        pytest.param(20, 5, True, id="five of twenty"),
        pytest.param(15, 3, False, id="three are never many"),
        pytest.param(15, 4, True, id="four of fifteen"),
    ],
)
def test_mass_absence(total: int, missing: int, mass: bool) -> None:
    """Nothing is concluded, each VM is looked up on its own, and no orphan is deleted because of such a listing."""
    letters = "abcdefghjkmnpqrstvwxyz"[:total]
    shown = [vm(x) for x in letters[missing:]] + [vm("0")]
    result, events = compared(shown, [member(x) for x in letters], {(Anomaly.ORPHAN, name("0")): 1}, delete=True)
    assert result.mass_absence == mass
    assert sum(isinstance(e, ev.VmMissingFromListing) for e in events) == missing
    assert sum(isinstance(e, ev.OrphanFound) for e in events) == (not mass)


def test_a_vm_that_was_never_seen_is_looked_up_and_does_not_discredit_the_listing() -> None:
    records = [member(x, State.STARTING, seen=False) for x in "abcdef"]
    result, events = compared([], records)
    assert not result.mass_absence
    assert len(events) == 6


@pytest.mark.parametrize(
    ("silent", "agents", "before", "mass"),
    [
        pytest.param(0, 0, False, False, id="nobody"),
        pytest.param(2, 2, False, False, id="two are never many"),
        pytest.param(3, 9, False, False, id="a third is not more than a third"),
        pytest.param(3, 8, False, True, id="three of eight"),
        pytest.param(60, 100, False, True, id="most agents silent"),
        pytest.param(3, 9, True, True, id="it lasts while agents return"),
        pytest.param(2, 11, True, True, id="... down to a sixth"),
        pytest.param(2, 12, True, False, id="and ends"),
        pytest.param(1, 3, True, False, id="one that never returns does not keep it up"),
        pytest.param(0, 50, True, False, id="all are back"),
    ],
)
def test_mass_silence(silent: int, agents: int, before: bool, mass: bool) -> None:
    assert is_mass_silence(silent, agents, before=before) == mass
