"""Requests about unknown VMs and held groups."""

from nstance.clock import Clock
from nstance.model import events as ev
from nstance.model import ids
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.ids import GroupKey
from nstance.model.vm import UnknownVm
from nstance.server.api import plans
from nstance.server.api.instance_requests import InstanceRequests, Outcome
from nstance.server.api.tenancy import Tenancy
from nstance.server.leader.held_groups import HELD_GROUP
from nstance.server.state.shard import Shard
from nstance.server.state.unknown_vms import key_of, why_held
from nstance.v1 import operator_pb2
from nstance.wire import status


class UnknownVmRequests:
    def __init__(self, shard: Shard, requests: InstanceRequests, clock: Clock) -> None:
        self._shard = shard
        self._requests = requests
        self._clock = clock

    # ---- VMs

    def list_vms(self, tenancy: Tenancy) -> operator_pb2.ListUnknownVmsResponse:
        found = [self._status(u) for u in self._shard.unknown.all() if u.vm.tenant == tenancy.tenant]
        return operator_pb2.ListUnknownVmsResponse(vms=found)

    async def adopt(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> Outcome:
        vm = self._find(tenancy, id).vm
        key = key_of(vm)
        if key not in self._shard.desired_groups:
            raise status.failed_precondition(f"its group {key.name} is not configured: create the group first")
        event = ev.AdoptionRequested(vm.id, tenancy.by)
        refusal, outcome = await self._requests.do(event, key, vm.id, dry_run=dry_run)
        match refusal:
            case None if outcome is not None:
                return outcome
            case Rejection.NO_ROOM:
                size = self._shard.desired_groups[key].size
                raise status.failed_precondition(
                    f"its group {key.name} has its size of {size}: scale it up first, or release the VM"
                )
            case Rejection.NOT_RUNNING:
                raise status.failed_precondition("its VM is not running: start it, or release it")
            case Rejection.PAUSED:
                raise status.failed_precondition("its group is paused, resume it first")
            case _:
                raise _no_vm()

    async def release(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> operator_pb2.ReleaseInstanceResponse:
        vm = self._find(tenancy, id).vm
        event = ev.ReleaseRequested(vm.id, tenancy.by)
        refusal, _ = await self._requests.do(event, key_of(vm), vm.id, dry_run=dry_run)
        if refusal is not None:
            raise _no_vm()
        action = operator_pb2.PlannedAction(
            action="delete",
            instance_id=vm.id,
            reason="requested",
            message=f"deletes the unknown VM {vm.provider_id}",
            group=key_of(vm).name,
        )
        return operator_pb2.ReleaseInstanceResponse(plan=[action] if dry_run else [])

    def _find(self, tenancy: Tenancy, id: str) -> UnknownVm:
        for unknown in self._shard.unknown.all():
            if unknown.vm.id == id and unknown.vm.tenant == tenancy.tenant:
                return unknown
        raise _no_vm()

    def _status(self, unknown: UnknownVm) -> operator_pb2.UnknownVm:
        vm, shard = unknown.vm, self._shard
        desired = shard.desired_groups.get(key_of(vm))
        counting = sum(m.counts for m in shard.members(key_of(vm)).values())
        first_seen = unknown.first_seen - self._clock.steady() + self._clock.wall()
        return operator_pb2.UnknownVm(
            instance_id=vm.id,
            provider_id=vm.provider_id,
            group=key_of(vm).name,
            state=vm.state.value,
            first_seen_unix_ms=int(first_seen * 1000),
            created_unix_ms=int(ids.created_at(vm.id) * 1000),
            ipv4=vm.ip4,
            ipv6=vm.ip6,
            why=why_held(
                unknown,
                configured=desired is not None,
                room=desired is not None and counting < desired.size,
                too_many=shard.too_many_unknown,
            ),
        )

    # ---- groups

    def held(self, tenancy: Tenancy) -> list[str]:
        """The tenant's held groups, for people."""
        return [f"{key.name}: {HELD_GROUP}" for key in self._shard.held_groups() if key.tenant == tenancy.tenant]

    def is_held(self, key: GroupKey) -> bool:
        return key in self._shard.held_groups()

    async def delete_group(self, key: GroupKey, *, by: str) -> None:
        """Records the request in the journal: without it, a group that is not configured is held."""
        if self.is_held(key):  # of others, the change of the configuration names the caller
            self._shard.event_log.record(key, ReasonCode.CONFIG, f"deletion of the held group requested by {by}")
        await self._requests.ask(ev.GroupDeleted(), key=key)

    def plan_deletion(self, key: GroupKey) -> list[operator_pb2.PlannedAction]:
        shard = self._shard
        return plans.actions(shard, key, None, shard.plan(key, None, ev.GroupDeleted()))


def _no_vm() -> Exception:
    return status.not_found("there is no such unknown VM")
