"""Imports groups that shards have and Kubernetes does not know yet, as pools of their current size.

It happens once at startup, and again for a shard that is added later. All shards must have answered first: a sum over some
of them would ask to delete the rest. Existing pools are never changed, because from then on Kubernetes is the source of
truth. So a pool that was deleted on purpose does not come back while the operator runs.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


def pool_name(group: str) -> str:
    return f"nstance-{group}"


def machine_pool_manifest(group: str, replicas: int, *, cluster: str) -> Object:
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE_POOL.name, "name": pool_name(group)}
    # Nstance provides the userdata itself; Cluster API requires an explicit "no bootstrap data".
    inner = {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    return resources.manifest(
        kinds.MACHINE_POOL,
        {"name": pool_name(group), "labels": {resources.CLUSTER_LABEL: cluster}},
        {"clusterName": cluster, "replicas": replicas, "template": {"spec": inner}},
    )


def nstance_machine_pool_manifest(
    group: str, found: Mapping[str, pb.GroupStatus], *, cluster: str, owner: Object
) -> Object:
    """Of a static group only the fields that the API may change; the others belong to the configuration."""
    first = next(iter(found.values()))
    spec: Object = {"group": group, "shards": list(found)}
    if not first.static:
        spec |= {"template": first.template, "subnetPool": first.subnet_pool}
    spec |= {"instanceType": first.config.instance_type, "vars": dict(first.config.vars)}
    metadata = {
        "name": pool_name(group),
        "labels": {resources.CLUSTER_LABEL: cluster},
        "ownerReferences": [resources.owner_reference(owner, kinds.MACHINE_POOL)],
    }
    return resources.manifest(
        kinds.NSTANCE_MACHINE_POOL, metadata, {key: value for key, value in spec.items() if value}
    )


def groups_to_import(
    shards: Mapping[str, Mapping[str, pb.GroupStatus]], new_shards: Iterable[str], known: Iterable[str]
) -> dict[str, dict[str, pb.GroupStatus]]:
    """Groups of a new shard that no pool names, each with its status on every shard that has it."""
    names = {group for shard in new_shards for group in shards[shard]} - set(known)
    return {
        group: {shard: groups[group] for shard, groups in shards.items() if group in groups} for group in sorted(names)
    }


class Importer(Controller):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._machine_pools, self._pools = map(self._mirror, (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL))
        self._imported: set[str] = set()  # shards
        self._changed = asyncio.Event()

    def on_shard_change(self, shard: str) -> None:
        self._changed.set()

    async def run(self) -> None:
        for mirror in (self._machine_pools, self._pools):
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
        shards = {name: self._shards.get(name) for name in self._shards.names()}
        self._imported &= shards.keys()
        new_shards = shards.keys() - self._imported
        if not new_shards:
            return
        if unsynced := [name for name, shard in shards.items() if shard is None or not shard.synced]:
            log.info("group import waits for shards", extra={"shards": ", ".join(unsynced)})
            return
        groups = {name: shard.groups for name, shard in shards.items() if shard is not None}
        known = {resources.spec(pool).get("group", "") for pool in self._pools.objects.values()}
        for group, found in groups_to_import(groups, new_shards, known).items():
            await self._create_pool(group, found)
        self._imported |= new_shards

    async def _create_pool(self, group: str, found: Mapping[str, pb.GroupStatus]) -> None:
        cluster = self._context.settings.name
        replicas = sum(status.size for status in found.values())
        owner = await self._create_or_get(kinds.MACHINE_POOL, machine_pool_manifest(group, replicas, cluster=cluster))
        body = nstance_machine_pool_manifest(group, found, cluster=cluster, owner=owner)
        pool = await self._create_or_get(kinds.NSTANCE_MACHINE_POOL, body)
        self._events.note(pool, "Imported", f"{replicas} replicas on {', '.join(found)}")
        log.info("group imported", extra={"group": group, "replicas": replicas, "shards": ", ".join(found)})

    async def _create_or_get(self, kind: kinds.Kind, body: Object) -> Object:
        try:
            return await self._kube.create(kind, body, namespace=self._namespace)
        except errors.AlreadyExistsError:
            return await self._kube.get(kind, resources.name(body), namespace=self._namespace)
