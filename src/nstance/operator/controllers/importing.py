"""Groups that shards have and Kubernetes does not know yet become pools, with their size already set.

Once, when the operator starts, and again for a shard that is added later. All shards must have answered first: a sum over
some of them would be a wish to delete the rest. What exists is never changed: from then on Kubernetes is the truth. So
a pool that was deleted on purpose does not come back while the operator runs.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.shards.null_listener import NullListener
from nstance.v1 import operator_pb2 as pb

log = logging.getLogger(__name__)

RETRY = 5.0


def pool_name(group: str) -> str:
    return f"nstance-{group}"


def machine_pool_manifest(group: str, replicas: int, *, cluster: str) -> Object:
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE_POOL.name, "name": pool_name(group)}
    # Instances boot by Nstance's own userdata; Cluster API wants to be told that nobody else provides any.
    inner = {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    return {
        "apiVersion": kinds.MACHINE_POOL.api_version,
        "kind": kinds.MACHINE_POOL.name,
        "metadata": {"name": pool_name(group), "labels": {resources.CLUSTER_LABEL: cluster}},
        "spec": {"clusterName": cluster, "replicas": replicas, "template": {"spec": inner}},
    }


def nstance_machine_pool_manifest(
    group: str, found: Mapping[str, pb.GroupStatus], *, cluster: str, owner: Object
) -> Object:
    """Our half of the pair. Of a static group only what the API may change is said; the rest is the configuration's."""
    first = next(iter(found.values()))
    told: Object = {"group": group, "shards": list(found)}
    if not first.static:
        told |= {"template": first.template, "subnetPool": first.subnet_pool}
    told |= {"instanceType": first.config.instance_type, "vars": dict(first.config.vars)}
    return {
        "apiVersion": kinds.NSTANCE_MACHINE_POOL.api_version,
        "kind": kinds.NSTANCE_MACHINE_POOL.name,
        "metadata": {
            "name": pool_name(group),
            "labels": {resources.CLUSTER_LABEL: cluster},
            "ownerReferences": [resources.owner_reference(owner, kinds.MACHINE_POOL)],
        },
        "spec": {key: value for key, value in told.items() if value},
    }


def groups_to_import(
    shards: Mapping[str, Mapping[str, pb.GroupStatus]], fresh: Iterable[str], known: Iterable[str]
) -> dict[str, dict[str, pb.GroupStatus]]:
    """Groups that a fresh shard has and no pool names, each with its status on every shard that has it."""
    names = {group for shard in fresh for group in shards[shard]} - set(known)
    return {
        group: {shard: groups[group] for shard, groups in shards.items() if group in groups} for group in sorted(names)
    }


class Importer(NullListener):
    def __init__(self, parts: ControllerContext) -> None:
        self._parts = parts
        self._kube, self._shards, self._events = parts.kube, parts.shards, parts.events
        self._namespace = parts.settings.namespace
        self._machine_pools, self._pools = (
            parts.mirrors.of(kind, namespace=self._namespace)
            for kind in (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL)
        )
        self._imported: set[str] = set()
        self._news = asyncio.Event()

    def shard_changed(self, shard: str) -> None:
        self._news.set()

    async def run(self) -> None:
        for mirror in (self._machine_pools, self._pools):
            await mirror.synced.wait()
        self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._import()
            except errors.KubeError as problem:
                log.warning("groups could not be imported yet", extra={"reason": str(problem)})
                self._news.set()
                await self._parts.clock.sleep(RETRY)

    async def _import(self) -> None:
        links = {name: self._shards.get(name) for name in self._shards.names()}
        self._imported &= links.keys()
        fresh = links.keys() - self._imported
        silent = [name for name, link in links.items() if link is None or not link.synced]
        if not fresh:
            return
        if silent:
            log.info("new groups wait until all shards have answered", extra={"silent": ", ".join(silent)})
            return
        groups = {name: link.groups for name, link in links.items() if link is not None}
        known = {resources.spec(pool).get("group", "") for pool in self._pools.objects.values()}
        for group, found in groups_to_import(groups, fresh, known).items():
            await self._make(group, found)
        self._imported |= fresh

    async def _make(self, group: str, found: Mapping[str, pb.GroupStatus]) -> None:
        cluster = self._parts.settings.name
        replicas = sum(status.size for status in found.values())
        owner = await self._created(kinds.MACHINE_POOL, machine_pool_manifest(group, replicas, cluster=cluster))
        pool = nstance_machine_pool_manifest(group, found, cluster=cluster, owner=owner)
        self._events.note(
            await self._created(kinds.NSTANCE_MACHINE_POOL, pool),
            "Imported",
            f"{replicas} replicas on {', '.join(found)}",
        )
        log.info("a group was imported", extra={"group": group, "replicas": replicas, "shards": ", ".join(found)})

    async def _created(self, kind: kinds.Kind, body: Object) -> Object:
        try:
            return await self._kube.create(kind, body, namespace=self._namespace)
        except errors.AlreadyExistsError:
            return await self._kube.get(kind, resources.name(body), namespace=self._namespace)
