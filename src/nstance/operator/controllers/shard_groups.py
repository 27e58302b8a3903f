"""Syncs an NstanceShardGroup with its group on the shard: the spec is sent, the shard's status is shown.

Kubernetes is the source of truth: a group that differs from the spec, because it was changed at the server or a change was
lost, is set again. A field that the spec has set and no longer names goes back to the template's value; other fields that
it does not name belong to the server, and the condition InSync shows them. The traps: a group is missing from a shard only
if the shard's complete snapshot was read; and what the spec owns is stored before the shard is called, or a crash would leave
a field that nobody takes back.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.operator.controllers import pools, resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.node_settings import KUBELET_VARS
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.pool_status import IN_SYNC
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.rosters import Rosters
from nstance.operator.shards.ports import Shard, ShardRefusedError
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

ABANDON_ANNOTATION = "nstance.dev/abandon"  # lets an object go whose shard is lost for good
REJECTED_RETRY_SECONDS = 60.0
DELETING_RETRY_SECONDS = 30.0
CONFLICT_RETRY_SECONDS = 0.02

VARS, NODE_VARS = "vars", "nodeVars"
_STATIC_FIELDS = (("template", "template"), ("subnetPool", "subnet_pool"))  # of a spec, and of a shard's message
_API_FIELDS = (("instanceType", "instance_type"),)  # that the API may also change in a static group
_REVOCABLE = ("instanceType", "subnetPool")  # go back to the template's value; a group without a template is none


def find_problem(item: Object) -> str:
    """Why the object cannot be used; empty if it can. Its name fixes its group and its shard for life."""
    spec = resources.spec(item)
    size = spec.get("size")
    texts = ("template", "instanceType", "subnetPool")
    if problem := resources.find_malformed_field(spec, required=("group", "shard"), texts=texts):
        return problem
    if (expected := pools.shard_group_name(spec["group"], spec["shard"])) != resources.name(item):
        return f"spec.group and spec.shard: expected those of its name, found those of {expected}"
    if size is not None and not resources.is_size(size):
        return f"spec.size: expected a number, 0 or more, found {size!r}"
    return ""


def config_to_send(spec: Object, found: pb.GroupStatus | None, owned: Collection[str] = ()) -> pb.GroupConfig | None:
    """The configuration for the shard; None if it has what the spec says. `owned`: fields that the spec has set before; if
    it no longer names them, they are cleared. Anything else that the API set there is sent back unchanged."""
    config = pb.GroupConfig()
    changed = found is None
    if found is not None:
        config.CopyFrom(found.config)
    size = spec.get("size")
    if size is not None and (found is None or found.size != size):
        config.size, changed = size, True
    for ours, theirs in _API_FIELDS if found is not None and found.static else _STATIC_FIELDS + _API_FIELDS:
        value = spec.get(ours)
        if value and (found is None or getattr(found, theirs) != value):
            setattr(config, theirs, value)
            changed = True
        elif not value and ours in owned and ours in _REVOCABLE and getattr(config, theirs):
            setattr(config, theirs, "")
            changed = True
    wanted = _wanted_vars(spec, config.vars, owned)
    if dict(config.vars) != wanted:
        config.vars.clear()
        config.vars.update(wanted)
        changed = True
    return config if changed else None


def _wanted_vars(spec: Object, found: Mapping[str, str], owned: Collection[str]) -> dict[str, str]:
    """A spec that names vars has all of them, and its own value of one for kubelets counts. Otherwise those that the API has
    set stay, beside the ones for kubelets."""
    vars, for_kubelets = spec.get(VARS), spec.get(NODE_VARS) or {}
    if vars is not None or VARS in owned:
        return {**for_kubelets, **(vars or {})}
    revoked = KUBELET_VARS if NODE_VARS in owned else ()
    return {**{key: value for key, value in found.items() if key not in revoked}, **for_kubelets}


def owned_fields(spec: Object) -> list[str]:
    """The fields that the spec sets now."""
    return sorted(each for each in (*_REVOCABLE, VARS, NODE_VARS) if spec.get(each))


def was_never_sent(item: Object) -> bool:
    """Whether no shard was ever asked to have this group. `ownedFields` is stored before the first call."""
    return not resources.status(item).keys() & {"ownedFields", "lastSyncTime", "config"}


def unnamed_settings(spec: Object, found: pb.GroupStatus) -> list[str]:
    """What the API has set at the shard and the spec does not name."""
    fields = dict(_STATIC_FIELDS + _API_FIELDS)
    set_there = {ours: getattr(found.config, fields[ours]) for ours in ("template", *_REVOCABLE)}
    settings = [f"{name} is {value!r}" for name, value in set_there.items() if value and not spec.get(name)]
    unnamed = found.config.vars.keys() - (spec.get(NODE_VARS) or {}).keys()
    if spec.get(VARS) is None and unnamed:
        settings.append(f"vars has {', '.join(sorted(unnamed))}")
    return settings


def fixed_differences(spec: Object, found: pb.GroupStatus) -> list[str]:
    """What the spec asks of a static group that only the server's configuration can change."""
    if not found.static:
        return []
    return [
        f"{ours} is {getattr(found, theirs)!r} there and {spec[ours]!r} here"
        for ours, theirs in _STATIC_FIELDS
        if spec.get(ours) and getattr(found, theirs) != spec[ours]
    ]


