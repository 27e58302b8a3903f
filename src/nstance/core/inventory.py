"""Compare a complete listing of the provider's VMs with the records.

A listing that failed or is partial never gets here. A VM that is missing from a listing is no proof either: it is looked
up on its own, and when many are missing at once, deletions stop. A VM without a record may belong to somebody else, so it
is ours only with all tags and a valid ID. If it is ours, the records may be outdated, as after a restored backup: such
VMs are held. If the configuration says that they are deleted, that takes two listings, and many at once wait for a person.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from nstance.model import ids
from nstance.model.events import (
    AgentSeenOnVm,
    DuplicateVmFound,
    Event,
    OrphanFound,
    VmChecked,
    VmMissingFromListing,
    VmState,
)
from nstance.model.ids import ClusterId, GroupKey, GroupName, InstanceId, ShardId, TenantId
from nstance.model.instance import ENDED, Instance, State
from nstance.model.vm import SeenVm

SIGHTINGS = 2
# Up to this many VMs, or this share of them, may be missing or be deleted without a record; more are not believed.
MISSING_AT_LEAST, MISSING_SHARE = 3, 0.2
UNKNOWN_AT_LEAST, UNKNOWN_SHARE = 3, 0.2
_EXPECTED = frozenset({State.STARTING, State.RUNNING, State.DRAINING})
_REGISTERED = frozenset({State.RUNNING, State.DRAINING})


class Anomaly(Enum):
    """Why a VM should not exist. Each is counted on its own: a VM that was deleted as an orphan is shown for a moment
    longer, and its earlier sightings do not prove that it still exists."""

    ORPHAN = auto()
    DUPLICATE = auto()
    LATE = auto()  # its record has ended


Sightings = Mapping[tuple[Anomaly, InstanceId], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose VMs are compared, and what else is known about them. `found_by_lookup`: VMs that earlier listings lacked and a
    lookup found running since: removed tags hide a VM from every listing, which must not stop deletions for good."""

    cluster: ClusterId
    shard: ShardId
    agent_addresses: Mapping[InstanceId, str] = field(default_factory=dict)  # of connected agents
    found_by_lookup: Collection[InstanceId] = ()
    asked: float | None = None  # when the provider was called
    delete_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    events: Mapping[GroupKey, tuple[Event, ...]]
    sightings: Sightings  # for the next comparison
    unknown: tuple[SeenVm, ...] = ()  # ours and without a record
    too_many_unknown: bool = False  # to be deleted without a person
    missing: tuple[InstanceId, ...] = ()
    mass_absence: bool = False


class _Findings:
    def __init__(self, before: Sightings) -> None:
        self.events: dict[GroupKey, list[Event]] = {}
        self.sightings: dict[tuple[Anomaly, InstanceId], int] = {}
        self._before = before

    def add(self, key: GroupKey, event: Event) -> None:
        self.events.setdefault(key, []).append(event)

    def count_sighting(self, anomaly: Anomaly, id: InstanceId) -> bool:
        """Returns whether there were enough sightings to act."""
        self.sightings[anomaly, id] = self._before.get((anomaly, id), 0) + 1
        return self.sightings[anomaly, id] >= SIGHTINGS


def compare(
    vms: Iterable[SeenVm], records: Mapping[InstanceId, Instance], sightings: Sightings, scope: Scope
) -> Comparison:
    shown: dict[InstanceId, list[SeenVm]] = {}
    for vm in vms:
        shown.setdefault(vm.id, []).append(vm)
    missing, mass_absence = _find_missing(shown, records, scope.found_by_lookup)
    found = _Findings(sightings)
    unknown: list[SeenVm] = []
    for id in missing:
        found.add(records[id].key, VmMissingFromListing(id))
    for id, group in shown.items():
        record = records.get(id)
        if record is None:
            unknown += [vm for vm in group if _is_ours(vm, scope)]
        elif ours := [vm for vm in group if _belongs_to(vm, record, scope)]:
            _compare_known(found, record, ours, scope)
    total = sum(map(len, shown.values()))
    too_many = scope.delete_unknown and len(unknown) > max(UNKNOWN_AT_LEAST, UNKNOWN_SHARE * total)
    can_delete = scope.delete_unknown and not too_many and not mass_absence
    for vm in unknown:
        if found.count_sighting(Anomaly.ORPHAN, vm.id) and can_delete:
            key = GroupKey(TenantId(vm.tenant or ""), GroupName(vm.group or ""))
            found.add(key, OrphanFound(vm.id, vm.provider_id))
    return Comparison(
        events={key: tuple(events) for key, events in found.events.items()},
        sightings=found.sightings,
        unknown=tuple(unknown),
        too_many_unknown=too_many,
        missing=tuple(missing),
        mass_absence=mass_absence,
    )


