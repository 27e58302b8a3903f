"""Divides a pool's replicas over its shards, and adds up what the shards report.

MachinePool (Cluster API's, with the replicas) and NstanceMachinePool (ours, with group and shards) are a pair, joined by
infrastructureRef. Each shard's share is an NstanceShardGroup, which the next controller brings to the shard. The trap: a
pool without its MachinePool has no replicas, which is not zero replicas, so sizes stay as they are. The same holds for a
malformed pair: a typo must not delete every instance. And a pool that shrinks by a chosen instance must not lose another
one: what was chosen and what the shards have is read from the API server, because mirrors may bring the new replicas first.
"""

from collections.abc import Iterable, Mapping, Sequence

from nstance.kube import errors, kinds
from nstance.kube.port import Object, find
from nstance.operator.controllers import node_settings, pool_limits, pool_sizes, resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.machine_objects import is_marked, node_reference
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.pod_objects import trim_pod
from nstance.operator.controllers.pool_limits import Limit, limit_of
from nstance.operator.controllers.pool_sizes import Chosen
from nstance.operator.controllers.pool_status import (
    LIMIT_REACHED,
    is_pool_member,
    node_fields,
    shown_instances,
    summarize,
    sync_conditions,
)
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.victims import node_loads, order_victims
from nstance.operator.shards.ports import Shards
from nstance.tasks import background
from nstance.v1 import operator_pb2 as pb

POOL_LABEL = "nstance.dev/machinepool"  # for people's selectors; ownerReferences say who owns a shard group
ORPHAN_FINALIZER = "orphan"  # of `kubectl delete --cascade=orphan`: dependents are being taken from their owner
STALE_MIRROR_SECONDS = 0.1
MAX_REMOVE_FIRST = 10_000  # a shard takes no longer list; the rest leaves in the shard's own order
COUNTED = frozenset({"pending", "starting", "running"})  # states that count for the size of a group
_COPIED = ("template", "instanceType", "subnetPool", "vars")


def shard_group_name(group: str, shard: str) -> str:
    return f"{group}--{shard}"


def pool_of(group: Object) -> str:
    """The name of the pool that a shard group belongs to."""
    owners = group["metadata"].get("ownerReferences") or []
    return next((each["name"] for each in owners if each.get("kind") == kinds.NSTANCE_MACHINE_POOL.name), "")


def replicas_of(machine_pool: Object) -> int | None:
    """The replicas that Kubernetes wants; None: the shards keep their sizes."""
    found = resources.spec(machine_pool).get("replicas")
    return None if is_scaled_elsewhere(machine_pool) else found


def wanted_replicas(machine_pool: Object, limit: Limit | None, current: Mapping[str, int]) -> int | None:
    """As replicas_of, within the pool's limit. A pool that is larger than its limit stays so until its replicas shrink."""
    replicas = replicas_of(machine_pool)
    if replicas is None or limit is None:
        return replicas
    return min(replicas, max(limit.instances, sum(current.values())))


def is_scaled_elsewhere(machine_pool: Object) -> bool:
    """Cluster API's convention: something outside Kubernetes sets the size, and the replicas only show it."""
    return resources.annotations(machine_pool).get(resources.REPLICAS_MANAGED_BY, "false") != "false"


def current_sizes(groups: Iterable[Object]) -> dict[str, int]:
    """By shard, of the pool's shard groups."""
    return {
        resources.spec(each)["shard"]: resources.spec(each).get("size", 0)
        for each in groups
        if not resources.is_being_deleted(each)
    }


