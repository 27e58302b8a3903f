"""Divides a pool's replicas over its shards, and adds up what the shards report.

MachinePool (Cluster API's, with the replicas) and NstanceMachinePool (ours, with group and shards) are a pair, joined by
infrastructureRef. Each shard's share is an NstanceShardGroup, which the next controller brings to the shard. The trap: a
pool without its MachinePool has no replicas, which is not zero replicas, so sizes stay as they are. The same holds for a
malformed pair: a typo must not delete every instance.
"""

from collections.abc import Callable, Iterable, Sequence

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.resources import Condition
from nstance.operator.shards.ports import Shards

POOL_LABEL = "nstance.dev/machinepool"  # for people's selectors; ownerReferences say who owns a shard group
MAX_LABEL_LENGTH = 63  # of a value; names may be longer
ORPHAN_FINALIZER = "orphan"  # of `kubectl delete --cascade=orphan`: dependents are being taken from their owner
STALE_MIRROR_SECONDS = 0.1
_COPIED = ("template", "instanceType", "subnetPool", "vars")


def spread(replicas: int, shards: Iterable[str]) -> dict[str, int]:
    """Evenly; the first shards get one more if it does not divide."""
    distinct = list(dict.fromkeys(shards))
    if not distinct:
        return {}
    share, rest = divmod(replicas, len(distinct))
    return {shard: share + (number < rest) for number, shard in enumerate(distinct)}


def shard_group_name(group: str, shard: str) -> str:
    return f"{group}--{shard}"


def pool_of(group: Object) -> str:
    """The name of the pool that a shard group belongs to."""
    owners = group["metadata"].get("ownerReferences") or []
    return next((each["name"] for each in owners if each.get("kind") == kinds.NSTANCE_MACHINE_POOL.name), "")


def shard_group_specs(pool: Object, machine_pool: Object) -> dict[str, Object]:
    """The specs of the pool's shard groups, by name."""
    spec = resources.spec(pool)
    replicas = resources.spec(machine_pool).get("replicas")
    sizes = spread(replicas or 0, spec.get("shards") or ())
    copied = {key: spec[key] for key in _COPIED if key in spec}
    return {
        shard_group_name(spec["group"], shard): {"group": spec["group"], "shard": shard, **copied}
        | ({} if replicas is None else {"size": size})
        for shard, size in sizes.items()
    }


def find_problem(pool: Object, machine_pool: Object) -> str:
    """Why this pair cannot be used; empty if it can. The CRDs' schemas reject most of it where they are installed."""
    spec = resources.spec(pool)
    shards, replicas = spec.get("shards"), resources.spec(machine_pool).get("replicas")
    texts = ("template", "instanceType", "subnetPool")
    if problem := resources.find_malformed_field(spec, required=("group",), texts=texts):
        return problem
    if not isinstance(shards, list) or not shards or not all(isinstance(each, str) for each in shards):
        return f"spec.shards: expected names of shards, at least one, found {shards!r}"
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


def summarize(
    pool: Object, machine_pool: Object | None, groups: Sequence[Object], *, problem: str = ""
) -> tuple[Object, Condition]:
    """The pool's status (without conditions) and its Ready condition. `problem`: why the spec was not applied."""
    statuses = [resources.status(each) for each in groups]
    replicas = sum(status.get("replicas", 0) for status in statuses)
    ready = sum(status.get("readyReplicas", 0) for status in statuses)
    unreachable = [
        resources.spec(each)["shard"]
        for each in groups
        if resources.condition(each, "ShardReachable").get("status") != "True"
    ]
    # Cluster API reads this once, to go on; it must not become false again. For pools it reads `ready` instead, and
    # follows neither replicas nor nodes while that is false. Whether all replicas are ready is in the condition.
    was_provisioned = bool(resources.status(pool).get("initialization", {}).get("provisioned"))
    is_provisioned = was_provisioned or (machine_pool is not None and bool(groups) and not unreachable and not problem)
    status: Object = {
        "replicas": replicas,
        "readyReplicas": ready,
        "isStatic": any(each.get("isStatic", False) for each in statuses),
        "observedGeneration": resources.generation(pool),
        "ready": is_provisioned,
    }
    if is_provisioned:
        status["initialization"] = {"provisioned": True}
    wanted = resources.spec(machine_pool or {}).get("replicas") or 0
    if machine_pool is None:
        reason, message = "NoMachinePool", "no MachinePool has this pool as its infrastructureRef"
    elif problem:
        reason, message = "ConfigInvalid", problem
    elif rejected := _by_shard(groups, "ConfigValid", lambda each: each["status"] == "False"):
        reason, message = "ConfigInvalid", rejected
    elif unreachable:
        reason, message = "ShardUnreachable", f"not reachable: {', '.join(unreachable)}"
    elif blocked := _by_shard(groups, "Ready", lambda each: each["reason"] == "Blocked"):
        reason, message = "Blocked", blocked
    elif not groups or replicas != wanted or ready < wanted:
        reason = "NotReady" if replicas == wanted else "Scaling"
        message = f"{ready} of {wanted} ready, {replicas} exist"
    else:
        return status, Condition("Ready", True, "AllReady", f"{ready} of {wanted} ready")
    return status, Condition("Ready", False, reason, message)


