"""What an operator asks of single instances: to be made, replaced, deleted, or let go because they are drained.

Each request is an event for the shard, answered when what follows from it is durable. Asking again does no harm: an
instance that is asked for twice is made once, because its ID is the caller's.
"""

import asyncio
import logging
import uuid

from grpclib.exceptions import GRPCError

from nstance.config import dynamic as dynamics
from nstance.config.errors import ConfigError
from nstance.model import events as ev
from nstance.model import ids
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.ids import GroupKey, GroupName, InstanceId
from nstance.model.instance import ENDED, Instance, Put, State
from nstance.objects import journal
from nstance.server.api import group_edits, plans
from nstance.server.api.tenancy import Tenancy, no_group, no_instance
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.state.inbox import OverloadedError
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2
from nstance.wire import status

log = logging.getLogger(__name__)

ANSWER_SECONDS = 20.0

Outcome = tuple[Instance, list[operator_pb2.PlannedAction]]
"""The record, and of a dry run what would be done."""


class InstanceRequests:
    def __init__(self, shard: Shard, records: CommittedRecords) -> None:
        self._shard = shard
        self._records = records

    async def create(self, tenancy: Tenancy, request: operator_pb2.CreateInstanceRequest) -> Outcome:
        group = tenancy.group(request.group).group
        id = ids.instance_id(group.kind, _uuid7(request.uuid))
        wanted = ev.InstanceRequested(id, request.instance_type, dict(request.vars), by=tenancy.who.id)
        _check_values(group.key, wanted)
        known = self._shard.instances.get(id)
        if known is not None and known.key != group.key:
            raise _used()
        if known is None and self._on_demand(tenancy) >= dynamics.MAX_TENANT_INSTANCES:
            raise status.exhausted(
                f"expected at most {dynamics.MAX_TENANT_INSTANCES:,} on-demand instances in a tenant"
            )
        refusal, outcome = await self.do(wanted, group.key, id, dry_run=request.dry_run)
        match refusal:
            case None if outcome is not None:
                return outcome
            case None | Rejection.UNKNOWN:
                raise no_group()
            case Rejection.PAUSED:
                raise status.failed_precondition("its group is paused, resume it first")
            case _:
                raise _used()

    async def delete(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> Outcome:
        instance = tenancy.instance(id)
        if instance.state in ENDED or instance.state is State.DELETING:
            return instance, []  # asked twice, or late: it is as it should be
        wanted = ev.DeletionRequested(instance.id, by=tenancy.who.id)
        refusal, outcome = await self.do(wanted, instance.key, instance.id, dry_run=dry_run)
        match refusal:
            case None | Rejection.ENDING if outcome is not None:
                return outcome
            case Rejection.PAUSED:
                raise status.failed_precondition("its group is paused, resume it first")
            case _:
                raise no_instance()

    async def replace(self, tenancy: Tenancy, id: str, *, dry_run: bool) -> Outcome:
        instance = tenancy.instance(id)
        if instance.on_demand:
            raise status.failed_precondition("an on-demand instance is never replaced: delete it and create another")
        if not instance.counts:
            raise status.failed_precondition(f"it is {instance.state.value} already")
        wanted = ev.ReplacementRequested(instance.id, by=tenancy.who.id)
        refusal, outcome = await self.do(wanted, instance.key, instance.id, dry_run=dry_run)
        match refusal:
            case None if outcome is not None:
                return outcome
            case None:
                raise no_instance()
            case Rejection.PAUSED:
                raise status.failed_precondition("its group is paused, resume it first")
            case Rejection.ENDING | Rejection.ON_DEMAND:
                raise status.failed_precondition("it is leaving already")
            case _:
                raise status.failed_precondition("its group is deleted: it leaves anyway")

    async def do(
        self, event: ev.Event, key: GroupKey, id: InstanceId, *, dry_run: bool
    ) -> tuple[Rejection | None, Outcome | None]:
        """Ask for it, or decide about it and leave it at that. With the record as it is, or would be."""
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
        """F67: for an instance that does not drain, or is not the caller's, nothing happens, and it is written down."""
        try:
            instance = tenancy.instance(id)
        except GRPCError:
            # Which one is for the log alone: a tenant's history names nothing of another's.
            message = f"{tenancy.who.id} acknowledged a drain of an instance that this tenant does not have"
            log.warning(message, extra={"instance": id[:64]})
            self._shard.event_log.record(GroupKey(tenancy.tenant, GroupName("")), ReasonCode.SECURITY, message)
            raise
        refusal = await self.ask(ev.DrainAcknowledged(instance.id, by=tenancy.who.id))
        now = self._records.get(instance.id) or instance
        if refusal is None:
            paused = now.state is State.DRAINING
            message = "its group is paused, it is deleted when that is resumed" if paused else "it is deleted now"
            return operator_pb2.AcknowledgeDrainedResponse(accepted=True, message=message)
        message = f"it is not draining, it is {now.state.value}: nothing was done"
        self._shard.event_log.record(
            instance.key, ReasonCode.DRAINED, f"{tenancy.who.id} said that it is drained, but {message}", instance.id
        )
        return operator_pb2.AcknowledgeDrainedResponse(accepted=False, message=message)

    async def ask(self, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._shard.ask(event, key=key)
        except (journal.DeposedError, OverloadedError) as problem:
            raise status.unavailable(str(problem)) from None
        except TimeoutError:
            raise status.unavailable("it was not written down in time, ask again") from None

    def _on_demand(self, tenancy: Tenancy) -> int:
        return sum(instance.on_demand for instance in tenancy.instances())


def _used() -> GRPCError:
    """One answer, whether the ID was this group's, another group's or another tenant's, and whatever became of it: a
    tenant learns nothing of others. IDs are unique in a shard, so a UUID that somebody has used cannot be had again."""
    return status.failed_precondition("this UUID cannot be used, make a new one")


def _uuid7(text: str) -> int:
    """Only the usual spelling: one ID has one UUID."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        found = None
    if found is None or str(found) != text.lower() or not ids.is_uuid7(found.int):
        raise status.invalid("uuid", "expected a UUID of version 7, such as 01970a1c-e31e-7422-9cd5-e9651d11cc97")
    return found.int


def _check_values(key: GroupKey, wanted: ev.InstanceRequested) -> None:
    try:
        dynamics.group(key, {"instance_type": wanted.instance_type, "vars": wanted.vars})
    except ConfigError as error:
        raise group_edits.invalid(error.problems, prefix="config.") from None