def size_source(found: pb.GroupStatus) -> str:
    """Where the size comes from, for people: `config`, or `api by opr-1 at 2026-01-31T12:00:00Z`."""
    source = found.size_source
    by = f" by {source.by} at {resources.timestamp(source.at_unix_ms // 1000)}" if source.by else ""
    return f"{source.kind}{by}"


def group_status(found: pb.GroupStatus) -> Object:
    """A group's status as Kubernetes shows it."""
    return {
        "replicas": found.actual_size,
        "readyReplicas": found.ready_size,
        "isStatic": found.static,
        "config": {
            "template": found.template,
            "size": found.size,
            "sizeSource": size_source(found),
            "overrides": sorted(each.field for each in found.overrides),
            "instanceType": found.instance_type,
            "subnetPool": found.subnet_pool,
            "vars": dict(found.vars),
            "etag": found.etag,
            "paused": found.paused,
            "lastError": found.last_error,
        },
    }


def _readiness(found: pb.GroupStatus, *, is_static_conflict: bool) -> Condition:
    all_ready = found.ready_size >= found.size
    problems = dict.fromkeys((*found.blocked, *([found.last_error] if found.last_error else [])))
    if is_static_conflict:
        reason = "StaticGroup"
    elif found.blocked:
        reason = "Blocked"
    else:
        reason = "AllReady" if all_ready else "NotReady" if found.actual_size >= found.size else "Scaling"
    message = "; ".join((f"{found.ready_size} of {found.size} ready", *problems))
    return Condition("Ready", reason == "AllReady", reason, message)


def _sync_condition(spec: Object, found: pb.GroupStatus) -> Condition:
    if unnamed := unnamed_settings(spec, found):
        message = f"set at the shard and not named here: {'; '.join(unnamed)}"
        return Condition(IN_SYNC, False, "SetAtShard", message)
    return Condition(IN_SYNC, True, "Synced")


def _request(spec: Object, config: pb.GroupConfig, found: pb.GroupStatus | None) -> pb.UpsertGroupRequest:
    request = pb.UpsertGroupRequest(key=spec["group"], config=config)
    if found is not None:
        request.etag = found.etag
        if config.HasField("size") and config.size < found.size:
            request.remove_first.extend(spec.get("removeFirst") or ())
    return request