def _by_shard(groups: Sequence[Object], type: str, matches: Callable[[Object], bool]) -> str:
    """The messages of matching conditions, each with its shard."""
    found = ((resources.spec(each)["shard"], resources.condition(each, type)) for each in groups)
    texts = ((shard, each.get("message") or each["reason"]) for shard, each in found if each and matches(each))
    return "; ".join(f"{shard}: {text}" for shard, text in texts)


class Pools(Controller):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._machine_pools, self._pools, self._shard_groups = map(
            self._mirror, (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_SHARD_GROUP)
        )
        self.queue = context.queue("pools", self._reconcile)
        self._pools.listen(lambda old, new: self.queue.add(resources.name(new or old or {})))
        self._machine_pools.listen(self._on_machine_pool_change)
        self._shard_groups.listen(self._on_shard_group_change)
        self._clusters.listen(lambda old, new: self._add_all())

    async def run(self) -> None:
        await self.queue.run()

    def on_group_change(self, shard: str, group: str) -> None:
        for pool in self._pools.objects.values():
            if resources.spec(pool).get("group") == group:
                self.queue.add(resources.name(pool))

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
            return None
        if resources.is_being_deleted(pool):
            return await self._finalize(pool, owned)
        if not resources.has_finalizer(pool):
            await resources.add_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
            return None  # this change triggers the next reconcile
        if machine_pool is not None:
            await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE_POOL, pool, machine_pool, kinds.MACHINE_POOL)
            problem = find_problem(pool, machine_pool) or find_static_move(pool, owned, self._shards)
            if not problem:
                await self._divide(pool, machine_pool, {resources.name(each): each for each in owned})
            elif resources.condition(pool, "Ready").get("message") != problem:
                self._events.note(pool, "ConfigValidationFailed", problem, warning=True)
        await self._update_status(pool, machine_pool, owned, problem)
        return None

    async def _divide(self, pool: Object, machine_pool: Object, existing: dict[str, Object]) -> None:
        specs = shard_group_specs(pool, machine_pool)
        for name, spec in specs.items():
            if name not in existing:
                await self._create_shard_group(pool, name, spec)
            elif not resources.is_being_deleted(existing[name]):
                await self._update_shard_group(existing[name], spec)
        for name in existing.keys() - specs.keys():
            await self._delete(kinds.NSTANCE_SHARD_GROUP, existing[name])

    async def _create_shard_group(self, pool: Object, name: str, spec: Object) -> None:
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {POOL_LABEL: resources.name(pool)} if len(resources.name(pool)) <= MAX_LABEL_LENGTH else {},
            "ownerReferences": [resources.owner_reference(pool, kinds.NSTANCE_MACHINE_POOL, controller=True)],
            "finalizers": [resources.FINALIZER],
        }
        kind = kinds.NSTANCE_SHARD_GROUP
        try:
            await self._kube.create(kind, resources.manifest(kind, metadata, spec))
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
        spec = {key: wanted.get(key) for key in {*wanted, *_COPIED}}
        if change := resources.merge_patch(resources.spec(group), spec):
            await self._patch_spec(kinds.NSTANCE_SHARD_GROUP, group, change)

    async def _finalize(self, pool: Object, owned: list[Object]) -> float | None:
        """Deletes the shard groups first, then the pool."""
        if not resources.has_finalizer(pool) or ORPHAN_FINALIZER in pool["metadata"]["finalizers"]:
            return None
        # The mirror may lag behind a group that was just created, or taken from the pool, so the API server is asked.
        listing = await self._kube.list(kinds.NSTANCE_SHARD_GROUP, namespace=self._namespace)
        remaining = [each for each in listing.items if resources.is_owned_by(each, resources.uid(pool))]
        for group in remaining:
            await self._delete(kinds.NSTANCE_SHARD_GROUP, group)
        if remaining:
            return None if owned else STALE_MIRROR_SECONDS
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
        return None

    async def _update_status(
        self, pool: Object, machine_pool: Object | None, owned: list[Object], problem: str
    ) -> None:
        status, ready = summarize(pool, machine_pool, owned, problem=problem)
        ids = sorted(id for each in owned for id in resources.status(each).get("providerIDs") or ())
        if ids != (resources.spec(pool).get("providerIDList") or []):
            await self._patch_spec(kinds.NSTANCE_MACHINE_POOL, pool, {"providerIDList": ids})
        await self._write_status(kinds.NSTANCE_MACHINE_POOL, pool, status, [ready])
        if machine_pool is not None and not self._has_cluster_api_controllers(machine_pool):
            counts = {key: status[key] for key in ("replicas", "readyReplicas")}
            await resources.write_status(self._kube, kinds.MACHINE_POOL, machine_pool, counts)
