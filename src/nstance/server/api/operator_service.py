"""OperatorService: the API for operators, limited to their tenant.

The service authenticates, translates, posts events and reads snapshots; it decides nothing. The trap: reads may be served
while this server is not sure that it leads; changes may not.
"""

import contextlib
import functools
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from grpclib.exceptions import GRPCError

from nstance.authority import errors as authority_errors
from nstance.authority.operators import Operators
from nstance.clock import Clock
from nstance.config import dynamic as dynamics
from nstance.config.dynamic import Stamp
from nstance.config.resolve import Resolved
from nstance.model import events as ev
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, OperatorId, ServerId
from nstance.objects import errors as storage
from nstance.objects.port import ObjectStore
from nstance.pki import names
from nstance.server.api import costs, group_edits, permissions, plans, rollout_requests, watchers
from nstance.server.api.admission import Admission
from nstance.server.api.config_requests import ConfigRequests
from nstance.server.api.control_plane import ControlPlaneStatus
from nstance.server.api.event_requests import EventRequests, Events
from nstance.server.api.group_writer import NOT_LEADING, Edit, GroupWriter
from nstance.server.api.instance_requests import InstanceRequests
from nstance.server.api.registrar import certificate_response, renewed_key
from nstance.server.api.rollout_requests import RolloutRequests
from nstance.server.api.statuses import Statuses
from nstance.server.api.tenancy import Tenancy
from nstance.server.api.unknown_vm_requests import UnknownVmRequests
from nstance.server.api.watchers import WatcherOverrunError, Watchers
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.step_times import StepTimes
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.state.shard import Shard
from nstance.v1 import operator_grpc, operator_pb2
from nstance.wire import limits, status
from nstance.wire.call import PERSON_HEADER
from nstance.wire.peer import connection_of

log = logging.getLogger(__name__)

MAX_INSTANCES = 5_000  # in one answer: half a kilobyte each, and a message has 4 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """What the operator's API is made from."""

    server: ServerId
    shard: Shard
    active_config: ActiveConfig
    issuer: Issuer
    store: ObjectStore
    events: Events
    operators: Operators
    admission: Admission
    groups: GroupWriter
    rollouts: RolloutRequests
    step_times: StepTimes
    records: CommittedRecords
    statuses: Statuses
    watchers: Watchers
    control_plane: ControlPlaneStatus
    clock: Clock


