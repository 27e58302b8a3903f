"""Machines of pools beside Cluster API's own controllers: who creates, deletes, heals and marks them. Only `make test-kube`
has those controllers; everywhere else these are skipped.
"""

from pathlib import Path

import pytest

from component.cluster_api_world import NEEDS_CLUSTER_API, together
from component.operator_world import Cluster
from component.test_operator_cluster_api import NAME, whole
from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.machine_objects import node_annotations
from nstance.operator.options import Waits

pytestmark = NEEDS_CLUSTER_API

HEALTH_CHECK = Kind(kinds.CAPI, "v1beta2", "MachineHealthCheck", "machinehealthchecks")
POOL = "nstance-web"


async def members(cluster: Cluster) -> dict[str, Object]:
    """Machines of the pool, as Cluster API sees them: running, each with its node."""
    found = {resources.name(each): each for each in await cluster.all(kinds.MACHINE)}
    return {
        name: each
        for name, each in found.items()
        if resources.status(each).get("phase") == "Running" and "nodeRef" in each["status"]
    }


async def has_members(cluster: Cluster, names: list[str]) -> bool:
    return sorted(await members(cluster)) == sorted(names) and len(await cluster.all(kinds.MACHINE)) == len(names)


async def test_cluster_api_creates_a_machine_for_each_instance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with together(tmp_path, caplog, {"zone-a": {"web": 2}, "zone-b": {"web": 1}}) as cluster:
        await cluster.until(whole(cluster, POOL, 3))
        instances = [str(each) for shard in cluster.shards for each in cluster.running(shard, "web")]
        await cluster.until(lambda: has_members(cluster, instances))
        pool = await cluster.get(kinds.MACHINE_POOL, POOL)
        assert pool is not None
        for name, machine in (await members(cluster)).items():
            item = await cluster.get(kinds.NSTANCE_MACHINE, name)
            assert item is not None
            assert resources.is_owned_by(machine, resources.uid(pool))
            assert resources.is_owned_by(item, resources.uid(machine))
            assert machine["spec"]["providerID"] == item["spec"]["providerID"] == f"dev:///{name}"
            assert machine["status"]["nodeRef"] == {"name": name}
            assert "machine.cluster.x-k8s.io/exclude-node-draining" in resources.annotations(machine)
            node = await cluster.kube.get(
                kinds.NODE, name
            )  # where Cluster API does not run, the operator writes the same
            assert node_annotations(machine).items() <= resources.annotations(node).items()


async def test_a_deleted_or_marked_machine_is_the_one_that_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is `kubectl delete machine`, the second is what cluster-autoscaler does."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 4}}) as cluster:
        await cluster.until(whole(cluster, POOL, 4))
        first, second, *others = map(str, cluster.running("zone-a", "web"))
        await cluster.until(lambda: has_members(cluster, [first, second, *others]))
        await cluster.kube.delete(kinds.MACHINE, second, namespace=cluster.namespace)
        await cluster.until(lambda: has_members(cluster, [first, *others]))
        pool = await cluster.until(whole(cluster, POOL, 3))
        assert pool["spec"]["replicas"] == 3
        mark = {"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": "now"}}}
        await cluster.kube.patch(kinds.MACHINE, others[0], mark, namespace=cluster.namespace)
        await cluster.scale("web", 2)
        await cluster.until(lambda: has_members(cluster, [first, others[1]]))
        assert sorted(map(str, cluster.running("zone-a", "web"))) == sorted([first, others[1]])
        assert sorted(await cluster.nodes()) == sorted([first, others[1]])


async def test_a_machine_health_check_replaces_an_instance(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with together(tmp_path, caplog, {"zone-a": {"web": 2}}) as cluster:
        await cluster.until(whole(cluster, POOL, 2))
        sick, well = map(str, cluster.running("zone-a", "web"))
        await cluster.until(lambda: has_members(cluster, [sick, well]))
        condition = {"type": "Broken", "status": "True", "timeoutSeconds": 1}
        spec = {
            "clusterName": NAME,
            "selector": {"matchLabels": {resources.POOL_LABEL: POOL}},
            "checks": {"unhealthyNodeConditions": [condition], "nodeStartupTimeoutSeconds": 0},
        }
        body: Object = {"metadata": {"name": "web"}, "spec": spec}
        await cluster.kube.create(HEALTH_CHECK, body, namespace=cluster.namespace)
        node = (await cluster.nodes())[sick]
        broken = {"type": "Broken", "status": "True", "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        conditions = [*node["status"]["conditions"], broken]
        await cluster.kube.patch(kinds.NODE, sick, {"status": {"conditions": conditions}}, subresource="status")

        async def is_replaced() -> bool:
            now = await members(cluster)
            return len(now) == 2 and well in now and sick not in now

        await cluster.until(is_replaced)
        pool = await cluster.get(kinds.MACHINE_POOL, POOL)
        assert pool is not None
        assert pool["spec"]["replicas"] == 2


async def test_a_cluster_api_that_was_removed_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its phases stay on the objects. The operator writes in its place again."""

    async def wait_less(cluster: Cluster) -> None:
        cluster.waits = Waits(cluster_api_gone=5.0, cluster_api_check=0.5)

    async with together(tmp_path, caplog, {"zone-a": {"web": 1}}, alone=wait_less) as cluster:
        await cluster.start()
        await cluster.until(whole(cluster, POOL, 1))
        assert cluster.remove_cluster_api is not None
        await cluster.remove_cluster_api()
        await cluster.scale("web", 2)

        async def is_filled_in() -> bool:
            pool = await cluster.get(kinds.MACHINE_POOL, POOL)
            machines = await cluster.all(kinds.MACHINE)
            listed = resources.spec(pool or {}).get("providerIDList") or ()
            return len(listed) == 2 and len([each for each in machines if "nodeRef" in resources.status(each)]) == 2

        await cluster.until(is_filled_in)
