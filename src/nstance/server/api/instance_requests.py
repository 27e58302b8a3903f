"""Requests for single instances: create, delete, replace, and acknowledge a drain.

Each request is an event for the shard, answered when its consequences are in the journal. A request may be repeated: an
instance that is requested twice is created once, because its ID follows from the caller's tenant and UUID.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence

from grpclib.exceptions import GRPCError

from nstance.config import dynamic as dynamics
from nstance.config.errors import ConfigError
from nstance.config.model.workload import OnDemand
from nstance.model import events as ev
from nstance.model import ids
from nstance.model.codec import canonical
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind
from nstance.model.instance import ENDED, Instance, Put, State
from nstance.server.api import asking, group_edits, plans
from nstance.server.api.group_writer import NOT_LEADING
from nstance.server.api.tenancy import Tenancy, no_group, no_instance
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2
from nstance.wire import status

log = logging.getLogger(__name__)

MAX_REQUESTER_LENGTH = 253
MAX_VALUES_BYTES = 64 * 1024  # instance type and vars of one request: they are in the record, and in each slot with it
MAX_CHOSEN = 10_000  # instances in one order of removal

Outcome = tuple[Instance, list[operator_pb2.PlannedAction]]
"""The record, and the plan of a dry run."""


class InstanceRequests:
    def __init__(self, shard: Shard, records: CommittedRecords) -> None:
        self._shard = shard
        self._records = records

    async def create(self, tenancy: Tenancy, request: operator_pb2.CreateInstanceRequest) -> Outcome:
        resolved = tenancy.group(request.group)
        group, limits = resolved.group, resolved.spec.template.on_demand
        id = self._requested_id(tenancy, group.kind, _uuid7(request.uuid))
        event = ev.InstanceRequested(
            id,
            request.instance_type,
            dict(request.vars),
            requester=request.requester,
            limit=limits.max,
            requester_limit=limits.max_per_requester,
            by=tenancy.by,
        )
        _check_values(group.key, event)
        known = self._shard.instances.get(id)
        if known is not None and known.key != group.key:
            raise _unusable_uuid()
        if known is None:
            self._check_quota(tenancy, event)
        if len(request.requester) > MAX_REQUESTER_LENGTH:
            raise status.invalid("requester", f"expected at most {MAX_REQUESTER_LENGTH} characters")
        refusal, outcome = await self.do(event, group.key, id, dry_run=request.dry_run)
        match refusal:
            case None if outcome is not None:
                return outcome
            case None | Rejection.UNKNOWN:
                raise no_group()
            case Rejection.PAUSED:
                raise _paused()
            case Rejection.LIMIT:
                raise _over_limit(limits, request)
            case Rejection.NO_CAPACITY:
                reason = self._shard.offers.explain_blocked(group) or "its instance type has no capacity in any offer"
                raise status.exhausted(f"{reason}; try again later")
            case _:
                raise _unusable_uuid()

    def find(self, tenancy: Tenancy, chosen: str) -> Instance:
        """What was created with this UUID. While a decision is not in the journal yet, its absence there is no answer."""
        number = _uuid7(chosen)
        if not self._shard.term.leading():
            raise status.unavailable(NOT_LEADING)
        wanted = {ids.instance_id(Kind(""), each) for each in (ids.requested_uuid(tenancy.tenant, number), number)}
        decided = (each for id, each in self._shard.instances.items() if id[3:] in wanted)
        found = next((each for each in decided if each.on_demand and each.tenant == tenancy.tenant), None)
        if found is None:
            raise no_instance()
        stored = self._records.get(found.id)
        if stored is None:
            raise status.unavailable("the instance is not stored yet, try again")
        return stored

    async def delete(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> Outcome:
        instance = tenancy.instance(id)
        if instance.state in ENDED or instance.state is State.DELETING:
            return instance, []  # it is deleted already
        event = ev.DeletionRequested(instance.id, by=tenancy.by)
        refusal, outcome = await self.do(event, instance.key, instance.id, dry_run=dry_run)
        match refusal:
            case None | Rejection.ENDING if outcome is not None:
                return outcome
            case Rejection.PAUSED:
                raise _paused()
            case _:
                raise no_instance()

    async def replace(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> Outcome:
        instance = tenancy.instance(id)
        if instance.on_demand:
            raise status.failed_precondition("an on-demand instance is never replaced: delete it and create another")
        if not instance.counts:
            raise status.failed_precondition(f"this instance is {instance.state.value} already")
        event = ev.ReplacementRequested(instance.id, by=tenancy.by)
        refusal, outcome = await self.do(event, instance.key, instance.id, dry_run=dry_run)
        match refusal:
            case None if outcome is not None:
                return outcome
            case None:
                raise no_instance()
            case Rejection.PAUSED:
                raise _paused()
            case Rejection.ENDING | Rejection.ON_DEMAND:
                raise status.failed_precondition("this instance is being deleted already")
            case _:
                raise status.failed_precondition("its group is deleted, and the instance with it")

    async def order_removal(self, tenancy: Tenancy, key: GroupKey, chosen: Sequence[str]) -> None:
        """In the journal before the group shrinks. Nothing is written if the order is the same."""
        if len(chosen) > MAX_CHOSEN:
            raise status.invalid("remove_first", f"expected at most {MAX_CHOSEN:,} instances, found {len(chosen):,}")
        if len(set(chosen)) != len(chosen):
            raise status.invalid("remove_first", "expected each instance once")
        members = self._records.members(key)
        order = tuple(id for id in map(InstanceId, chosen) if id in members and members[id].counts)
        known = {id: each.removal_rank for id, each in members.items() if each.removal_rank is not None}
        if known != {id: rank for rank, id in enumerate(order)}:
            await self.ask(ev.RemovalOrdered(order, by=tenancy.by), key=key)

    async def do(
        self, event: ev.Event, key: GroupKey, id: InstanceId, *, dry_run: bool
    ) -> tuple[Rejection | None, Outcome | None]:
        """Posts the event, or only plans it. Returns the rejection and the record as it is or would be."""
        if not dry_run:
            refusal = await self.ask(event, key=key)
            found = self._records.get(id)
            return refusal, (found, []) if found is not None else None
        shard = self._shard
        desired = shard.desired_groups.get(key)
        decision = shard.plan(key, desired, event)
        now = shard.instances.get(id)
        after = now or next((c.instance for c in decision.changes if isinstance(c, Put) and c.instance.id == id), None)
        planned = plans.actions(shard, key, desired, decision)
        return decision.rejections.get(0), (after, planned) if after is not None else None

    async def acknowledge(self, tenancy: Tenancy, id: str) -> operator_pb2.AcknowledgeDrainedResponse:
        """For an instance that is not draining or belongs to another tenant nothing is done, and an event records it."""
        try:
            instance = tenancy.instance(id)
        except GRPCError:
            # Only the log names the instance: a tenant's events name nothing of another tenant.
            message = f"{tenancy.by} acknowledged the drain of an instance that this tenant does not have"
            log.warning(message, extra={"instance": id[:64]})
            self._shard.event_log.record(GroupKey(tenancy.tenant, GroupName("")), ReasonCode.SECURITY, message)
            raise
        refusal = await self.ask(ev.DrainAcknowledged(instance.id, by=tenancy.by))
        now = self._records.get(instance.id) or instance
        if refusal is None:
            paused = now.state is State.DRAINING
            message = "its group is paused, it is deleted when the group is resumed" if paused else "it is deleted now"
            return operator_pb2.AcknowledgeDrainedResponse(accepted=True, message=message)
        message = f"expected a draining instance, found {now.state.value}: nothing was done"
        self._shard.event_log.record(
            instance.key, ReasonCode.DRAINED, f"acknowledgement by {tenancy.by} ignored: {message}", instance.id
        )
        return operator_pb2.AcknowledgeDrainedResponse(accepted=False, message=message)

    async def ask(self, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
        return await asking.ask(self._shard, event, key=key)

    def _requested_id(self, tenancy: Tenancy, kind: Kind, chosen: int) -> InstanceId:
        """Older servers took the UUID as it is: a repeated request still finds the instance that they made."""
        found = self._shard.instances.get(ids.instance_id(kind, chosen))
        if found is not None and found.on_demand and found.tenant == tenancy.tenant:
            return found.id
        return ids.instance_id(kind, ids.requested_uuid(tenancy.tenant, chosen))

    def _check_quota(self, tenancy: Tenancy, event: ev.InstanceRequested) -> None:
        """Records that have ended keep their values for a while, so those count too."""
        records = [each for each in tenancy.instances(ended=True) if each.on_demand]
        if sum(each.state not in ENDED for each in records) >= dynamics.MAX_TENANT_INSTANCES:
            raise status.exhausted(
                f"expected at most {dynamics.MAX_TENANT_INSTANCES:,} on-demand instances in a tenant"
            )
        used = sum(_count_characters(each.instance_type, each.vars) for each in records)
        if used + _count_characters(event.instance_type, event.vars) > dynamics.MAX_TENANT_BYTES:
            raise status.exhausted(
                f"expected at most {dynamics.MAX_TENANT_BYTES:,} characters of vars in the on-demand instances of a "
                "tenant: delete some, or use shorter vars"
            )


def _paused() -> GRPCError:
    return status.failed_precondition("its group is paused, resume it first")


def _over_limit(limits: OnDemand, request: operator_pb2.CreateInstanceRequest) -> GRPCError:
    total = "any number" if limits.max is None else f"{limits.max}"
    own = "" if limits.max_per_requester is None else f", {limits.max_per_requester} for {request.requester or 'you'}"
    return status.exhausted(
        f"the group {request.group} may have {total} of on-demand instances{own}: delete one, or raise on_demand of its "
        "template in the shard's configuration"
    )


def _unusable_uuid() -> GRPCError:
    """This tenant has used it for another group, or its instance has ended."""
    return status.failed_precondition("this UUID cannot be used, generate a new one")


def _uuid7(text: str) -> int:
    """Accepts only the canonical form, so that one ID has one UUID."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text.lower() or not ids.is_uuid7(found.int):
        raise status.invalid("uuid", "expected a UUID of version 7, such as 01970a1c-e31e-7422-9cd5-e9651d11cc97")
    return found.int


def _count_characters(instance_type: str, vars: Mapping[str, str]) -> int:
    return len(instance_type) + sum(len(name) + len(value) for name, value in vars.items())


def _check_values(key: GroupKey, event: ev.InstanceRequested) -> None:
    size = len(canonical([event.instance_type, dict(event.vars)]))
    if size > MAX_VALUES_BYTES:
        raise status.invalid("vars", f"expected at most {MAX_VALUES_BYTES:,} bytes of vars, found {size:,}")
    try:
        dynamics.group(key, {"instance_type": event.instance_type, "vars": event.vars})
    except ConfigError as error:
        raise group_edits.invalid(error.problems, prefix="config.") from None
