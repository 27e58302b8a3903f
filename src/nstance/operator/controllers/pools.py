"""A pool's replicas, divided over its shards; and what the shards say of it, added up.

MachinePool (Cluster API's, with the replicas) and NstanceMachinePool (ours, with group and shards) are a pair by
infrastructureRef. What each shard shall keep is an NstanceShardGroup; the next controller brings it to the shard. The trap:
a pool without its MachinePool has no replicas, which is not the same as zero: then sizes stay as they are. So do they where
a pair cannot be read: a slip of the pen must not be a wish to delete everything.
"""

from collections.abc import Iterable, Sequence

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.kube.queue import Queue
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.controllers.resources import Condition
from nstance.operator.controllers.spread import spread
from nstance.operator.shards.null_listener import NullListener
from nstance.operator.shards.ports import Shards

POOL_LABEL = "nstance.dev/machinepool"  # for people's selectors; who owns a shard group, its ownerReferences say
LABEL_LENGTH = 63  # of a value; names may be longer
ORPHANS = "orphan"  # finalizer of `kubectl delete --cascade=orphan`: dependents are being taken from their owner
_COPIED = ("template", "instanceType", "subnetPool", "vars")


def shard_group_name(group: str, shard: str) -> str:
    return f"{group}--{shard}"


def pool_of(group: Object) -> str:
    """The name of the pool that a shard group belongs to."""
    owners = group["metadata"].get("ownerReferences") or []
    return next((each["name"] for each in owners if each.get("kind") == kinds.NSTANCE_MACHINE_POOL.name), "")


def shard_group_specs(pool: Object, machine_pool: Object) -> dict[str, Object]:
    """The specs of the pool's shard groups, by their names."""
    told = resources.spec(pool)
    replicas = resources.spec(machine_pool).get("replicas")
    sizes = spread(replicas or 0, told.get("shards") or ())
    copied = {key: told[key] for key in _COPIED if key in told}
    return {
        shard_group_name(told["group"], shard): {"group": told["group"], "shard": shard, **copied}
        | ({} if replicas is None else {"size": size})
        for shard, size in sizes.items()
    }


def find_problem(pool: Object, machine_pool: Object) -> str:
    """Why nothing can be made of this pair; empty if it can. The schemas refuse most of it where they are applied."""
    told = resources.spec(pool)
    shards, replicas = told.get("shards"), resources.spec(machine_pool).get("replicas")
    if why := resources.find_malformed_field(
        told, required=("group",), texts=("template", "instanceType", "subnetPool")
    ):
        return why
    if not isinstance(shards, list) or not shards or not all(isinstance(each, str) for each in shards):
        return f"spec.shards: expected names of shards, at least one, found {shards!r}"
    if replicas is not None and not resources.is_size(replicas):
        return (
            f"the MachinePool's spec.replicas: expected a number, 0 or more, found {replicas!r}; sizes stay as they are"
        )
    return ""


def find_static_move(pool: Object, groups: Iterable[Object], shards: Shards) -> str:
    """Why a pool must not be spread over other shards than it is: a static group stays where its configuration has it, and
    what were left there would be nobody's. Empty: it may, or it is not asked."""
    held = [each for each in groups if not resources.is_being_deleted(each)]
    if not any(resources.status(each).get("isStatic") for each in held):
        return ""
    told = resources.spec(pool)
    here, wanted = {resources.spec(each)["shard"] for each in held}, set(told["shards"])
    # A shard that has the static group, and only here nothing says so, because somebody deleted that: it is made again.
    forgotten = {
        each
        for each in wanted - here
        if (link := shards.get(each)) is not None and (found := link.groups.get(told["group"])) and found.static
    }
    if wanted - forgotten == here:
        return ""
    there = ", ".join(sorted(here | forgotten))
    return f"the group is static, it is in the configuration of {there}: spec.shards cannot be changed here"


