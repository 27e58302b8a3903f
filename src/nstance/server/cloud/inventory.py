"""Compares the provider's VMs with the records at each interval.

The first listing of a term is made at once; before it is complete nothing is deleted. A listing that fails or is partial
counts as no listing.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from nstance.clock import Clock
from nstance.core import inventory
from nstance.model.counts import count
from nstance.model.decision import ReasonCode
from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupKey, InstanceId, ShardId
from nstance.model.instance import ENDED
from nstance.model.vm import ListedVm, SeenVm
from nstance.providers import errors
from nstance.providers.port import Folder, Instances, Vm
from nstance.server.cloud.effects import VM_STATES
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.state.alarms import AlarmKind
from nstance.server.state.shard import Shard
from nstance.server.state.unknown_vms import describe
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)

REPORTED_AT = 3  # failures in a row: then it is no mishap
REPORTED_AGAIN_AFTER = 60  # half an hour, because `status` shows the last hour
_LISTED = tuple(each.name for each in fields(ListedVm))


@dataclass(slots=True)
class InventoryReconciler:
    shard: Shard
    provider: Instances
    cluster: ClusterId
    name: ShardId
    clock: Clock
    calls: ProviderCalls
    agent_addresses: Callable[[], Mapping[InstanceId, str]]  # of connected agents
    folder: Folder | None = None  # of the provider, before it was opened in this term
    _sightings: inventory.Sightings = field(default_factory=dict, init=False)
    _problems: dict[InstanceId, str] = field(default_factory=dict, init=False)  # of VMs in the last listing
    _is_away: bool = field(default=False, init=False)  # the provider, and that was reported
    _missing_since: dict[InstanceId, float] = field(default_factory=dict, init=False)  # from the last listing

    async def run(self) -> None:
        await refresh_forever(
            self._reconcile,
            clock=self.clock,
            interval=lambda: self.shard.policy.gc_interval,
            expected=errors.ProviderError,
            on_failure=self._on_failure,
        )

    def _on_failure(self, error: errors.ProviderError, failures: int) -> float:
        delay = max(getattr(error, "delay", 0.0), self.calls.waits.listing_retry.delay(failures))
        log.warning("failed to list VMs", extra={"error": str(error), "retry_seconds": round(delay, 1)})
        if failures >= REPORTED_AT:
            self._is_away = True
            held = "" if self.shard.listed else " and nothing is deleted"
            message = f"the provider does not list the VMs, so none is found missing or unknown{held}: {error}"
            self.shard.alarms.set(AlarmKind.PROVIDER, message)
            if failures % REPORTED_AGAIN_AFTER == REPORTED_AT:
                self.shard.event_log.record_for_all(ReasonCode.PROVIDER, message)
        return delay

    async def _reconcile(self) -> None:
        await self.shard.term.ready()
        await self._open_folder()
        asked = self.clock.steady()
        vms = await self.calls.once("list", self.calls.listings, self.provider.list)
        shard = self.shard
        if self._is_away:
            self._is_away = False
            shard.alarms.set(AlarmKind.PROVIDER, "")
            shard.event_log.record_for_all(ReasonCode.PROVIDER, "the provider lists the VMs again")
        found = inventory.compare(
            (_seen(vm) for vm in vms),
            shard.instances,
            self._sightings,
            inventory.Scope(
                cluster=self.cluster,
                shard=self.name,
                agent_addresses=self.agent_addresses(),
                found_by_lookup=self._found_by_lookup(),
                asked=asked,
                delete_unknown=shard.policy.delete_unknown,
            ),
        )
        self._sightings = found.sightings
        now = self.clock.steady()
        self._missing_since = {id: self._missing_since.get(id, now) for id in found.missing}
        message = f"{len(found.missing)} VMs are missing from one listing: deletions stop, each VM is looked up"
        shard.alarms.set(AlarmKind.MASS_ABSENCE, message if found.mass_absence else "")
        if found.mass_absence and not shard.mass_absence:
            shard.event_log.record_for_all(ReasonCode.MASS_ABSENCE, message)
        elif shard.mass_absence and not found.mass_absence:
            shard.event_log.record_for_all(ReasonCode.MASS_ABSENCE, "no VMs are missing any more: deletions continue")
        for key, new in shard.unknown.update(found.unknown, now).items():
            shard.event_log.record(key, ReasonCode.UNKNOWN_VM, describe(new), new[0].vm.id if len(new) == 1 else None)
            shard.look_again([key])
        if found.too_many_unknown and not shard.too_many_unknown:
            message = f"{len(found.unknown)} unknown VMs are too many to delete automatically: they are held"
            shard.event_log.record_for_all(ReasonCode.UNKNOWN_VM, message)
        shard.too_many_unknown = found.too_many_unknown
        for key, events in found.events.items():
            for event in events:
                shard.post(event, key=GroupKey(*key))
        shard.set_listing(mass_absence=found.mass_absence)
        self._report_problems(vms)

    def _report_problems(self, vms: Iterable[Vm]) -> None:
        """VMs that stand still, each time that changes."""
        before, self._problems = self._problems, {vm.id: vm.problem for vm in vms if vm.problem}
        event_log, records = self.shard.event_log, self.shard.instances
        for id in before.keys() | self._problems.keys():
            record, problem = records.get(id), self._problems.get(id)
            if record is not None and record.state not in ENDED and problem != before.get(id):
                event_log.record(record.key, ReasonCode.PROVIDER, problem or "the VM continued", id)
        counts = Counter(self._problems.values())
        paused = {problem: f"{count(counts[problem], 'VM')} paused: {problem}" for problem in sorted(counts)}
        self.shard.alarms.set(AlarmKind.PAUSED_VMS, "; ".join(paused.values()))
        for problem in sorted(paused.keys() - {*before.values()}):
            event_log.record_for_all(ReasonCode.PROVIDER, paused[problem])
        if before and not self._problems:
            event_log.record_for_all(ReasonCode.PROVIDER, "no VM is paused any more")

    async def _open_folder(self) -> None:
        if self.folder is not None:
            live = (each for each in self.shard.instances.values() if each.state not in ENDED)
            await self.folder.open_folder([each.provider_id for each in live if each.provider_id is not None])
            self.folder = None

    def _found_by_lookup(self) -> set[InstanceId]:
        """Instances that a listing lacked and that a single lookup has found running since."""
        facts = self.shard.facts
        return {
            id
            for id, since in self._missing_since.items()
            if (f := facts.get(id)) is not None
            and f.vm.state is VmState.RUNNING
            and f.vm.checked_at is not None
            and f.vm.checked_at >= since
        }


def _seen(vm: Vm) -> SeenVm:
    return SeenVm(state=VM_STATES[vm.status], **{name: getattr(vm, name) for name in _LISTED})
