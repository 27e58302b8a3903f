"""The part of OperatorService that is about rollouts: rolling back, resuming, and the history of revisions."""

from typing import Any

from nstance.config.resolve import Resolved
from nstance.model import events as ev
from nstance.server import plans, rollouts
from nstance.server.configuration import Configuration
from nstance.server.groups import Edit, Groups
from nstance.server.lead import Lead
from nstance.server.rollouts import Rollouts
from nstance.server.tenancy import Tenancy
from nstance.v1 import operator_pb2


class RolloutCalls:
    """What it needs of the rest of the service is declared here and defined there."""

    _lead: Lead
    _groups: Groups
    _rollouts: Rollouts

    async def _asked(self, stream: Any, *, changes: bool = False) -> tuple[Any, Tenancy]:
        raise NotImplementedError

    async def _changed(self, edit: Edit, tenancy: Tenancy, *, dry_run: bool) -> Configuration:
        raise NotImplementedError

    def _status(self, resolved: Resolved, configuration: Configuration) -> operator_pb2.GroupStatus:
        raise NotImplementedError

    async def RollbackGroup(self, stream: Any) -> None:
        request, tenancy = await self._asked(stream, changes=True)
        key = tenancy.group(request.key).group.key
        edit = await self._rollouts.roll_back(key, request.revision, by=tenancy.who.id)
        configuration = await self._changed(edit, tenancy, dry_run=request.dry_run)
        resolved = configuration.groups[key]
        plan = plans.plan(self._lead.shard, key, resolved.group) if request.dry_run else []
        group = self._status(resolved, configuration)
        await stream.send_message(operator_pb2.RollbackGroupResponse(group=group, plan=plan))

    async def ResumeRollout(self, stream: Any) -> None:
        request, tenancy = await self._asked(stream, changes=True)
        key = tenancy.group(request.key).group.key
        configuration, plan = self._lead.configuration, []
        if self._rollouts.is_rolled_back(key):
            edit = rollouts.end_rollback(key)
            configuration = await self._changed(edit, tenancy, dry_run=request.dry_run)
            if request.dry_run:
                plan = plans.plan(self._lead.shard, key, configuration.groups[key].group)
        elif request.dry_run:
            wish = configuration.groups[key].group
            decision = self._lead.shard.plan(key, wish, ev.RolloutResumed())
            if decision.refusals:
                raise rollouts.not_held()
            plan = plans.actions(self._lead.shard, key, wish, decision)
        else:
            await self._rollouts.resume(key)
        group = self._status(configuration.groups[key], configuration)
        await stream.send_message(operator_pb2.ResumeRolloutResponse(group=group, plan=plan))

    async def ListRevisions(self, stream: Any) -> None:
        request, tenancy = await self._asked(stream)
        record = self._lead.shard.group_records.get(tenancy.group(request.key).group.key)
        found = [rollouts.revision_status(each) for each in reversed(record.revisions if record is not None else ())]
        await stream.send_message(operator_pb2.ListRevisionsResponse(revisions=found))
