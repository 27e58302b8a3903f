"""An NstanceShardGroup and its group on the shard: what is wished there, is sent; what the shard says, is shown.

Kubernetes is the truth: a group that differs from the spec, because somebody changed it at the server or because a change
was lost, is set again. What the spec does not name is the server's. The trap: a group that is missing from a shard is
missing only when the shard's whole snapshot was read.
"""

import asyncio

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.kube.queue import Queue
from nstance.operator.controllers import pools, resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.rosters import Rosters
from nstance.operator.shards.null_listener import NullListener
from nstance.operator.shards.ports import Shard, ShardRefusedError, ShardUnreachableError
from nstance.v1 import operator_pb2 as pb

ABANDON_ANNOTATION = "nstance.dev/abandon"  # the way out when a shard is gone for good
REFUSED_RETRY = 60.0
LEAVING_RETRY = 30.0

_FIXED = (("template", "template"), ("subnetPool", "subnet_pool"))
_FREE = (*_FIXED, ("instanceType", "instance_type"))


def find_problem(item: Object) -> str:
    """Why nothing can be made of it; empty if it can. It belongs to the group and the shard of its name for life."""
    told = resources.spec(item)
    size = told.get("size")
    if why := resources.find_malformed_field(
        told, required=("group", "shard"), texts=("template", "instanceType", "subnetPool")
    ):
        return why
    if (named := pools.shard_group_name(told["group"], told["shard"])) != resources.name(item):
        return f"spec.group and spec.shard: expected those of its name, found those of {named}"
    if size is not None and not resources.is_size(size):
        return f"spec.size: expected a number, 0 or more, found {size!r}"
    return ""


def config_to_send(spec: Object, found: pb.GroupStatus | None) -> pb.GroupConfig | None:
    """What to send to the shard, or None where it has what the spec says. What the API set there and the spec does not
    name is sent back as it is."""
    config = pb.GroupConfig()
    changed = found is None
    if found is not None:
        config.CopyFrom(found.config)
    size = spec.get("size")
    if size is not None and (found is None or found.size != size):
        config.size, changed = size, True
    for ours, theirs in _FREE if found is None or not found.static else _FREE[len(_FIXED) :]:
        value = spec.get(ours)
        if value and (found is None or getattr(found, theirs) != value):
            setattr(config, theirs, value)
            changed = True
    told = spec.get("vars")
    if told is not None and dict(config.vars) != told:
        config.vars.clear()
        config.vars.update(told)
        changed = True
    return config if changed else None


def fixed_differences(spec: Object, found: pb.GroupStatus) -> list[str]:
    """What the spec wants of a static group that only the server's configuration can change."""
    if not found.static:
        return []
    return [
        f"{ours} is {getattr(found, theirs)!r} there and {spec[ours]!r} here"
        for ours, theirs in _FIXED
        if spec.get(ours) and getattr(found, theirs) != spec[ours]
    ]


def size_source(found: pb.GroupStatus) -> str:
    """Where the size comes from, for people: `config`, or `api by opr-1 at 2026-01-31T12:00:00Z`."""
    source = found.size_source
    by = f" by {source.by} at {resources.timestamp(source.at_unix_ms // 1000)}" if source.by else ""
    return f"{source.kind}{by}"


def group_status(found: pb.GroupStatus) -> Object:
    """A group's status, as Kubernetes shows it."""
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


def _readiness(found: pb.GroupStatus, *, static: bool) -> Condition:
    """`static`: the spec wants what only the server's configuration can change."""
    whole = found.ready_size >= found.size
    trouble = dict.fromkeys((*found.blocked, *([found.last_error] if found.last_error else [])))
    if static:
        reason = "StaticGroup"
    elif found.blocked:
        reason = "Blocked"
    else:
        reason = "AllReady" if whole else "NotReady" if found.actual_size >= found.size else "Scaling"
    message = "; ".join((f"{found.ready_size} of {found.size} ready", *trouble))
    return Condition("Ready", whole and not static and not found.blocked, reason, message)


