"""A Cluster of our ClusterClass, as clusterctl's flavor `topology` generates it, made by Cluster API's own controllers."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from component.cluster_api_world import NEEDS_CLUSTER_API, together
from component.operator_world import REAL, Cluster
from component.packaging.rendering import substitute
from component.test_operator_cluster_api import NAME, condition, whole
from nstance.kube import kinds
from nstance.kube.port import Object
from support import real_kube

pytestmark = NEEDS_CLUSTER_API

TEMPLATES = Path(__file__).parents[2] / "deploy" / "clusterctl"
FILES = ("clusterclass-nstance.yaml", "cluster-template-topology.yaml")
POOL = "nstance-workers"
VARIABLES = {
    "CLUSTER_NAME": NAME,
    "KUBERNETES_VERSION": f"v{real_kube.KUBERNETES}",
    "NSTANCE_SHARD_NAMES": "[zone-a, zone-b]",
    "NSTANCE_TEMPLATE": "web",
    "WORKER_MACHINE_COUNT": "2",
}


async def kubectl(cluster: Cluster, *arguments: str, given: str = "") -> None:
    words = (*arguments, "-n", cluster.namespace)
    await asyncio.to_thread(real_kube.kubectl, Path(os.environ[REAL]), *words, given=given)


async def apply(cluster: Cluster) -> None:
    for file in FILES:
        await kubectl(cluster, "apply", "-f", "-", given=substitute((TEMPLATES / file).read_text(), VARIABLES))


async def test_a_cluster_of_the_class_gets_its_instances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Applied before the operator starts: it would create a Cluster of that name without a topology."""
    groups: dict[str, dict[str, int]] = {"zone-a": {}, "zone-b": {}}
    async with together(tmp_path, caplog, groups, alone=apply_nothing, feature_gates="ClusterTopology=true") as cluster:
        await apply(cluster)
        await cluster.start()
        await cluster.until(whole(cluster, POOL, 2))
        assert [len(cluster.running(shard, "workers")) for shard in groups] == [1, 1]

        async def available() -> Object | None:
            found = await cluster.get(kinds.CLUSTER, NAME)
            wanted = ("Available", "TopologyReconciled", "ControlPlaneAvailable", "InfrastructureReady")
            return found if found is not None and all(condition(found, each) == "True" for each in wanted) else None

        await cluster.until(available)
        path = "/spec/topology/workers/machinePools/0/replicas"
        change = json.dumps([{"op": "replace", "path": path, "value": 3}])
        await kubectl(cluster, "patch", "cluster", NAME, "--type=json", "-p", change)
        await cluster.until(whole(cluster, POOL, 3))
        await cluster.kube.delete(kinds.CLUSTER, NAME, namespace=cluster.namespace)

        async def is_gone() -> bool:
            return await cluster.get(kinds.CLUSTER, NAME) is None

        await cluster.until(is_gone)
        assert not any(cluster.running(shard, "workers") for shard in groups)


async def apply_nothing(cluster: Cluster) -> None:
    """Cluster API's controllers start before the operator."""