def summarize(
    pool: Object, machine_pool: Object | None, groups: Sequence[Object], *, problem: str = ""
) -> tuple[Object, list[Condition]]:
    """The pool's status (without its conditions) and its conditions. `problem`: why it is not divided as it says."""
    parts = [(resources.spec(each), resources.status(each)) for each in groups]
    replicas = sum(status.get("replicas", 0) for _, status in parts)
    ready = sum(status.get("readyReplicas", 0) for _, status in parts)
    told: Object = {
        "replicas": replicas,
        "readyReplicas": ready,
        "isStatic": any(status.get("isStatic", False) for _, status in parts),
        "observedGeneration": pool["metadata"].get("generation", 0),
    }
    silent = [spec["shard"] for spec, status in parts if not _holds(status, "ShardReachable")]
    # Cluster API reads this once, to go on; it must not become false again. Of pools it reads `ready` in its place, and
    # while that is false it follows neither replicas nor nodes: whether all are there, the condition says.
    before = bool(resources.status(pool).get("initialization", {}).get("provisioned"))
    told["ready"] = before or (machine_pool is not None and bool(parts) and not silent and not problem)
    if told["ready"]:
        told["initialization"] = {"provisioned": True}
    if machine_pool is None:
        return told, [
            Condition("Ready", False, "NoMachinePool", "no MachinePool names this pool as its infrastructure")
        ]
    if problem:
        return told, [Condition("Ready", False, "ConfigInvalid", problem)]
    invalid = [f"{spec['shard']}: {why}" for spec, status in parts if (why := _refusal(status))]
    wished = resources.spec(machine_pool).get("replicas") or 0
    whole = bool(parts) and not silent and not invalid and ready >= wished and replicas == wished
    if invalid:
        return told, [Condition("Ready", False, "ConfigInvalid", "; ".join(invalid))]
    if silent:
        return told, [Condition("Ready", False, "ShardUnreachable", f"not reachable: {', '.join(silent)}")]
    if blocked := [f"{spec['shard']}: {why}" for spec, status in parts if (why := _blocked(status))]:
        return told, [Condition("Ready", False, "Blocked", "; ".join(blocked))]
    if not whole:
        reason = "Scaling" if replicas != wished else "NotReady"
        return told, [Condition("Ready", False, reason, f"{ready} of {wished} ready, {replicas} there")]
    return told, [Condition("Ready", True, "AllReady", f"{ready} of {wished} ready")]


def _holds(status: Object, condition: str) -> bool:
    return any(each["type"] == condition and each["status"] == "True" for each in status.get("conditions", ()))


def _blocked(status: Object) -> str:
    """Why instances cannot be made there, or their files not be rendered."""
    said = (each for each in status.get("conditions", ()) if each["type"] == "Ready" and each["reason"] == "Blocked")
    return next((each.get("message", "") for each in said), "")


def _refusal(status: Object) -> str:
    """Why the shard does not take the spec."""
    said = (
        each for each in status.get("conditions", ()) if each["type"] == "ConfigValid" and each["status"] == "False"
    )
    return next((each["message"] or each["reason"] for each in said), "")


def _says(pool: Object, problem: str) -> bool:
    return any(each.get("message") == problem for each in resources.status(pool).get("conditions", ()))