class ShardGroups(NullListener):
    def __init__(self, parts: ControllerContext, nodes: Nodes) -> None:
        self._nodes, self._rosters = nodes, Rosters(nodes, self.group_changed)
        self._kube, self._clock, self._shards, self._events = parts.kube, parts.clock, parts.shards, parts.events
        self._namespace = parts.settings.namespace
        self._cluster = (self._namespace, parts.settings.name)
        self._clusters, self._machine_pools, self._pools, self._shard_groups = (
            parts.mirrors.of(kind, namespace=self._namespace)
            for kind in (kinds.CLUSTER, kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_SHARD_GROUP)
        )
        self.queue = Queue(
            "shard groups",
            self._reconcile,
            clock=parts.clock,
            rng=parts.rng,
            workers=16,
            expected=(errors.KubeError, ShardUnreachableError),
            report=parts.report,
        )
        self._shard_groups.listen(lambda old, new: self.queue.add(resources.name(new or old or {})))
        self._clusters.listen(lambda old, new: self._add_all())  # it may have been paused or resumed
        for half in (self._machine_pools, self._pools):
            half.listen(self._half_changed)

    async def run(self) -> None:
        await asyncio.gather(self.queue.run(), self._list_when_nodes_are_read())

    async def _list_when_nodes_are_read(self) -> None:
        await self._nodes.read()
        self._add_all()

    def _add_all(self) -> None:
        for item in self._shard_groups.objects.values():
            self.queue.add(resources.name(item))

    def _half_changed(self, old: Object | None, new: Object | None) -> None:
        """A paused half of a pool that is resumed, or gone, holds nothing up any more."""
        if old is not None and resources.is_paused(None, old) and not resources.is_paused(None, new):
            self._add_all()

    # ---- a shard has news

    def shard_changed(self, shard: str) -> None:
        if self._shards.get(shard) is None:
            self._rosters.forget(shard)
        for item in self._shard_groups.objects.values():
            if resources.spec(item).get("shard") == shard:
                self.queue.add(resources.name(item))

    def group_changed(self, shard: str, group: str) -> None:
        self.queue.add(pools.shard_group_name(group, shard))

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None:
        self._rosters.last_seen(shard, event)
        if event.state in ("deleted", "failed"):  # the last one of a group that leaves
            self.queue.add(pools.shard_group_name(event.group, shard))

    def trouble_heard(self, shard: str, event: pb.Event) -> None:
        name = pools.shard_group_name(event.group, shard)
        if (item := self._shard_groups.objects.get((self._namespace, name))) is not None:
            self._events.note(item, "ProviderError", f"{event.reason}: {event.message}", warning=True)

    # ----

    async def _reconcile(self, name: str) -> float | None:
        item = self._shard_groups.objects.get((self._namespace, name))
        if item is None:
            return None
        if problem := find_problem(item):
            if resources.is_being_deleted(item) and resources.annotations(item).get(ABANDON_ANNOTATION) == "true":
                await resources.remove_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
            else:
                await self._tell_refused(item, None, problem)
            return None
        pool = pools.pool_of(item)
        halves = (
            self._pools.objects.get((self._namespace, pool)),
            resources.find_by_infrastructure(self._machine_pools.objects.values(), kinds.NSTANCE_MACHINE_POOL, pool),
        )
        if resources.is_paused(self._clusters.objects.get(self._cluster), item, *halves):
            return None
        shard = self._shards.get(resources.spec(item)["shard"])
        if resources.is_being_deleted(item):
            return await self._leave(item, shard)
        if not resources.has_finalizer(item):
            await resources.add_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
            return None
        if shard is None or not shard.synced:
            await self._tell_unreachable(item, shard)
            return None  # a connection brings the next look
        return await self._sync(item, shard)

    async def _sync(self, item: Object, shard: Shard) -> float | None:
        spec = resources.spec(item)
        found = shard.groups.get(spec["group"])
        config = config_to_send(spec, found)
        told: Object = {}
        if config is not None:
            try:
                found = await shard.upsert_group(spec["group"], config, etag=found.etag if found is not None else "")
            except ShardRefusedError as refusal:
                if refusal.code == "ABORTED":
                    return 0.02  # somebody else changed it: the watch brings what it is now
                await self._tell_refused(item, found, str(refusal))
                return REFUSED_RETRY
            told["lastSyncTime"] = resources.timestamp(self._clock.wall())
            self._events.note(item, "SyncSucceeded", f"shard {shard.name} has size {found.size}")
        assert found is not None
        told |= self._shown(item, found) | {"observedGeneration": item["metadata"].get("generation", 0)}
        differences = fixed_differences(spec, found)
        valid = Condition("ConfigValid", True, "Accepted", "")
        if differences:
            why = f"the group is in the server's configuration, where it is changed: {'; '.join(differences)}"
            valid = Condition("ConfigValid", False, "StaticGroup", why)
            if not _said(item, "ConfigValid", "False"):
                self._events.note(item, "ConfigValidationFailed", why, warning=True)
        ready = _readiness(found, static=bool(differences))
        await self._write(item, told, [Condition("ShardReachable", True, "Connected", ""), valid, ready])
        return None

    async def _leave(self, item: Object, shard: Shard | None) -> float | None:
        """The finalizer goes when the shard has confirmed that the group and its instances are gone."""
        if not resources.has_finalizer(item):
            return None
        group = resources.spec(item)["group"]
        if resources.annotations(item).get(ABANDON_ANNOTATION) == "true":
            self._events.note(
                item, "Abandoned", f"whatever shard {resources.spec(item)['shard']} has of it stays there"
            )
        elif shard is None or not shard.synced:
            await self._tell_unreachable(item, shard)
            return None
        elif (found := shard.groups.get(group)) is not None and not found.static:
            try:
                await shard.delete_group(group)
            except ShardRefusedError as refusal:
                if refusal.code != "NOT_FOUND":
                    await self._tell_refused(item, found, str(refusal))
                    return REFUSED_RETRY
            return LEAVING_RETRY
        elif found is not None:
            self._events.note(
                item,
                "StaticGroup",
                "the group is in the server's configuration: it stays as it is until it is removed there",
            )
        elif any(each.group == group and not each.on_demand for each in shard.instances.values()):
            return LEAVING_RETRY
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_SHARD_GROUP, item)
        return None

    async def _tell_unreachable(self, item: Object, shard: Shard | None) -> None:
        spec = resources.spec(item)
        if shard is None:
            why = f"shard {spec['shard']} is not in the operator's configuration"
            if resources.is_being_deleted(item):
                why += f"; if it is gone for good, annotate this with {ABANDON_ANNOTATION}=true"
        else:
            why = shard.trouble
        if not _said(item, "ShardReachable", "False"):
            self._events.note(item, "ShardUnreachable", why, warning=True)
        reason = "NotConfigured" if shard is None else "Unreachable"
        unknown = Condition("Ready", None, "ShardUnreachable", "what the status says was said before")
        await self._write(item, {}, [Condition("ShardReachable", False, reason, why), unknown])

    async def _tell_refused(self, item: Object, found: pb.GroupStatus | None, why: str) -> None:
        if not _said(item, "ConfigValid", "False"):
            self._events.note(item, "ConfigValidationFailed", why, warning=True)
        conditions = [
            Condition("ShardReachable", True, "Connected", ""),
            Condition("ConfigValid", False, "Refused", why),
            Condition("Ready", False, "ConfigInvalid", why),
        ]
        await self._write(item, self._shown(item, found) if found is not None else {}, conditions)

    def _shown(self, item: Object, found: pb.GroupStatus) -> Object:
        spec = resources.spec(item)
        listed = self._rosters.listed(spec["shard"], spec["group"], found.provider_ids)
        return group_status(found) | ({} if listed is None else {"providerIDs": listed})

    async def _write(self, item: Object, told: Object, conditions: list[Condition]) -> None:
        generation = item["metadata"].get("generation", 0)
        merged = resources.merge_conditions(
            resources.status(item).get("conditions"), conditions, generation=generation, now=self._clock.wall()
        )
        await resources.write_status(self._kube, kinds.NSTANCE_SHARD_GROUP, item, told | {"conditions": merged})


def _said(item: Object, condition: str, status: str) -> bool:
    return any(
        each["type"] == condition and each["status"] == status for each in resources.status(item).get("conditions", ())
    )