def shard_group_specs(
    pool: Object,
    machine_pool: Object,
    *,
    current: Mapping[str, int] | None = None,
    limit: Limit | None = None,
    chosen: Sequence[Chosen] = (),
    others: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Object]:
    """The specs of the pool's shard groups, by name. `current`: their sizes now. `chosen`: who leaves if they shrink.
    `others`: by shard, who leaves if more have to than were chosen."""
    spec = resources.spec(pool)
    known = current or {}
    replicas = wanted_replicas(machine_pool, limit, known)
    sizes = pool_sizes.divide(
        replicas or 0, spec.get("shards") or (), known, chosen=chosen, pinned=spec.get("shardSizes")
    )
    copied = {key: spec[key] for key in _COPIED if key in spec}
    if vars := node_settings.kubelet_vars(spec):
        copied["nodeVars"] = vars
    specs = {}
    for shard, size in sizes.items():
        specs[shard_group_name(spec["group"], shard)] = wanted = {"group": spec["group"], "shard": shard, **copied}
        if replicas is not None:
            wanted["size"] = size
            if size != known.get(shard):
                leaving = [each.instance for each in chosen if each.shard == shard]
                leaving += [each for each in (others or {}).get(shard, ()) if each not in leaving]
                surplus = max(0, known.get(shard, 0) - size)
                wanted["removeFirst"] = leaving[: min(surplus, MAX_REMOVE_FIRST)] or None
        elif is_scaled_elsewhere(machine_pool):
            wanted["size"] = None
    return specs


def chosen_instances(machines: Iterable[Object], pool: Object, shards: Shards) -> list[Chosen]:
    """The pool's instances whose Machine is marked for deletion or being deleted, and that do not leave already."""
    spec = resources.spec(pool)
    marked = sorted(resources.infrastructure(each).get("name", "") for each in machines if is_marked(each))
    return [
        Chosen(name, event.instance_id)
        for name in dict.fromkeys(spec["shards"])
        if (shard := shards.get(name)) is not None
        for event in (shard.instances[each] for each in marked if each in shard.instances)
        if is_pool_member(event, spec["group"]) and event.state in COUNTED
    ]


def find_problem(pool: Object, machine_pool: Object) -> str:
    """Why this pair cannot be used; empty if it can. The CRDs' schemas reject most of it where they are installed."""
    spec = resources.spec(pool)
    shards, replicas = spec.get("shards"), resources.spec(machine_pool).get("replicas")
    texts = ("template", "instanceType", "subnetPool")
    if problem := resources.find_malformed_field(spec, required=("group",), texts=texts):
        return problem
    if not isinstance(shards, list) or not shards or not all(isinstance(each, str) for each in shards):
        return f"spec.shards: expected names of shards, at least one, found {shards!r}"
    pinned = spec.get("shardSizes") or {}
    if not isinstance(pinned, Mapping) or not all(map(resources.is_size, pinned.values())):
        return f"spec.shardSizes: expected numbers by shard, 0 or more, found {pinned!r}"
    if replicas is not None and not resources.is_size(replicas):
        return (
            f"the MachinePool's spec.replicas: expected a number, 0 or more, found {replicas!r}; sizes stay as they are"
        )
    return ""


def find_static_move(pool: Object, groups: Iterable[Object], shards: Shards) -> str:
    """Why the pool cannot move to other shards; empty if it can or does not. A static group stays in the shards whose
    configuration has it, and instances that remain there would have no owner."""
    existing = [each for each in groups if not resources.is_being_deleted(each)]
    if not any(resources.status(each).get("isStatic") for each in existing):
        return ""
    spec = resources.spec(pool)
    current, wanted = {resources.spec(each)["shard"] for each in existing}, set(spec["shards"])
    # Shards that have the static group, although its NstanceShardGroup was deleted: it is created again.
    missing = {
        each
        for each in wanted - current
        if (shard := shards.get(each)) is not None and (found := shard.groups.get(spec["group"])) and found.static
    }
    if wanted - missing == current:
        return ""
    configured = ", ".join(sorted(current | missing))
    return f"the group is static, it is in the configuration of {configured}: spec.shards cannot be changed here"


