"""Imports groups that shards have and Kubernetes does not know yet, as pools of their current size.

It happens once at startup, and again for a shard that is added later. All shards must have answered first: a sum over some
of them would ask to delete the rest. Importing changes nothing at any shard: each keeps its size (`spec.shardSizes`), and
shards whose settings of a group differ get a pool each. Existing pools are never changed, because from then on Kubernetes
is the source of truth. So a pool that was deleted on purpose does not come back while the operator runs, and without a
Cluster nothing is imported: it was deleted with all its pools.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nstance.kube import errors, kinds
from nstance.kube.port import Object, create_or_get
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PoolImport:
    """A pool to create: a group with its status on the shards that have it with the same settings."""

    name: str
    group: str
    found: Mapping[str, pb.GroupStatus]

    @property
    def replicas(self) -> int:
        return sum(each.size for each in self.found.values())


def pool_name(group: str) -> str:
    return f"nstance-{group}"


def machine_pool_manifest(wanted: PoolImport, *, cluster: str) -> Object:
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE_POOL.name, "name": wanted.name}
    # Nstance provides the userdata itself; Cluster API requires an explicit "no bootstrap data".
    inner = {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    return resources.manifest(
        kinds.MACHINE_POOL,
        {"name": wanted.name, "labels": {resources.CLUSTER_LABEL: cluster}},
        {"clusterName": cluster, "replicas": wanted.replicas, "template": {"spec": inner}},
    )


def nstance_machine_pool_manifest(wanted: PoolImport, *, cluster: str, owner: Object) -> Object:
    spec: Object = {
        "group": wanted.group,
        "shards": list(wanted.found),
        "shardSizes": {shard: each.size for shard, each in wanted.found.items()},
        **_settings(next(iter(wanted.found.values()))),
    }
    metadata = {
        "name": wanted.name,
        "labels": {resources.CLUSTER_LABEL: cluster},
        "ownerReferences": [resources.owner_reference(owner, kinds.MACHINE_POOL)],
    }
    return resources.manifest(kinds.NSTANCE_MACHINE_POOL, metadata, spec)


def _settings(found: pb.GroupStatus) -> Object:
    """What of a group goes into a pool. Of a static one only what the API has set; the rest belongs to the configuration."""
    settings: Object = {"instanceType": found.config.instance_type, "vars": dict(found.config.vars)}
    if not found.static:
        settings |= {"template": found.template, "subnetPool": found.config.subnet_pool}
    return {key: value for key, value in settings.items() if value}


def _identity(found: pb.GroupStatus) -> Object:
    """What shards of one pool have in common. The template of this name may have another instance type in each shard, as
    on several clouds. Vars that only a configuration file sets may differ, too, and often name the zone."""
    chosen = {"static": found.static, "template": found.template, "instanceType": found.own_instance_type}
    return chosen | {"set": _settings(found)}


def pools_to_import(
    shards: Mapping[str, Mapping[str, pb.GroupStatus]],
    new_shards: Iterable[str],
    *,
    known: Collection[tuple[str, str]],
    taken: Iterable[str] = (),
) -> list[PoolImport]:
    """The pools for groups of a new shard. `known`: group and shard that have a pool. `taken`: names of pools."""
    names = set(taken)
    pools = []
    for group in sorted({group for shard in new_shards for group in shards[shard] if (group, shard) not in known}):
        alike: list[tuple[Object, dict[str, pb.GroupStatus]]] = []
        for shard, groups in shards.items():
            if group not in groups or (group, shard) in known:
                continue
            settings = _identity(groups[group])
            same = next((found for other, found in alike if other == settings), None)
            if same is None:
                alike.append((settings, same := {}))
            same[shard] = groups[group]
        for _, found in alike:
            name = pool_name(group)
            name = name if name not in names else f"{name}-{next(iter(found))}"
            names.add(name)
            pools.append(PoolImport(name, group, found))
    return pools


class Importer(Controller):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._machine_pools, self._pools = map(self._mirror, (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL))
        self._imported: set[str] = set()  # shards
        self._changed = asyncio.Event()
        self._clusters.listen(self._on_cluster_change)

    def _on_cluster_change(self, old: Object | None, new: Object | None) -> None:
        if resources.name(new or old or {}) != self._context.settings.name:
            return
        if new is None:
            self._imported.clear()
        self._changed.set()

    def on_shard_change(self, shard: str) -> None:
        self._changed.set()

    async def run(self) -> None:
        for mirror in (self._machine_pools, self._pools, self._clusters):
            await mirror.synced.wait()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._import()
            except errors.KubeError as problem:
                log.warning("failed to import groups, retrying", extra={"reason": str(problem)})
                self._changed.set()
                await self._clock.sleep(RETRY_SECONDS)

    async def _import(self) -> None:
        cluster = self._cluster()
        if cluster is None or resources.is_being_deleted(cluster):
            return  # its creation triggers the next attempt
        shards = {name: self._shards.get(name) for name in self._shards.names()}
        self._imported &= shards.keys()
        new_shards = shards.keys() - self._imported
        if not new_shards:
            return
        if unsynced := [name for name, shard in shards.items() if shard is None or not shard.synced]:
            log.info("group import waits for shards", extra={"shards": ", ".join(unsynced)})
            return
        groups = {name: shard.groups for name, shard in shards.items() if shard is not None}
        known, taken = set(), []
        for pool in self._pools.objects.values():
            spec = resources.spec(pool)
            known |= {(str(spec.get("group")), str(shard)) for shard in spec.get("shards") or ()}
            taken.append(resources.name(pool))
        for wanted in pools_to_import(groups, new_shards, known=known, taken=taken):
            await self._create_pool(wanted)
        self._imported |= new_shards

    async def _create_pool(self, wanted: PoolImport) -> None:
        cluster = self._context.settings.name
        owner = await create_or_get(
            self._kube, kinds.MACHINE_POOL, machine_pool_manifest(wanted, cluster=cluster), namespace=self._namespace
        )
        body = nstance_machine_pool_manifest(wanted, cluster=cluster, owner=owner)
        pool = await create_or_get(self._kube, kinds.NSTANCE_MACHINE_POOL, body, namespace=self._namespace)
        shards = ", ".join(wanted.found)
        self._events.note(pool, "Imported", f"{wanted.replicas} replicas on {shards}")
        if wanted.name != pool_name(wanted.group):
            message = f"the group {wanted.group} has other settings on {shards} than elsewhere: it is a pool of its own"
            self._events.note(pool, "ImportedApart", message)
        log.info("group imported", extra={"group": wanted.group, "replicas": wanted.replicas, "shards": shards})