class Pools(NullListener):
    def __init__(self, parts: ControllerContext) -> None:
        self._kube, self._clock, self._shards, self._events = parts.kube, parts.clock, parts.shards, parts.events
        self._namespace = parts.settings.namespace
        self._cluster = (self._namespace, parts.settings.name)
        self._clusters, self._machine_pools, self._pools, self._shard_groups = (
            parts.mirrors.of(kind, namespace=self._namespace)
            for kind in (kinds.CLUSTER, kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_SHARD_GROUP)
        )
        self.queue = Queue("pools", self._reconcile, clock=parts.clock, rng=parts.rng, report=parts.report)
        self._pools.listen(lambda old, new: self._add(new or old))
        self._machine_pools.listen(self._machine_pool_changed)
        self._shard_groups.listen(self._shard_group_changed)
        self._clusters.listen(lambda old, new: self._add_all())

    async def run(self) -> None:
        await self.queue.run()

    def group_changed(self, shard: str, group: str) -> None:
        for pool in self._pools.objects.values():
            if resources.spec(pool).get("group") == group:
                self._add(pool)

    def _add(self, pool: Object | None) -> None:
        if pool is not None:
            self.queue.add(resources.name(pool))

    def _add_all(self) -> None:
        for pool in self._pools.objects.values():
            self._add(pool)

    def _machine_pool_changed(self, old: Object | None, new: Object | None) -> None:
        for each in (old, new):
            if each is not None:
                self.queue.add(str(resources.infrastructure(each).get("name", "")))

    def _shard_group_changed(self, old: Object | None, new: Object | None) -> None:
        for each in (old, new):
            if each is not None and (pool := pool_of(each)):
                self.queue.add(pool)

    async def _reconcile(self, name: str) -> float | None:
        pool = self._pools.objects.get((self._namespace, name))
        if pool is None:
            return None
        owned = [
            each for each in self._shard_groups.objects.values() if resources.is_owned_by(each, resources.uid(pool))
        ]
        machine_pool = resources.find_by_infrastructure(
            self._machine_pools.objects.values(), kinds.NSTANCE_MACHINE_POOL, name
        )
        problem = ""
        if resources.is_paused(self._clusters.objects.get(self._cluster), pool, machine_pool):
            return None
        if resources.is_being_deleted(pool):
            return await self._leave(pool, owned)
        if not resources.has_finalizer(pool):
            await resources.add_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
            return None  # the change comes back, and with it the next look
        if machine_pool is not None:
            await resources.add_owner(self._kube, kinds.NSTANCE_MACHINE_POOL, pool, machine_pool, kinds.MACHINE_POOL)
            problem = find_problem(pool, machine_pool) or find_static_move(pool, owned, self._shards)
            if not problem:
                await self._divide(pool, machine_pool, {resources.name(each): each for each in owned})
            elif not _says(pool, problem):
                self._events.note(pool, "ConfigValidationFailed", problem, warning=True)
        await self._tell(pool, machine_pool, owned, problem)
        return None

    async def _divide(self, pool: Object, machine_pool: Object, held: dict[str, Object]) -> None:
        wanted = shard_group_specs(pool, machine_pool)
        for name, spec in wanted.items():
            if name not in held:
                await self._make(pool, name, spec)
            elif not resources.is_being_deleted(held[name]):
                await self._change(held[name], spec)
        for name in held.keys() - wanted.keys():
            if not resources.is_being_deleted(held[name]):
                await self._kube.delete(kinds.NSTANCE_SHARD_GROUP, name, namespace=self._namespace)

    async def _make(self, pool: Object, name: str, spec: Object) -> None:
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {POOL_LABEL: resources.name(pool)} if len(resources.name(pool)) <= LABEL_LENGTH else {},
            "ownerReferences": [resources.owner_reference(pool, kinds.NSTANCE_MACHINE_POOL, controller=True)],
            "finalizers": [resources.FINALIZER],
        }
        kind = kinds.NSTANCE_SHARD_GROUP
        body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}
        try:
            await self._kube.create(kind, body)
        except errors.AlreadyExistsError:
            found = await self._kube.get(kind, name, namespace=self._namespace)
            if not found["metadata"].get("ownerReferences") and not resources.is_being_deleted(found):
                # Orphaned on purpose, or made by hand: it is this pool's from now on.
                kept = {key: metadata[key] for key in ("labels", "ownerReferences")}
                kept["resourceVersion"] = found["metadata"]["resourceVersion"]
                await self._kube.patch(kind, name, {"metadata": kept}, namespace=self._namespace)
            elif not resources.is_owned_by(found, resources.uid(pool)):
                # Two pools that name the same group and shard would pull it to and fro.
                why = f"{name} belongs to another pool, or has not gone yet"
                self._events.note(pool, "GroupTaken", why, warning=True)
                raise errors.ConflictError(why) from None

    async def _change(self, group: Object, wanted: Object) -> None:
        keys = {*wanted, *_COPIED}
        change = resources.merge_patch(resources.spec(group), {key: wanted.get(key) for key in keys})
        if change:
            await self._kube.patch(
                kinds.NSTANCE_SHARD_GROUP, resources.name(group), {"spec": change}, namespace=self._namespace
            )

    async def _leave(self, pool: Object, owned: list[Object]) -> float | None:
        """The shards let go first; only then the pool does."""
        if not resources.has_finalizer(pool) or ORPHANS in pool["metadata"]["finalizers"]:
            return None
        # The mirror may lag behind a group that was made a moment ago, or taken from the pool: the server is asked.
        listing = await self._kube.list(kinds.NSTANCE_SHARD_GROUP, namespace=self._namespace)
        left = [each for each in listing.items if resources.is_owned_by(each, resources.uid(pool))]
        for group in left:
            if not resources.is_being_deleted(group):
                await self._kube.delete(kinds.NSTANCE_SHARD_GROUP, resources.name(group), namespace=self._namespace)
        if left:
            return None if owned else 0.1
        await resources.remove_finalizer(self._kube, kinds.NSTANCE_MACHINE_POOL, pool)
        return None

    async def _tell(self, pool: Object, machine_pool: Object | None, owned: list[Object], problem: str) -> None:
        told, conditions = summarize(pool, machine_pool, owned, problem=problem)
        told["conditions"] = resources.merge_conditions(
            resources.status(pool).get("conditions"),
            conditions,
            generation=pool["metadata"].get("generation", 0),
            now=self._clock.wall(),
        )
        ids = sorted(id for each in owned for id in resources.status(each).get("providerIDs") or ())
        if ids != (resources.spec(pool).get("providerIDList") or []):
            await self._kube.patch(
                kinds.NSTANCE_MACHINE_POOL,
                resources.name(pool),
                {"spec": {"providerIDList": ids}},
                namespace=self._namespace,
            )
        await resources.write_status(self._kube, kinds.NSTANCE_MACHINE_POOL, pool, told)
        if machine_pool is not None and not resources.has_cluster_api_controllers(
            machine_pool, self._clusters.objects.get(self._cluster)
        ):  # else Cluster API's own controller writes this
            counts = {key: told[key] for key in ("replicas", "readyReplicas")}
            await resources.write_status(self._kube, kinds.MACHINE_POOL, machine_pool, counts)
