"""Garbage collection: at each interval the provider is listed and compared with the records.

The first listing of a term comes at once; before it is complete nothing is deleted. One that fails or is partial is no
listing at all.
"""

import logging
from collections.abc import Callable, Mapping

from nstance.clock import Clock
from nstance.core import inventory
from nstance.model.decision import ReasonCode
from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupKey, InstanceId, ShardId
from nstance.model.vm import SeenVm
from nstance.providers import errors
from nstance.providers.port import Instances, Vm
from nstance.server.cloud.effects import MEANING
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.state.shard import Shard
from nstance.server.state.unknown_vms import describe
from nstance.tasks.backoff import Backoff
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)

RETRY = Backoff(0.5, 30.0)


class InventoryReconciler:
    def __init__(
        self,
        shard: Shard,
        provider: Instances,
        *,
        cluster: ClusterId,
        name: ShardId,
        clock: Clock,
        calls: ProviderCalls,
        voices: Callable[[], Mapping[InstanceId, str]],
    ) -> None:
        """`voices`: the addresses from which the agents that are connected speak."""
        self._shard = shard
        self._provider = provider
        self._cluster = cluster
        self._name = name
        self._clock = clock
        self._calls = calls
        self._voices = voices
        self._sightings: inventory.Sightings = {}
        self._missed: dict[InstanceId, float] = {}  # by the last listing, and since when

    async def run(self) -> None:
        await refresh_forever(
            self._collect,
            clock=self._clock,
            interval=lambda: self._shard.policy.gc_interval,
            expected=errors.ProviderError,
            on_failure=self._on_failure,
        )

    def _on_failure(self, problem: errors.ProviderError, failures: int) -> float:
        wait = max(getattr(problem, "delay", 0.0), RETRY.delay(failures))
        log.warning(
            "failed to list VMs, nothing is concluded from that", extra={"error": str(problem), "retry": round(wait, 1)}
        )
        return wait

    async def _collect(self) -> None:
        await self._shard.term.ready()
        asked = self._clock.steady()
        vms = await self._calls.once("list", self._calls.listings, self._provider.list)
        shard = self._shard
        found = inventory.compare(
            (_seen(vm) for vm in vms),
            shard.instances,
            self._sightings,
            inventory.Scope(
                cluster=self._cluster,
                shard=self._name,
                agent_addresses=self._voices(),
                found_by_lookup=self._found_singly(),
                asked=asked,
                delete_unknown=shard.policy.delete_unknown,
            ),
        )
        self._sightings = found.sightings
        now = self._clock.steady()
        self._missed = {id: self._missed.get(id, now) for id in found.missing}
        if found.mass_absence and not shard.mass_absence:
            message = f"{len(found.missing)} VMs are missing from one listing: deletions stop, and each one is asked for singly"
            shard.event_log.record_for_all(ReasonCode.MASS_ABSENCE, message)
        elif shard.mass_absence and not found.mass_absence:
            shard.event_log.record_for_all(
                ReasonCode.MASS_ABSENCE, "the VMs that were missing are accounted for: deletions go on"
            )
        for key, new in shard.unknown.update(found.unknown, now).items():
            shard.event_log.record(key, ReasonCode.UNKNOWN_VM, describe(new), new[0].vm.id if len(new) == 1 else None)
            shard.look_again([key])
        if found.too_many_unknown and not shard.too_many_unknown:
            message = f"{len(found.unknown)} unknown VMs are too many to delete without a person: they are held"
            shard.event_log.record_for_all(ReasonCode.UNKNOWN_VM, message)
        shard.too_many_unknown = found.too_many_unknown
        for key, events in found.events.items():
            for event in events:
                shard.post(event, key=GroupKey(*key))
        shard.set_listing(mass_absence=found.mass_absence)

    def _found_singly(self) -> set[InstanceId]:
        """Those that a listing lacked and that were seen to run since."""
        facts = self._shard.facts
        return {
            id
            for id, since in self._missed.items()
            if (f := facts.get(id)) is not None
            and f.vm.state is VmState.RUNNING
            and f.vm.checked_at is not None
            and f.vm.checked_at >= since
        }


def _seen(vm: Vm) -> SeenVm:
    return SeenVm(
        id=vm.id,
        provider_id=vm.provider_id,
        state=MEANING[vm.status],
        ip4=vm.ip4,
        ip6=vm.ip6,
        hostname=vm.hostname,
        cluster=vm.cluster,
        shard=vm.shard,
        tenant=vm.tenant,
        group=vm.group,
    )