class ShardGroups(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._nodes, self._rosters = nodes, Rosters(nodes, self.on_group_change)
        self._machine_pools, self._pools, self._shard_groups = map(
            self._mirror, (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_SHARD_GROUP)
        )
        self.queue = context.queue("shard groups", self._reconcile, workers=16)
        self._shard_groups.listen(lambda old, new: self.queue.add(resources.name(new or old or {})))
        self._clusters.listen(lambda old, new: self._add_all())  # it may have been paused or resumed
        for mirror in (self._machine_pools, self._pools):
            mirror.listen(self._on_pool_change)

    async def run(self) -> None:
        await asyncio.gather(self.queue.run(), self._add_all_when_nodes_are_synced())

    async def _add_all_when_nodes_are_synced(self) -> None:
        await self._nodes.wait_synced()
        self._add_all()

    def _add_all(self) -> None:
        for item in self._shard_groups.objects.values():
            self.queue.add(resources.name(item))

    def _on_pool_change(self, old: Object | None, new: Object | None) -> None:
        """A paused MachinePool or NstanceMachinePool that is resumed or deleted releases its shard groups."""
        if old is not None and resources.is_paused(None, old) and not resources.is_paused(None, new):
            self._add_all()

    # ---- changes of shards

    def on_shard_change(self, shard: str) -> None:
        if self._shards.get(shard) is None:
            self._rosters.remove_shard(shard)
        for item in self._shard_groups.objects.values():
            if resources.spec(item).get("shard") == shard:
                self.queue.add(resources.name(item))

    def on_group_change(self, shard: str, group: str) -> None:
        self.queue.add(pools.shard_group_name(group, shard))

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        self._rosters.update(shard, event)
        if event.state in ("deleted", "failed"):  # perhaps the last one of a group that is being deleted
            self.queue.add(pools.shard_group_name(event.group, shard))

    def on_error_event(self, shard: str, event: pb.Event) -> None:
        item = self._find(self._shard_groups, pools.shard_group_name(event.group, shard))
        if item is not None:
            self._events.note(item, "ProviderError", f"{event.reason}: {event.message}", warning=True)

    # ---- reconciling

    async def _reconcile(self, name: str) -> float | None:
        item = self._find(self._shard_groups, name)
        if item is None:
            return None
        if problem := find_problem(item):
            if resources.is_being_deleted(item) and resources.annotations(item).get(ABANDON_ANNOTATION) == "true":
                await resources.remove_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
            else:
                await self._show_rejected(item, None, problem)
            return None
        pool = pools.pool_of(item)
        machine_pool = resources.find_by_infrastructure(
            self._machine_pools.objects.values(), kinds.NSTANCE_MACHINE_POOL, pool
        )
        if self._is_paused(item, self._find(self._pools, pool), machine_pool):
            await self._show_paused(kinds.NSTANCE_SHARD_GROUP, item)
            return None
        shard = self._shards.get(resources.spec(item)["shard"])
        if resources.is_being_deleted(item):
            return await self._finalize(item, shard)
        if not resources.has_finalizer(item):
            await resources.add_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
            return None
        if shard is None or not shard.synced:
            await self._show_unreachable(item, shard)
            return None  # the connection triggers the next reconcile
        return await self._sync(item, shard)

    async def _sync(self, item: Object, shard: Shard) -> float | None:
        spec = resources.spec(item)
        found = shard.groups.get(spec["group"])
        owned = resources.status(item).get("ownedFields") or []
        config = config_to_send(spec, found, owned)
        status: Object = {"ownedFields": owned_fields(spec)}
        if config is not None:
            if was_never_sent(item) or not set(owned_fields(spec)) <= set(owned):
                intended: Object = {"ownedFields": sorted({*owned, *owned_fields(spec)})}
                await resources.write_status(self._kube, kinds.NSTANCE_SHARD_GROUP, item, intended)
            try:
                found = await shard.upsert_group(_request(spec, config, found))
            except ShardRefusedError as refusal:
                if refusal.code == "ABORTED":
                    return CONFLICT_RETRY_SECONDS  # changed by another client: the watch brings its current state
                await self._show_rejected(item, found, str(refusal))
                return REJECTED_RETRY_SECONDS
            status["lastSyncTime"] = resources.timestamp(self._clock.wall())
            self._events.note(item, "SyncSucceeded", f"shard {shard.name} has size {found.size}")
        assert found is not None
        status |= self._group_status(item, found) | {"observedGeneration": resources.generation(item)}
        differences = fixed_differences(spec, found)
        valid = Condition("ConfigValid", True, "Accepted")
        if differences:
            message = f"the group is static, change it in the server's configuration: {'; '.join(differences)}"
            valid = Condition("ConfigValid", False, "StaticGroup", message)
            self._note_invalid(item, message)
        ready = _readiness(found, is_static_conflict=bool(differences))
        conditions = [Condition("ShardReachable", True, "Connected"), valid, ready, _sync_condition(spec, found)]
        await self._write(item, status, conditions)
        return None

    async def _finalize(self, item: Object, shard: Shard | None) -> float | None:
        """Removes the finalizer once the shard confirmed that the group and its instances are gone."""
        if not resources.has_finalizer(item):
            return None
        group = resources.spec(item)["group"]
        if resources.annotations(item).get(ABANDON_ANNOTATION) == "true":
            message = f"abandoned: what shard {resources.spec(item)['shard']} has of this group stays there"
            self._events.note(item, "Abandoned", message)
        elif shard is None and was_never_sent(item):
            log.info("shard group released: its shard was never configured", extra={"object": resources.name(item)})
        elif shard is None or not shard.synced:
            await self._show_unreachable(item, shard)
            return None
        elif (found := shard.groups.get(group)) is not None and not found.static:
            try:
                await shard.delete_group(group)
            except ShardRefusedError as refusal:
                if refusal.code != "NOT_FOUND":
                    await self._show_rejected(item, found, str(refusal))
                    return REJECTED_RETRY_SECONDS
            return await self._show_deleting(item)
        elif found is not None:
            message = "the group is static: it stays until it is removed from the server's configuration"
            self._events.note(item, "StaticGroup", message)
        elif any(each.group == group and not each.on_demand for each in shard.instances.values()):
            return await self._show_deleting(item)
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
        return None

    async def _show_deleting(self, item: Object) -> float:
        await self._write(item, {}, [Condition("Ready", False, "Deleting", "the shard removes the group's instances")])
        return DELETING_RETRY_SECONDS

    async def _show_unreachable(self, item: Object, shard: Shard | None) -> None:
        message = unreachable_message(item, resources.spec(item)["shard"], shard)
        if resources.condition(item, "ShardReachable").get("status") != "False":
            self._events.note(item, "ShardUnreachable", message, warning=True)
        reason = "NotConfigured" if shard is None else "Unreachable"
        unknown = Condition("Ready", None, "ShardUnreachable", "the status is from before the connection was lost")
        await self._write(item, {}, [Condition("ShardReachable", False, reason, message), unknown])

    async def _show_rejected(self, item: Object, found: pb.GroupStatus | None, message: str) -> None:
        self._note_invalid(item, message)
        conditions = [
            Condition("ShardReachable", True, "Connected"),
            Condition("ConfigValid", False, "Refused", message),
            Condition("Ready", False, "ConfigInvalid", message),
        ]
        await self._write(item, self._group_status(item, found) if found is not None else {}, conditions)

    def _note_invalid(self, item: Object, message: str) -> None:
        if resources.condition(item, "ConfigValid").get("status") != "False":
            self._events.note(item, "ConfigValidationFailed", message, warning=True)

    def _group_status(self, item: Object, found: pb.GroupStatus) -> Object:
        spec = resources.spec(item)
        ids = self._rosters.provider_ids(spec["shard"], spec["group"], found.provider_ids)
        return group_status(found) | ({} if ids is None else {"providerIDs": ids})

    async def _write(self, item: Object, status: Object, conditions: list[Condition]) -> None:
        await self._write_status(kinds.NSTANCE_SHARD_GROUP, item, status, conditions)


def unreachable_message(item: Object, name: str, shard: Shard | None) -> str:
    """`shard` is None if the operator's configuration does not have it."""
    if shard is not None:
        return shard.unsynced_reason
    message = f"shard {name} is not in the operator's configuration"
    if resources.is_being_deleted(item):
        message += f"; if it is lost for good, annotate this object with {ABANDON_ANNOTATION}=true"
    return message
