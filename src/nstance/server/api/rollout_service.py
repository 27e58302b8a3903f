"""The rollout calls of OperatorService: rolling back, resuming, and the history of revisions."""

from typing import Any

from nstance.config.resolve import Resolved
from nstance.model import events as ev
from nstance.server.api import plans, rollout_requests
from nstance.server.api.group_writer import Edit, GroupWriter
from nstance.server.api.rollout_requests import RolloutRequests
from nstance.server.api.tenancy import Tenancy
from nstance.server.config.configuration import Configuration
from nstance.server.leader.context import TermContext
from nstance.v1 import operator_pb2


class RolloutService:
    """A mixin of OperatorService, which defines what is declared here."""

    _lead: TermContext
    _groups: GroupWriter
    _rollouts: RolloutRequests

    async def _authenticate(self, stream: Any, *, changes: bool = False) -> tuple[Any, Tenancy]:
        raise NotImplementedError

    async def _change(self, edit: Edit, tenancy: Tenancy, *, dry_run: bool) -> Configuration:
        raise NotImplementedError

    def _status(self, resolved: Resolved, configuration: Configuration) -> operator_pb2.GroupStatus:
        raise NotImplementedError

    async def RollbackGroup(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.group(request.key).group.key
        edit = await self._rollouts.roll_back(key, request.revision, by=tenancy.who.id)
        configuration = await self._change(edit, tenancy, dry_run=request.dry_run)
        resolved = configuration.groups[key]
        plan = plans.plan(self._lead.shard, key, resolved.group) if request.dry_run else []
        group = self._status(resolved, configuration)
        await stream.send_message(operator_pb2.RollbackGroupResponse(group=group, plan=plan))

    async def ResumeRollout(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream, changes=True)
        key = tenancy.group(request.key).group.key
        configuration, plan = self._lead.configuration, []
        if self._rollouts.is_rolled_back(key):
            edit = rollout_requests.end_rollback(key)
            configuration = await self._change(edit, tenancy, dry_run=request.dry_run)
            if request.dry_run:
                plan = plans.plan(self._lead.shard, key, configuration.groups[key].group)
        elif request.dry_run:
            desired = configuration.groups[key].group
            decision = self._lead.shard.plan(key, desired, ev.RolloutResumed())
            if decision.refusals:
                raise rollout_requests.not_held()
            plan = plans.actions(self._lead.shard, key, desired, decision)
        else:
            await self._rollouts.resume(key)
        group = self._status(configuration.groups[key], configuration)
        await stream.send_message(operator_pb2.ResumeRolloutResponse(group=group, plan=plan))

    async def ListRevisions(self, stream: Any) -> None:
        request, tenancy = await self._authenticate(stream)
        record = self._lead.shard.group_records.get(tenancy.group(request.key).group.key)
        found = [
            rollout_requests.revision_status(each) for each in reversed(record.revisions if record is not None else ())
        ]
        await stream.send_message(operator_pb2.ListRevisionsResponse(revisions=found))
