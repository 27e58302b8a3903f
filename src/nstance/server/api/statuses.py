"""Statuses of groups and instances for operators.

A group's numbers come from its records, its readiness from `readiness`, so that a change of leaders does not change them.
Records have steady time; deadlines are shown in wall time.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nstance.clock import Clock
from nstance.config.durations import format as format_duration
from nstance.config.dynamic import DynamicGroup
from nstance.config.model.workload import WAIT, Update
from nstance.config.overrides import list_overrides
from nstance.config.resolve import Resolved
from nstance.core.draft import drifted
from nstance.model.decision import TROUBLE, Reason
from nstance.model.events import VmState
from nstance.model.group import Group
from nstance.model.ids import GroupKey
from nstance.model.instance import ENDED, Instance, State
from nstance.model.observation import Observation
from nstance.server.api import costs, rollout_requests
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.leader.blocked_groups import BlockedGroups
from nstance.server.leader.context import ShardContext
from nstance.server.state.committed_records import CommittedRecords
from nstance.v1 import agent_pb2, operator_pb2

OPERATING_SYSTEM = "linux"  # the agent runs on nothing else
NOT_RUNNING = frozenset({VmState.DOWN, VmState.DELETED})


@dataclass(eq=False)
class Statuses:
    context: ShardContext
    blocked_groups: BlockedGroups
    records: CommittedRecords
    cache: Cache | None
    clock: Clock

    def __post_init__(self) -> None:
        self._shard, self._agents, self._readiness = self.context.shard, self.context.agents, self.context.readiness

    def group(self, resolved: Resolved, dynamic: DynamicGroup | None) -> operator_pb2.GroupStatus:
        """`dynamic`: what the API has set."""
        group = resolved.group
        members = self.records.members(group.key).values()
        counted = [m for m in members if m.counts]
        shard, readiness = self._shard, self._readiness
        ready = sum(readiness.is_ready(m) for m in counted)
        cannot_make = self.blocked_groups.failure(group.key) or shard.no_capacity_reason(group.key)
        return operator_pb2.GroupStatus(
            key=group.key.name,
            tenant=group.key.tenant,
            template=group.template,
            size=group.size,
            instance_type=group.instance_type,
            instance_types=group.instance_types,
            markets=group.markets,
            prefer=group.prefer.value,
            exhausted_offers=self._exhausted_offers(group),
            subnet_pool=group.subnet_pool,
            vars=group.vars,
            static=group.static,
            etag=resolved.etag,
            actual_size=len(counted),
            ready_size=ready,
            not_ready=sum(m.state is State.RUNNING for m in counted) - ready,
            blocked=[*([cannot_make] if cannot_make else []), *readiness.blocked(group.key)],
            provider_ids=sorted(m.provider_id for m in counted if m.provider_id is not None),
            paused=group.paused,
            last_error=shard.blocked_reason(group.key) or shard.trend(group.key).last_error,
            draining=sum(m.state is State.DRAINING for m in members),
            on_demand=sum(m.on_demand and m.state not in ENDED for m in members),
            config=group_config(dynamic or DynamicGroup()),
            capacity=resolved.spec.template.capacity,
            architecture=resolved.arch,
            operating_system=OPERATING_SYSTEM,
            size_source=_size_source(resolved, dynamic),
            overrides=_overrides(resolved, dynamic),
            rollout=rollout_requests.current_status(shard, group),
            infra_hash=group.infra_hash,
            runtime_hash=group.runtime_hash,
            rolled_back_from=group.rolled_back_from,
            file_instance_type=resolved.file.instance_type if group.static else "",
            own_instance_type=(dynamic.instance_type if dynamic else None) or resolved.file.own_instance_type,
            cost=costs.group_cost(self.context.active_config.configuration.prices, group, members),
        )

    def _exhausted_offers(self, group: Group) -> list[operator_pb2.ExhaustedOffer]:
        ahead = self.clock.wall() - self.clock.steady()
        return [
            operator_pb2.ExhaustedOffer(
                market=offer.market,
                instance_type=offer.instance_type,
                subnet=offer.subnet,
                message=known.message,
                # In whole seconds: the difference of two clocks flickers, and a change is sent to every watcher.
                retry_unix_ms=_milliseconds(round(known.until + ahead)),
                server_error=known.is_error,
            )
            for offer, known in self._shard.offers.list_exhausted(group)
        ]

    def instance(
        self, instance: Instance, plan: Iterable[operator_pb2.PlannedAction] = ()
    ) -> operator_pb2.InstanceStatus:
        facts = self._shard.facts.get(instance.id)
        presence = self._agents.get(instance.id)
        desired = self._shard.desired_groups.get(instance.key)
        return operator_pb2.InstanceStatus(
            **self._common_fields(instance),
            message=instance.message,
            connected=presence is not None and presence.healthy,
            drifted=not instance.on_demand and instance.state not in ENDED and drifted(instance, desired),
            market=instance.market,
            subnet=instance.subnet,
            created_unix_ms=_milliseconds(instance.created),
            registered_unix_ms=_milliseconds(instance.registered),
            drain_deadline_unix_ms=self._deadline(instance),
            replaces=instance.replaces or instance.predecessor or "",
            last_report_unix_ms=_milliseconds(presence.reported if presence is not None else None),
            vm_status=_vm_state(facts, is_connected=presence is not None and presence.healthy).value,
            plan=plan,
            cloned=self._agents.clones.is_seen(instance.id, self.clock.monotonic()),
            ready_unix_ms=_milliseconds(instance.ready_at),
            checks=self._readiness.checks(instance) if instance.state is State.RUNNING else (),
        )

    async def instance_with_last_report(self, instance: Instance) -> operator_pb2.InstanceStatus:
        """With the last report of its agent; if that is not connected, only its time, from the cache."""
        status, cache = self.instance(instance), self.cache
        presence = self._agents.get(instance.id)
        if presence is not None and presence.report is not None:
            status.report.CopyFrom(_agent_report(presence.report, wanted_hash=presence.wanted_hash))
        if not status.last_report_unix_ms and cache is not None:
            with contextlib.suppress(CacheUnavailableError):
                status.last_report_unix_ms = _milliseconds(await cache.last_report(instance.id))
        return status

    def instance_event(self, instance: Instance, before: Instance | None = None) -> operator_pb2.InstanceEvent:
        return operator_pb2.InstanceEvent(
            **self._common_fields(instance),
            deadline_unix_ms=self._deadline(instance),
            waits=instance.drain is not None and instance.state is State.DRAINING and instance.drain.waits,
            drain_cancelled=before is not None and before.state is State.DRAINING and instance.state is State.RUNNING,
        )

    def _common_fields(self, instance: Instance) -> dict[str, Any]:
        """The fields that InstanceStatus and InstanceEvent share."""
        is_running = instance.state is State.RUNNING
        not_ready = self._readiness.why_not(instance) if is_running else ""  # other states say enough
        return {
            "instance_id": instance.id,
            "provider_id": instance.provider_id or "",
            "group": instance.group,
            "state": instance.state.value,
            "reason": instance.cause.value if instance.cause is not None else "",
            "on_demand": instance.on_demand,
            "ipv4": instance.ip4,
            "ipv6": instance.ip6,
            "hostname": instance.hostname,
            "vm_gone": self._is_gone(instance),
            "ready": is_running and not not_ready,
            "not_ready": not_ready,
            "suspect": instance.suspect,
            "instance_type": instance.instance_type,
            "revision": instance.infra_hash,
        }

    def event(self, key: GroupKey, reason: Reason) -> operator_pb2.Event:
        return operator_pb2.Event(
            time_unix_ms=_milliseconds(self.clock.wall()),
            group=key.name,
            instance_id=reason.instance or "",
            reason=reason.code.value,
            message=reason.message,
            trouble=reason.code in TROUBLE,
        )

    def _deadline(self, instance: Instance) -> int:
        if instance.drain is None or instance.state is not State.DRAINING:
            return 0
        return _milliseconds(instance.drain.deadline - self.clock.steady() + self.clock.wall())

    def _is_gone(self, instance: Instance) -> bool:
        """Whether nothing is left to drain."""
        if instance.state in ENDED:
            return True
        facts = self._shard.facts.get(instance.id)
        if facts is None:
            return False
        return facts.vm.state in NOT_RUNNING or (facts.vm.state is VmState.ABSENT and instance.state is State.DELETING)


def _agent_report(report: agent_pb2.HealthReport, *, wanted_hash: str) -> operator_pb2.AgentReport:
    return operator_pb2.AgentReport(
        version=report.version,
        uptime_seconds=report.uptime_seconds,
        cpu_percent=report.cpu_percent,
        memory_percent=report.memory_percent,
        disk_percent=report.disk_percent,
        load1=report.load1,
        files_hash=report.config_hash,
        wanted_files_hash=wanted_hash,
        files_error=report.files_error,
        files=[
            operator_pb2.InstalledFile(name=each.name, sha256=each.sha256, expires_unix=each.expires_unix)
            for each in report.files
        ],
    )


def _vm_state(facts: Observation | None, *, is_connected: bool) -> VmState:
    """An agent that is connected runs on a VM, whether or not the provider was asked."""
    state = facts.vm.state if facts is not None else VmState.UNKNOWN
    return VmState.RUNNING if is_connected and state is VmState.UNKNOWN else state


def _size_source(resolved: Resolved, dynamic: DynamicGroup | None) -> operator_pb2.SizeSource:
    if dynamic is None or dynamic.size is None:
        return operator_pb2.SizeSource(kind="config", config_size=resolved.file.size)
    stamp = dynamic.set_by.get("size")
    return operator_pb2.SizeSource(
        kind="api",
        by=stamp.by if stamp is not None else "",
        at_unix_ms=_milliseconds(stamp.seconds if stamp is not None else None),
        config_size=resolved.file.size,
    )


def _overrides(resolved: Resolved, dynamic: DynamicGroup | None) -> list[operator_pb2.Override]:
    if not resolved.group.static:
        return []
    return [
        operator_pb2.Override(
            field=each.field,
            value=each.value,
            file_value=each.file_value,
            by=each.stamp.by if each.stamp is not None else "",
            at_unix_ms=_milliseconds(each.stamp.seconds if each.stamp is not None else None),
        )
        for each in list_overrides(dynamic, resolved.file)
    ]


def group_config(group: DynamicGroup) -> operator_pb2.GroupConfig:
    return operator_pb2.GroupConfig(
        template=group.template or "",
        size=group.size,
        instance_type=group.instance_type or "",
        subnet_pool=group.subnet_pool or "",
        vars=group.vars,
        drain_timeout=format_duration(group.drain_timeout) if group.drain_timeout is not None else "",
        **_update_fields(group.update),
        load_balancers=group.load_balancers or (),
        args_json=json.dumps(group.args, ensure_ascii=False, sort_keys=True) if group.args else "",
    )


def _update_fields(update: Update | None) -> dict[str, Any]:
    if update is None:
        return {}
    pause = update.pause_after_canary
    return {
        "update_set": True,
        "max_surge": update.max_surge,
        "max_unavailable": update.max_unavailable,
        "update_order": update.order,
        "update_settle": format_duration(update.settle) if update.settle else "",
        "canary": update.canary,
        "pause_after_canary": format_duration(pause) if isinstance(pause, float) else pause if pause != WAIT else "",
        "max_failures": update.max_failures,
        "on_failure": update.on_failure,
    }


def _milliseconds(seconds: float | None) -> int:
    return int(seconds * 1000) if seconds is not None else 0