class OperatorService(operator_grpc.OperatorServiceBase):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._shard = context.shard
        self._active_config = context.active_config
        self._operators = context.operators
        self._admission = context.admission
        self._groups = context.groups
        self._rollouts = context.rollouts
        self._requests = InstanceRequests(context.shard, context.records)
        self._unknown = UnknownVmRequests(context.shard, self._requests, context.clock)
        self._config = ConfigRequests(context.active_config, context.shard, context.store, server=context.server)
        self._events = EventRequests(context.events, context.shard.event_log)
        self._statuses = context.statuses
        self._watchers = context.watchers
        self._clock = context.clock

    async def _authenticate(self, stream: Any, *, changes: bool = False) -> tuple[Any, Tenancy]:
        """The request and the tenancy of its registered operator. The only place that checks tenants and roles."""
        request = await stream.recv_message()
        who = connection_of(stream).identity
        assert isinstance(who, names.Operator)  # the listener admits no other role
        await self._admission.admit(who)
        metadata = stream.metadata or {}
        permissions.check(permissions.effective_role(who.role, metadata), stream.rpc, request)
        tenant = permissions.tenant(who, metadata, self._active_config.configuration.settings)
        if changes and not self._shard.term.leading():
            raise status.unavailable(NOT_LEADING)
        person = str(metadata.get(PERSON_HEADER, ""))
        return request, Tenancy(who, self._active_config, self._context.records, person=person, tenant=tenant)

    # ---- configuration

    async def GetConfigStatus(self, stream: Any) -> None:
        _, tenancy = await self._authenticate(stream)
        await stream.send_message(await self._config.status(tenancy.tenant, held=self._unknown.held(tenancy)))

    async def RefreshConfig(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        answer = await (self._config.plan_refresh(tenancy.tenant) if request.dry_run else self._refresh(tenancy))
        await stream.send_message(_checked_size(answer))

    async def _refresh(self, tenancy: Tenancy) -> operator_pb2.RefreshConfigResponse:
        answer = await self._config.refresh(tenancy.tenant)
        if answer.updated:
            self._record(tenancy, ReasonCode.CONFIG, f"configuration {answer.etag} activated by {tenancy.by}")
        return answer

    def _record(self, tenancy: Tenancy, code: ReasonCode, message: str) -> None:
        """An event of the tenant that is about no group."""
        self._shard.event_log.record(GroupKey(tenancy.tenant, GroupName("")), code, message)

    # ---- groups

    def _status(self, resolved: Resolved, configuration: Configuration) -> operator_pb2.GroupStatus:
        return self._statuses.group(resolved, configuration.dynamic.groups.get(resolved.group.key))

    async def ListGroups(self, stream: Any) -> None:
        _, tenancy = await self._authenticate(stream)
        configuration = self._active_config.configuration
        found = [self._status(resolved, configuration) for resolved in tenancy.groups()]
        await stream.send_message(_checked_size(operator_pb2.ListGroupsResponse(groups=found)))

    def _stamp(self, tenancy: Tenancy) -> Stamp:
        return dynamics.stamp(tenancy.by, self._clock.wall())

    async def _change(self, edit: Edit, tenancy: Tenancy, *, dry_run: bool) -> Configuration:
        if dry_run:
            return self._groups.preview(edit)
        return await self._groups.change(edit, who=tenancy.by)

    def _plan(self, key: GroupKey, configuration: Configuration) -> dict[str, Any]:
        """What would be done with this configuration: the fields that all answers with a plan share."""
        parts = self._shard, self._context.step_times, configuration, key
        plan = plans.plan(self._shard, key, configuration.groups[key].group, policy=configuration.policy)
        return {"plan": plan, "rollout": rollout_requests.plan(*parts), "cost": costs.plan(*parts)}

    async def _upsert(self, key: GroupKey, request: Any, tenancy: Tenancy) -> Configuration:
        if request.unset:
            await self._refresh(tenancy)  # an earlier file may have another size: instances would come and go
        edit = group_edits.upsert(key, request.config, etag=request.etag, unset=request.unset, by=self._stamp(tenancy))
        if request.remove_first:
            self._groups.preview(edit)  # raises: what is not accepted orders nothing either
            await self._requests.order_removal(tenancy, key, request.remove_first)
        return await self._groups.change(edit, who=tenancy.by)

    async def _preview_upsert(self, key: GroupKey, request: Any, tenancy: Tenancy, *, etag: str = "") -> Configuration:
        """What would be written. Settings that are unset come from the newest file, which the change reads first too."""
        newest = None
        if request.unset:
            # Of the configuration that the caller has read.
            group_edits.check_etag(self._active_config.configuration.groups.get(key), etag)
            newest, etag = await self._config.read_newest(), ""
        edit = group_edits.upsert(key, request.config, etag=etag, unset=request.unset, by=self._stamp(tenancy))
        return self._groups.preview(edit, of=newest)

    async def UpsertGroup(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.key(request.key)
        if request.dry_run:
            configuration = await self._preview_upsert(key, request, tenancy, etag=request.etag)
        else:
            configuration = await self._upsert(key, request, tenancy)
        group = self._status(configuration.groups[key], configuration)
        planned = self._plan(key, configuration) if request.dry_run else {}
        await stream.send_message(operator_pb2.UpsertGroupResponse(group=group, **planned))

    async def DeleteGroup(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = GroupKey(tenancy.tenant, GroupName(request.key))
        if not self._unknown.is_held(key):
            edit = group_edits.delete(tenancy.group(request.key).group.key, etag=request.etag)
            await self._change(edit, tenancy, dry_run=request.dry_run)
        plan = self._unknown.plan_deletion(key) if request.dry_run else []
        if not request.dry_run:
            await self._unknown.delete_group(key, by=tenancy.by)
        await stream.send_message(operator_pb2.DeleteGroupResponse(plan=plan))

    async def PlanGroup(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        if request.HasField("config"):
            key = tenancy.key(request.key)
            configuration = await self._preview_upsert(key, request, tenancy)
        else:
            key, configuration = tenancy.group(request.key).group.key, self._active_config.configuration
        planned = self._plan(key, configuration)
        answer = operator_pb2.PlanGroupResponse(
            actions=planned.pop("plan"),
            paused=configuration.groups[key].group.paused,
            warnings=configurations.overridden(configuration, [key]),
            **planned,
        )
        await stream.send_message(_checked_size(answer))

    async def PauseGroup(self, stream: Any) -> None:
        await self._pause(stream, paused=True)

    async def ResumeGroup(self, stream: Any) -> None:
        await self._pause(stream, paused=False)

    async def _pause(self, stream: Any, *, paused: bool) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.group(request.key).group.key if request.key else None
        edit = group_edits.pause(tenancy.tenant, key, paused=paused, by=self._stamp(tenancy))
        configuration = await self._change(edit, tenancy, dry_run=request.dry_run)
        chosen = [k for k in sorted(configuration.groups) if k.tenant == tenancy.tenant and key in (None, k)]
        found = [self._status(configuration.groups[k], configuration) for k in chosen]
        plan = []
        if request.dry_run and not paused:
            resumed = [k for k in chosen if self._active_config.configuration.groups[k].group.paused]
            plan = [a for k in resumed for a in plans.plan(self._shard, k, configuration.groups[k].group)]
        await stream.send_message(_checked_size(operator_pb2.PauseGroupResponse(groups=found, plan=plan)))

    # ---- rollouts

    async def RollbackGroup(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.group(request.key).group.key
        edit = await self._rollouts.roll_back(key, request.revision, by=tenancy.by)
        configuration = await self._change(edit, tenancy, dry_run=request.dry_run)
        group = self._status(configuration.groups[key], configuration)
        planned = self._plan(key, configuration) if request.dry_run else {}
        await stream.send_message(operator_pb2.RollbackGroupResponse(group=group, **planned))

    async def ResumeRollout(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.group(request.key).group.key
        configuration, planned = self._active_config.configuration, {}
        if self._rollouts.is_rolled_back(key):
            edit = rollout_requests.end_rollback(key)
            configuration = await self._change(edit, tenancy, dry_run=request.dry_run)
            if request.dry_run:
                planned = self._plan(key, configuration)
        elif request.dry_run:
            desired = configuration.groups[key].group
            decision = self._shard.plan(key, desired, ev.RolloutResumed())
            if decision.rejections:
                raise rollout_requests.not_held()
            actions = plans.actions(self._shard, key, desired, decision)
            planned = {**self._plan(key, configuration), "plan": actions}
            if planned["rollout"] is not None:
                planned["rollout"].held = ""  # this ends the hold
        else:
            await self._rollouts.resume(key, by=tenancy.by)
        group = self._status(configuration.groups[key], configuration)
        await stream.send_message(operator_pb2.ResumeRolloutResponse(group=group, **planned))

    async def ListRevisions(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        record = self._shard.group_records.get(tenancy.group(request.key).group.key)
        found = [
            rollout_requests.revision_status(each) for each in reversed(record.revisions if record is not None else ())
        ]
        await stream.send_message(operator_pb2.ListRevisionsResponse(revisions=found))

    # ---- instances

    async def ListInstances(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        if request.limit < 0:
            raise status.invalid("limit", "expected a number above 0, or 0 for all")
        found = tenancy.instances(request.group, ended=request.include_deleted)
        found = [instance for instance in found if instance.id > request.after_id]
        limit = min(request.limit or len(found), MAX_INSTANCES)
        if not request.limit and limit < len(found):
            raise status.exhausted(f"{len(found):,} instances are too many for one answer: use limit and after_id")
        page = [self._statuses.instance(instance) for instance in found[:limit]]
        await stream.send_message(operator_pb2.ListInstancesResponse(instances=page, more=limit < len(found)))

    async def GetInstanceStatus(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        is_by_uuid = request.uuid and not request.instance_id
        found = self._requests.find(tenancy, request.uuid) if is_by_uuid else tenancy.instance(request.instance_id)
        await stream.send_message(await self._statuses.instance_with_last_report(found))

    async def CreateInstance(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        await stream.send_message(self._statuses.instance(*await self._requests.create(tenancy, request)))

    async def DeleteInstance(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        deleted = await self._requests.delete(tenancy, request.instance_id, dry_run=request.dry_run)
        await stream.send_message(self._statuses.instance(*deleted))

    async def ReplaceInstance(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        replaced = await self._requests.replace(tenancy, request.instance_id, dry_run=request.dry_run)
        await stream.send_message(self._statuses.instance(*replaced))

    async def ListUnknownVms(self, stream: Any) -> None:
        _, tenancy = await self._authenticate(stream)
        await stream.send_message(_checked_size(self._unknown.list_vms(tenancy)))

    async def AdoptInstance(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        adopted = await self._unknown.adopt(tenancy, request.instance_id, dry_run=request.dry_run)
        await stream.send_message(self._statuses.instance(*adopted))

    async def ReleaseInstance(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        answer = await self._unknown.release(tenancy, request.instance_id, dry_run=request.dry_run)
        await stream.send_message(answer)

    async def AcknowledgeDrained(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        await stream.send_message(await self._requests.acknowledge(tenancy, request.instance_id))

    # ---- watches and events

    async def Watch(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        drains = self._shard.drainers.watching(tenancy.tenant) if request.drains else contextlib.nullcontext()
        with self._watchers.open(tenancy.tenant, watchers.kinds(request)) as watcher, drains:
            try:
                admit = functools.partial(self._admission.admit, tenancy.who, watching=True)
                await self._watchers.send(stream, watcher, clock=self._clock, admit=admit)
            except WatcherOverrunError:
                # Raised between two messages, because half a message would look like a broken stream. A client that
                # reads nothing at all is disconnected by the transport.
                raise status.exhausted("this watcher is too slow, watch again from a new snapshot") from None

    async def ListEvents(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        await stream.send_message(_checked_size(await self._events.list(tenancy.tenant, request)))

    async def GetControlPlane(self, stream: Any) -> None:
        await self._authenticate(stream)
        await stream.send_message(self._context.control_plane.status())

    # ---- operators

    async def RevokeOperator(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        if not names.is_operator_id(request.operator_id):
            raise _no_operator()
        revoked = names.Operator(tenancy.who.cluster, tenancy.tenant, OperatorId(request.operator_id))
        await self._store_operator(self._operators.revoke(revoked.tenant, revoked.id), not_registered=_no_operator())
        log.warning("operator revoked", extra={"operator": revoked.id, "by": tenancy.by})
        self._record(tenancy, ReasonCode.SECURITY, f"operator {revoked.id} revoked by {tenancy.by}")
        self._admission.revoke(revoked, answered=connection_of(stream))
        await stream.send_message(operator_pb2.RevokeOperatorResponse())

    async def RenewCertificate(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        who, authority = tenancy.who, self._context.issuer.authority
        public_key = None
        if request.public_key_pem:
            public_key = renewed_key(request, cluster=who.cluster, id=who.id)
        life = self._active_config.configuration.settings.shard.identity.operator_ttl
        issued = await self._store_operator(
            self._operators.renew(authority, who, public_key, life=life),
            not_registered=status.denied("this operator is not registered"),
        )
        await stream.send_message(certificate_response(issued, authority))

    async def _store_operator(self, call: Awaitable[Any], *, not_registered: GRPCError) -> Any:
        try:
            return await call
        except authority_errors.NotRegisteredError:
            raise not_registered from None
        except (storage.StorageError, authority_errors.AuthorityError, TimeoutError) as error:
            log.warning("failed to change the registration of an operator", extra={"error": str(error)})
            raise status.unavailable("failed to store the change for certain, try again") from None


def _checked_size(answer: Any) -> Any:
    """The answer, if it fits into one message: it is never truncated silently."""
    size, limit = answer.ByteSize(), limits.OPERATOR.max_message
    if size > limit:
        raise status.exhausted(f"the answer has {size:,} bytes, more than {limit:,} for one message: request less")
    return answer


def _no_operator() -> GRPCError:
    return status.not_found("there is no such operator")
