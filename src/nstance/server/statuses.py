"""From records to what operators read.

Numbers of a group come from its records: an agent that reconnects does not make a group flicker; one that stays silent is
marked suspect, and then it is not ready. Nor is one whose VM is known not to run, as in a paused group.
Times in records are steady time; a deadline is shown in wall time.
"""

import contextlib
import json
from collections.abc import Iterable

from nstance.clock import Clock
from nstance.config.durations import format as format_duration
from nstance.config.dynamic import DynamicGroup
from nstance.config.resolve import Resolved
from nstance.core.draft import drifted
from nstance.model.decision import TROUBLE, Reason
from nstance.model.events import VmState
from nstance.model.ids import GroupKey
from nstance.model.instance import ENDED, Instance, State
from nstance.server.cache import CacheUnavailable
from nstance.server.lead import Lead
from nstance.server.records import Records
from nstance.v1 import operator_pb2

NOT_RUNNING = frozenset({VmState.DOWN, VmState.DELETED})


class Statuses:
    def __init__(self, lead: Lead, records: Records, clock: Clock) -> None:
        self._lead = lead
        self._records = records
        self._clock = clock

    def group(self, resolved: Resolved, told: DynamicGroup | None) -> operator_pb2.GroupStatus:
        """`told`: what the API has set of it."""
        group = resolved.group
        members = self._records.members(group.key).values()
        counted = [m for m in members if m.counts]
        shard = self._lead.shard
        return operator_pb2.GroupStatus(
            key=group.key.name,
            tenant=group.key.tenant,
            template=group.template,
            size=group.size,
            instance_type=group.instance_type,
            subnet_pool=group.subnet_pool,
            vars=group.vars,
            static=group.static,
            etag=resolved.etag,
            actual_size=len(counted),
            ready_size=sum(m.state is State.RUNNING and not m.suspect and not self._is_gone(m) for m in counted),
            provider_ids=sorted(m.provider_id for m in counted if m.provider_id is not None),
            paused=group.paused,
            last_error=shard.blocked.get(group.key) or shard.trend(group.key).last_error,
            draining=sum(m.state is State.DRAINING for m in members),
            on_demand=sum(m.on_demand and m.state not in ENDED for m in members),
            config=group_config(told or DynamicGroup()),
        )

    def instance(
        self, instance: Instance, plan: Iterable[operator_pb2.PlannedAction] = ()
    ) -> operator_pb2.InstanceStatus:
        facts = self._lead.shard.facts.get(instance.id)
        presence = self._lead.agents.get(instance.id)
        wish = self._lead.shard.wishes.get(instance.key)
        return operator_pb2.InstanceStatus(
            instance_id=instance.id,
            provider_id=instance.provider_id or "",
            group=instance.group,
            state=instance.state.value,
            reason=instance.cause.value if instance.cause is not None else "",
            message=instance.message,
            on_demand=instance.on_demand,
            suspect=instance.suspect,
            connected=presence is not None and presence.healthy,
            drifted=not instance.on_demand and instance.state not in ENDED and drifted(instance, wish),
            instance_type=instance.instance_type,
            subnet=instance.subnet,
            ipv4=instance.ip4,
            ipv6=instance.ip6,
            hostname=instance.hostname,
            created_unix_ms=_milliseconds(instance.created),
            registered_unix_ms=_milliseconds(instance.registered),
            drain_deadline_unix_ms=self._deadline(instance),
            vm_gone=self._is_gone(instance),
            replaces=instance.replaces or "",
            last_report_unix_ms=_milliseconds(presence.reported if presence is not None else None),
            vm_status=(facts.vm if facts is not None else VmState.UNKNOWN).value,
            plan=plan,
        )

    async def whole(self, instance: Instance) -> operator_pb2.InstanceStatus:
        """With what only the cache remembers."""
        status, cache = self.instance(instance), self._lead.cache
        if not status.last_report_unix_ms and cache is not None:
            with contextlib.suppress(CacheUnavailable):
                kept = await cache.report(instance.id)
                status.last_report_unix_ms = _milliseconds(kept.at if kept is not None else None)
        return status

    def instance_event(self, instance: Instance, before: Instance | None = None) -> operator_pb2.InstanceEvent:
        return operator_pb2.InstanceEvent(
            instance_id=instance.id,
            provider_id=instance.provider_id or "",
            group=instance.group,
            state=instance.state.value,
            reason=instance.cause.value if instance.cause is not None else "",
            deadline_unix_ms=self._deadline(instance),
            vm_gone=self._is_gone(instance),
            waits=instance.drain is not None and instance.state is State.DRAINING and instance.drain.waits,
            drain_cancelled=before is not None and before.state is State.DRAINING and instance.state is State.RUNNING,
            on_demand=instance.on_demand,
            hostname=instance.hostname,
            ipv4=instance.ip4,
            ipv6=instance.ip6,
        )

    def event(self, key: GroupKey, reason: Reason) -> operator_pb2.Event:
        return operator_pb2.Event(
            time_unix_ms=_milliseconds(self._clock.wall()),
            group=key.name,
            instance_id=reason.instance or "",
            reason=reason.code.value,
            message=reason.message,
            trouble=reason.code in TROUBLE,
        )

    def _deadline(self, instance: Instance) -> int:
        if instance.drain is None or instance.state is not State.DRAINING:
            return 0
        return _milliseconds(instance.drain.deadline - self._clock.steady() + self._clock.wall())

    def _is_gone(self, instance: Instance) -> bool:
        """There is nothing left to drain."""
        if instance.state in ENDED:
            return True
        facts = self._lead.shard.facts.get(instance.id)
        if facts is None:
            return False
        return facts.vm in NOT_RUNNING or (facts.vm is VmState.ABSENT and instance.state is State.DELETING)


def group_config(told: DynamicGroup) -> operator_pb2.GroupConfig:
    return operator_pb2.GroupConfig(
        template=told.template or "",
        size=told.size,
        instance_type=told.instance_type or "",
        subnet_pool=told.subnet_pool or "",
        vars=told.vars,
        drain_timeout=format_duration(told.drain_timeout) if told.drain_timeout is not None else "",
        max_surge=told.update.max_surge if told.update is not None else 0,
        max_unavailable=told.update.max_unavailable if told.update is not None else 0,
        update_set=told.update is not None,
        load_balancers=told.load_balancers or (),
        args_json=json.dumps(told.args, ensure_ascii=False, sort_keys=True) if told.args else "",
    )


def _milliseconds(seconds: float | None) -> int:
    return int(seconds * 1000) if seconds is not None else 0