def _find_missing(
    shown: Mapping[InstanceId, list[SeenVm]],
    records: Mapping[InstanceId, Instance],
    found_by_lookup: Collection[InstanceId],
) -> tuple[list[InstanceId], bool]:
    """The expected VMs that are missing, and whether these are too many to be believed."""
    expected = [r for r in records.values() if r.state in _EXPECTED]
    missing = [r for r in expected if not any(_is_named_by(vm, r) for vm in shown.get(r.id, ()))]
    # A VM that was never seen may lag behind its creation, which says nothing against the listing.
    lost = sum(r.seen and r.id not in found_by_lookup for r in missing)
    return [r.id for r in missing], lost > max(MISSING_AT_LEAST, MISSING_SHARE * sum(r.seen for r in expected))


def _is_named_by(vm: SeenVm, record: Instance) -> bool:
    return record.provider_id is None or vm.provider_id == record.provider_id


def _belongs_to(vm: SeenVm, record: Instance, scope: Scope) -> bool:
    """The record takes precedence over edited tags; without it, tags that name another cluster or shard count."""
    if vm.provider_id == record.provider_id:
        return True
    return vm.cluster in (scope.cluster, None) and vm.shard in (scope.shard, None)


def _compare_known(found: _Findings, record: Instance, vms: list[SeenVm], scope: Scope) -> None:
    # First the VM that the record names, then running ones; the choice does not depend on the listing's order.
    vms.sort(key=lambda v: (not _is_named_by(v, record), v.state is not VmState.RUNNING, v.provider_id))
    if record.state in ENDED:
        # Listings show what was deleted a moment ago; what the next one still shows really exists.
        late = next((v for v in vms if v.state is not VmState.DELETED), None)
        if late is not None and found.count_sighting(Anomaly.LATE, record.id):
            found.add(record.key, _checked(late, scope.asked))
        return
    if _is_named_by(vms[0], record):
        found.add(record.key, _checked(vms[0], scope.asked))
        vms = vms[1:]
    duplicate_vm = next((v for v in vms if v.state is not VmState.DELETED), None)
    if duplicate_vm is None or not found.count_sighting(Anomaly.DUPLICATE, record.id):
        return
    if record.state in _REGISTERED:
        # The VM without the agent is deleted. While the agent is not connected it may be either one, and an address that
        # is neither's proves nothing.
        address = scope.agent_addresses.get(record.id)
        if not address:
            return
        agent_vm = next((v for v in vms if address in (v.ip4, v.ip6) and v.state is not VmState.DELETED), None)
        if agent_vm is not None:
            where = agent_vm.provider_id, agent_vm.ip4, agent_vm.ip6, agent_vm.hostname
            found.add(record.key, AgentSeenOnVm(record.id, *where))
            return
    found.add(record.key, DuplicateVmFound(record.id, duplicate_vm.provider_id))


def _is_ours(vm: SeenVm, scope: Scope) -> bool:
    """An existing VM with all tags and a valid ID."""
    if vm.cluster != scope.cluster or vm.shard != scope.shard or vm.tenant is None or vm.group is None:
        return False
    named = ids.is_instance_id(vm.id) and ids.is_name(vm.tenant) and ids.is_name(vm.group)
    return named and vm.state is not VmState.DELETED


def _checked(vm: SeenVm, asked: float | None) -> VmChecked:
    return VmChecked(vm.id, vm.state, vm.provider_id, vm.ip4, vm.ip6, vm.hostname, asked)
