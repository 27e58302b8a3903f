"""Garbage collection: a complete listing of the provider's VMs against the records.

Whoever calls this has a listing that is complete; one that failed or is partial never gets here. What a listing lacks is
no proof either: it only makes each missing VM be asked for singly, and when much is missing at once, deletions stop. The
trap: a VM that no record knows may belong to somebody else, so it is ours only with every tag and a valid ID. And if it is
ours, the records may be the older of the two, as after a restored backup: such VMs are held. Where the configuration says
that they are deleted, that takes two listings, and many at once wait for a person.
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
MISSING_AT_LEAST = 3
MISSING_SHARE = 0.2
UNKNOWN_AT_LEAST = 3
UNKNOWN_SHARE = 0.2
_EXPECTED = frozenset({State.STARTING, State.RUNNING, State.DRAINING})
_REGISTERED = frozenset({State.RUNNING, State.DRAINING})


class Anomaly(Enum):
    """What a VM is that should not be there. Each is counted by itself: an orphan that was just deleted is shown a moment
    longer, and having been seen as an orphan before does not mean that it is still there."""

    ORPHAN = auto()
    DOUBLE = auto()
    LATE = auto()  # its record has ended


Sightings = Mapping[tuple[Anomaly, InstanceId], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    events: Mapping[GroupKey, tuple[Event, ...]]
    sightings: Sightings  # for the next comparison
    unknown: tuple[SeenVm, ...] = ()  # ours, and in no record
    orphans: tuple[SeenVm, ...] = ()  # those of them that are to be deleted
    too_many_unknown: bool = False  # to be deleted without a person's word
    duplicate_vms: tuple[SeenVm, ...] = ()
    missing: tuple[InstanceId, ...] = ()
    mass_absence: bool = False


@dataclass(slots=True)
class _Findings:
    events: dict[GroupKey, list[Event]] = field(default_factory=dict)
    sightings: dict[tuple[Anomaly, InstanceId], int] = field(default_factory=dict)
    orphans: list[SeenVm] = field(default_factory=list)
    duplicate_vms: list[SeenVm] = field(default_factory=list)

    def add(self, key: GroupKey, event: Event) -> None:
        self.events.setdefault(key, []).append(event)

    def sight(self, what: Anomaly, id: InstanceId, before: Sightings) -> bool:
        """One more sighting; says whether there were enough."""
        self.sightings[what, id] = before.get((what, id), 0) + 1
        return self.sightings[what, id] >= SIGHTINGS


def compare(
    vms: Iterable[SeenVm],
    records: Mapping[InstanceId, Instance],
    sightings: Sightings,
    *,
    cluster: ClusterId,
    shard: ShardId,
    voices: Mapping[InstanceId, str],
    found_singly: Collection[InstanceId] = (),
    asked: float | None = None,
    delete_unknown: bool = False,
) -> Comparison:
    """`voices`: the addresses from which the agents that are connected speak. `asked`: when the provider was asked.
    `found_singly`: VMs that earlier listings lacked too, and that a single look has found running since: tags that somebody
    stripped hide a VM from every listing, and that must not stop deletions for good."""
    shown: dict[InstanceId, list[SeenVm]] = {}
    for vm in vms:
        shown.setdefault(vm.id, []).append(vm)
    missing, mass_absence = _missing(shown, records, found_singly)
    found = _Findings()
    unknown: list[SeenVm] = []
    for id in missing:
        found.add(records[id].key, VmMissingFromListing(id))
    for id, group in shown.items():
        record = records.get(id)
        if record is not None:
            mine = [vm for vm in group if _is_of(vm, record, cluster, shard)]
            if mine:
                _known(found, record, mine, sightings, voices.get(id), asked)
        else:
            unknown += [vm for vm in group if _is_ours(vm, cluster, shard)]
    shown_ours = sum(map(len, shown.values()))
    too_many = delete_unknown and len(unknown) > max(UNKNOWN_AT_LEAST, UNKNOWN_SHARE * shown_ours)
    for vm in unknown:
        if found.sight(Anomaly.ORPHAN, vm.id, sightings) and delete_unknown and not (too_many or mass_absence):
            found.orphans.append(vm)
            key = GroupKey(TenantId(vm.tenant or ""), GroupName(vm.group or ""))
            found.add(key, OrphanFound(vm.id, vm.provider_id))
    return Comparison(
        events={key: tuple(events) for key, events in found.events.items()},
        sightings=found.sightings,
        unknown=tuple(unknown),
        orphans=tuple(found.orphans),
        too_many_unknown=too_many,
        duplicate_vms=tuple(found.duplicate_vms),
        missing=tuple(missing),
        mass_absence=mass_absence,
    )


def _missing(
    shown: Mapping[InstanceId, list[SeenVm]],
    records: Mapping[InstanceId, Instance],
    found_singly: Collection[InstanceId],
) -> tuple[list[InstanceId], bool]:
    """Which VMs should be there and are not; and whether these are too many to be believed."""
    expected = [r for r in records.values() if r.state in _EXPECTED]
    missing = [r for r in expected if not any(_is_the_one(vm, r) for vm in shown.get(r.id, ()))]
    # One that was never seen may lag behind its creation: that says nothing against the listing.
    lost = sum(r.seen and r.id not in found_singly for r in missing)
    return [r.id for r in missing], lost > max(MISSING_AT_LEAST, MISSING_SHARE * sum(r.seen for r in expected))


def _is_the_one(vm: SeenVm, record: Instance) -> bool:
    return record.provider_id is None or vm.provider_id == record.provider_id


def _is_of(vm: SeenVm, record: Instance, cluster: ClusterId, shard: ShardId) -> bool:
    """The record wins over tags that somebody edited; without it, tags that name others are obeyed."""
    return vm.provider_id == record.provider_id or (vm.cluster in (cluster, None) and vm.shard in (shard, None))


def _known(
    found: _Findings,
    record: Instance,
    vms: list[SeenVm],
    before: Sightings,
    voice: str | None,
    asked: float | None,
) -> None:
    # First the one that the record knows, then those that run; the choice does not depend on the listing's order.
    vms.sort(key=lambda v: (not _is_the_one(v, record), v.state is not VmState.RUNNING, v.provider_id))
    if record.state in ENDED:
        # Listings show what was deleted a moment ago; what they still show the next time is really there.
        late = next((v for v in vms if v.state is not VmState.DELETED), None)
        if late is not None and found.sight(Anomaly.LATE, record.id, before):
            found.add(record.key, _checked(late, asked))
        return
    if _is_the_one(vms[0], record):
        found.add(record.key, _checked(vms[0], asked))
        vms = vms[1:]
    duplicate_vm = next((v for v in vms if v.state is not VmState.DELETED), None)
    if duplicate_vm is None or not found.sight(Anomaly.DOUBLE, record.id, before):
        return
    if record.state in _REGISTERED:
        # The unregistered one goes. As long as nobody speaks it may be either; a voice that is neither's says nothing.
        if not voice:
            return
        speaker = next((v for v in vms if voice in (v.ip4, v.ip6) and v.state is not VmState.DELETED), None)
        if speaker is not None:
            where = speaker.provider_id, speaker.ip4, speaker.ip6, speaker.hostname
            found.add(record.key, AgentSeenOnVm(record.id, *where))
            return
    found.duplicate_vms.append(duplicate_vm)
    found.add(record.key, DuplicateVmFound(record.id, duplicate_vm.provider_id))


def _is_ours(vm: SeenVm, cluster: ClusterId, shard: ShardId) -> bool:
    """With every tag and a valid ID, and there."""
    if vm.cluster != cluster or vm.shard != shard or vm.tenant is None or vm.group is None:
        return False
    named = ids.is_instance_id(vm.id) and ids.is_name(vm.tenant) and ids.is_name(vm.group)
    return named and vm.state is not VmState.DELETED


def _checked(vm: SeenVm, asked: float | None) -> VmChecked:
    return VmChecked(vm.id, vm.state, vm.provider_id, vm.ip4, vm.ip6, vm.hostname, asked)