class Pools(Controller):
    def __init__(self, context: ControllerContext, nodes: Nodes) -> None:
        super().__init__(context)
        self._nodes = nodes
        self._pods = context.workload_mirrors.of(kinds.POD, trim=trim_pod)
        self._machine_pools, self._pools, self._shard_groups = map(
            self._mirror, (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_SHARD_GROUP)
        )
        self.queue = context.queue("pools", self._reconcile)
        self._pools.listen(lambda old, new: self.queue.add(resources.name(new or old or {})))
        self._machine_pools.listen(self._on_machine_pool_change)
        self._shard_groups.listen(self._on_shard_group_change)
        self._clusters.listen(lambda old, new: self._add_all())
        context.cluster_api.listen(self._add_all)
        nodes.listen(lambda key: self._add_all())

    async def run(self) -> None:
        await self.queue.run()

    def on_group_change(self, shard: str, group: str) -> None:
        for pool in self._pools.objects.values():
            if resources.spec(pool).get("group") == group:
                self.queue.add(resources.name(pool))

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        if not event.on_demand:
            self.on_group_change(shard, event.group)

    def _add_all(self) -> None:
        for pool in self._pools.objects.values():
            self.queue.add(resources.name(pool))

    def _on_machine_pool_change(self, old: Object | None, new: Object | None) -> None:
        for each in (old, new):
            if each is not None:
                self.queue.add(str(resources.infrastructure(each).get("name", "")))

    def _on_shard_group_change(self, old: Object | None, new: Object | None) -> None:
        for each in (old, new):
            if each is not None and (pool := pool_of(each)):
                self.queue.add(pool)

    async def _reconcile(self, name: str) -> float | None:
        pool = self._find(self._pools, name)
        if pool is None:
            return None
        owned = [
            each for each in self._shard_groups.objects.values() if resources.is_owned_by(each, resources.uid(pool))
        ]
        machine_pool = resources.find_by_infrastructure(
            self._machine_pools.objects.values(), kinds.NSTANCE_MACHINE_POOL, name
        )
        problem = ""
        if self._is_paused(pool, machine_pool):
            await self._show_paused(kinds.NSTANCE_MACHINE_POOL, pool)
            return None
        if resources.is_being_deleted(pool):
            return await self._finalize(pool, owned)
        if not resources.has_finalizer(pool):
            await resources.add_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
            return None  # this change triggers the next reconcile
        if machine_pool is not None:
            await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE_POOL, pool, machine_pool, kinds.MACHINE_POOL)
            problem = (
                find_problem(pool, machine_pool)
                or pool_limits.find_problem(pool)
                or find_static_move(pool, owned, self._shards)
            )
            if not problem:
                await self._divide(pool, machine_pool, {resources.name(each): each for each in owned})
            elif resources.condition(pool, "Ready").get("message") != problem:
                self._events.note(pool, "ConfigValidationFailed", problem, warning=True)
        await self._update_status(pool, machine_pool, owned, problem)
        return None

    async def _divide(self, pool: Object, machine_pool: Object, existing: dict[str, Object]) -> None:
        pool, limit = await self._end_pinning(pool, machine_pool), limit_of(pool, self._shards)
        specs = shard_group_specs(pool, machine_pool, current=current_sizes(existing.values()), limit=limit)
        if any(name not in existing or _size(existing[name]) != spec.get("size") for name, spec in specs.items()):
            existing = await self._read_owned(pool, existing.keys() | specs.keys())
            current = current_sizes(existing.values())
            is_shrinking = sum(current.values()) > (wanted_replicas(machine_pool, limit, current) or 0)
            chosen = await self._list_chosen(pool, machine_pool) if is_shrinking else []
            others = self._order_others(pool) if is_shrinking else None
            specs = shard_group_specs(pool, machine_pool, current=current, limit=limit, chosen=chosen, others=others)
        writes = [
            self._create_shard_group(pool, name, spec)
            if name not in existing
            else self._update_shard_group(existing[name], spec)
            for name, spec in specs.items()
        ]
        writes += [self._delete(kinds.NSTANCE_SHARD_GROUP, existing[name]) for name in existing.keys() - specs.keys()]
        await background.gather_all(writes)

    async def _end_pinning(self, pool: Object, machine_pool: Object) -> Object:
        """Sizes of single shards hold until the replicas change; later replicas must not bring them back."""
        spec, replicas = resources.spec(pool), replicas_of(machine_pool)
        pinned = spec.get("shardSizes")
        if pinned is None or replicas is None or pool_sizes.is_pinned(replicas, spec["shards"], pinned):
            return pool
        await self._patch_spec(kinds.NSTANCE_MACHINE_POOL, pool, {"shardSizes": None})
        return {**pool, "spec": {key: value for key, value in spec.items() if key != "shardSizes"}}

    async def _read_owned(self, pool: Object, names: Iterable[str]) -> dict[str, Object]:
        """Those of these shard groups that the pool owns, by name. Singly: a list has the groups of all pools."""
        kind, namespace = kinds.NSTANCE_SHARD_GROUP, self._namespace
        found = await background.gather_all(find(self._kube, kind, name, namespace=namespace) for name in names)
        owned = (each for each in found if each is not None and resources.is_owned_by(each, resources.uid(pool)))
        return {resources.name(each): each for each in owned}

    async def _list_owned(self, pool: Object) -> list[Object]:
        listing = await self._kube.list(kinds.NSTANCE_SHARD_GROUP, namespace=self._namespace)
        return [each for each in listing.items if resources.is_owned_by(each, resources.uid(pool))]

    def _order_others(self, pool: Object) -> dict[str, list[str]]:
        """From mirrors: this is a preference, and nothing depends on it."""
        spec, ordered = resources.spec(pool), {}
        loads = node_loads(self._pods.objects.values())
        for name in spec["shards"]:
            shard = self._shards.get(name)
            events = shard.instances.items() if shard is not None else ()
            found = {id: e for id, e in events if is_pool_member(e, spec["group"]) and e.state in COUNTED}
            nodes = {id: self._nodes.find(id, event.provider_id) for id, event in found.items()}
            ordered[name] = order_victims(found, nodes, loads)
        return ordered

    async def _list_chosen(self, pool: Object, machine_pool: Object) -> list[Chosen]:
        selector = f"{resources.POOL_LABEL}={resources.label_value(resources.name(machine_pool))}"
        listing = await self._kube.list(kinds.MACHINE, namespace=self._namespace, labels=selector)
        return chosen_instances(listing.items, pool, self._shards)

    async def _create_shard_group(self, pool: Object, name: str, spec: Object) -> None:
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {POOL_LABEL: resources.label_value(resources.name(pool))},
            "ownerReferences": [resources.owner_reference(pool, kinds.NSTANCE_MACHINE_POOL, controller=True)],
            "finalizers": [resources.FINALIZER],
        }
        kind = kinds.NSTANCE_SHARD_GROUP
        try:
            given = {key: value for key, value in spec.items() if value is not None}
            await self._kube.create(kind, resources.manifest(kind, metadata, given))
        except errors.AlreadyExistsError:
            found = await self._kube.get(kind, name, namespace=self._namespace)
            if not found["metadata"].get("ownerReferences") and not resources.is_being_deleted(found):
                # Orphaned on purpose, or created by hand: this pool takes it over.
                change = {key: metadata[key] for key in ("labels", "ownerReferences")}
                change["resourceVersion"] = found["metadata"]["resourceVersion"]
                await self._kube.patch(kind, name, {"metadata": change}, namespace=self._namespace)
            elif not resources.is_owned_by(found, resources.uid(pool)):
                # Two pools that name the same group and shard would overwrite each other's sizes.
                message = f"{name} belongs to another pool, or is still being deleted"
                self._events.note(pool, "GroupTaken", message, warning=True)
                raise errors.ConflictError(message) from None

    async def _update_shard_group(self, group: Object, wanted: Object) -> None:
        if resources.is_being_deleted(group):
            return
        spec = {key: wanted.get(key) for key in {*wanted, *_COPIED, "nodeVars"}}
        change = resources.merge_patch(resources.spec(group), spec)
        if "size" in change:
            await resources.patch_unchanged(self._kube, kinds.NSTANCE_SHARD_GROUP, group, {}, change)
        elif change:
            await self._patch_spec(kinds.NSTANCE_SHARD_GROUP, group, change)

    async def _finalize(self, pool: Object, owned: list[Object]) -> float | None:
        """Deletes the shard groups first, then the pool."""
        if not resources.has_finalizer(pool) or ORPHAN_FINALIZER in pool["metadata"]["finalizers"]:
            return None
        # The mirror may lag behind a group that was just created, or taken from the pool, so the API server is asked.
        remaining = await self._list_owned(pool)
        for group in remaining:
            await self._delete(kinds.NSTANCE_SHARD_GROUP, group)
        if remaining:
            shards = ", ".join(sorted(str(resources.spec(each).get("shard")) for each in remaining))
            deleting = Condition("Ready", False, "Deleting", f"not confirmed by {shards}")
            await self._write_status(kinds.NSTANCE_MACHINE_POOL, pool, {}, [deleting])
            return None if owned else STALE_MIRROR_SECONDS
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
        return None

    async def _update_status(
        self, pool: Object, machine_pool: Object | None, owned: list[Object], problem: str
    ) -> None:
        limit = None if problem or machine_pool is None else limit_of(pool, self._shards)
        status, ready = summarize(pool, machine_pool, owned, problem=problem, limit=limit)
        if ready.reason == LIMIT_REACHED != resources.condition(pool, "Ready").get("reason"):
            self._events.note(pool, LIMIT_REACHED, ready.message, warning=True)
        status |= node_fields(pool, self._shards) | {"instances": shown_instances(pool, self._shards)}
        ids = sorted(id for each in owned for id in resources.status(each).get("providerIDs") or ())
        await self._write_status(kinds.NSTANCE_MACHINE_POOL, pool, status, [ready, *sync_conditions(owned)])
        if ids != (resources.spec(pool).get("providerIDList") or []):
            await self._patch_spec(kinds.NSTANCE_MACHINE_POOL, pool, {"providerIDList": ids})
        if machine_pool is not None:
            if hints := node_settings.autoscaler_hints(machine_pool, node_settings.settings_of(pool)):
                change = {"metadata": {"annotations": hints}}
                name = resources.name(machine_pool)
                await self._kube.patch(kinds.MACHINE_POOL, name, change, namespace=self._namespace)
            if is_scaled_elsewhere(machine_pool):
                await self._show_replicas(machine_pool, owned)
            if not self._has_cluster_api_controllers(machine_pool):
                await self._stand_in(machine_pool, status, ids)

    async def _show_replicas(self, machine_pool: Object, owned: list[Object]) -> None:
        """Writes what the shards have, where something else than Kubernetes scales them."""
        configs = [resources.status(each).get("config") for each in owned]
        if not configs or not all(configs):
            return  # a sum over some shards would be wrong
        replicas = sum(config.get("size", 0) for config in configs if config)
        if replicas != resources.spec(machine_pool).get("replicas"):
            await self._patch_spec(kinds.MACHINE_POOL, machine_pool, {"replicas": replicas})

    async def _stand_in(self, machine_pool: Object, status: Object, ids: list[str]) -> None:
        """Writes what Cluster API's own controller writes where it runs."""
        if ids != (resources.spec(machine_pool).get("providerIDList") or []):
            await self._patch_spec(kinds.MACHINE_POOL, machine_pool, {"providerIDList": ids})
        nodes = (self._nodes.find("", id) for id in ids)
        shown = {key: status[key] for key in ("replicas", "readyReplicas")}
        shown["nodeRefs"] = [node_reference(each) for each in nodes if each is not None]
        await resources.write_status(self._kube, kinds.MACHINE_POOL, machine_pool, shown)


def _size(group: Object) -> int | None:
    found: int | None = resources.spec(group).get("size")
    return found
