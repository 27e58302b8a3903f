"""What the operator leaves to Cluster API's controllers where they run: here a test says what they would."""

import re
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.options import Waits

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

NAME = "demo--default"
THEIRS = "cluster.cluster.x-k8s.io"


async def test_an_nstance_cluster_that_something_else_manages_is_left_alone(tmp_path: Path, kubernetes: str) -> None:
    """Its pools are synced all the same."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}, start=False) as cluster:
        metadata = {"name": NAME, "annotations": {"cluster.x-k8s.io/managed-by": "somebody"}}
        body = {"metadata": metadata, "spec": {"controlPlaneEndpoint": {"host": "theirs", "port": 1}}}
        made = await cluster.kube.create(kinds.NSTANCE_CLUSTER, body, namespace=cluster.namespace)
        await cluster.start()
        await cluster.scale("web", 2)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 2)

        async def is_shown() -> bool:
            pool = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            return resources.status(pool or {}).get("readyReplicas") == 2

        await cluster.until(is_shown)
        assert await cluster.get(kinds.NSTANCE_CLUSTER, NAME) == made


async def test_machines_are_theirs_once_they_have_seen_the_cluster(tmp_path: Path, kubernetes: str) -> None:
    """A phase of the Cluster says that they run: what they write into Machines is not written by two."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        found = await cluster.until(lambda: cluster.get(kinds.CLUSTER, NAME))
        await resources.write_status(cluster.kube, kinds.CLUSTER, found, {"phase": "Provisioned"})
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        item = await cluster.until(lambda: _ready(cluster))
        assert item["spec"]["providerID"] == f"dev:///{item['status']['instanceID']}"  # as its node says it
        machine = await cluster.get(kinds.MACHINE, resources.name(item))
        assert machine is not None
        assert "providerID" not in machine["spec"]
        assert "nodeRef" not in resources.status(machine)


async def _ready(cluster: Cluster) -> Object | None:
    """With a node, and the shard's view of it written last."""
    on_demand = [item for item in await cluster.all(kinds.NSTANCE_MACHINE) if "instanceID" not in item["spec"]]
    for item in on_demand:
        if resources.status(item).get("ready") and resources.spec(item).get("providerID", "").startswith("dev:"):
            return item
    return None


async def test_what_is_behind_a_leaving_cluster_is_not_made_anew(
    tmp_path: Path, kubernetes: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        first = await cluster.until(lambda: cluster.get(kinds.CLUSTER, NAME))
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_CLUSTER, NAME))
        await _patch(cluster, {"finalizers": [THEIRS]})
        await cluster.kube.delete(kinds.CLUSTER, NAME, namespace=cluster.namespace)
        await _two_passes(cluster)  # it knows that the Cluster is leaving
        await cluster.kube.delete(kinds.NSTANCE_CLUSTER, NAME, namespace=cluster.namespace)
        await _two_passes(cluster)
        assert await cluster.get(kinds.NSTANCE_CLUSTER, NAME) is None
        await _patch(cluster, {"finalizers": None})

        await cluster.until(lambda: "Cluster was deleted, nothing is created" in caplog.text)
        assert await cluster.get(kinds.CLUSTER, NAME) is None
        await cluster.kube.create(
            kinds.CLUSTER, {"metadata": {"name": NAME}, "spec": first["spec"]}, namespace=cluster.namespace
        )
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_CLUSTER, NAME))


async def _two_passes(cluster: Cluster) -> None:
    """The first may have begun before."""
    for _ in range(2):
        before = _passes(cluster)
        await _patch(cluster, {"annotations": {"turn": str(before)}})
        await cluster.until(lambda before=before: _passes(cluster) > before)  # type: ignore[misc]


async def test_groups_are_imported_again_into_a_cluster_that_is_created_again(
    tmp_path: Path, kubernetes: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        first = await cluster.until(lambda: cluster.get(kinds.CLUSTER, NAME))
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web"))
        await cluster.kube.delete(kinds.CLUSTER, NAME, namespace=cluster.namespace)
        await cluster.kube.delete(kinds.MACHINE_POOL, "nstance-web", namespace=cluster.namespace)  # as Cluster API does
        await cluster.until(lambda: "Cluster was deleted, nothing is created" in caplog.text)
        await cluster.until(lambda: _is_gone(cluster, kinds.NSTANCE_MACHINE_POOL, "nstance-web"))
        await cluster.stop()
        await cluster.start()  # it would import what it does not know
        assert await _is_gone(cluster, kinds.MACHINE_POOL, "nstance-web")
        body: Object = {"metadata": {"name": NAME}, "spec": first["spec"]}
        await cluster.kube.create(kinds.CLUSTER, body, namespace=cluster.namespace)
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web"))
        assert len(cluster.running("zone-a", "web")) == 1


async def _is_gone(cluster: Cluster, kind: Kind, name: str) -> bool:
    return await cluster.get(kind, name) is None


async def test_the_operator_fills_in_when_they_have_gone(tmp_path: Path, kubernetes: str) -> None:
    """Their phase stays on the Cluster. That they do not look at a changed MachinePool shows that nobody does."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, start=False) as cluster:
        cluster.waits = Waits(cluster_api_gone=2.0, cluster_api_check=0.1)
        await cluster.start()
        found = await cluster.until(lambda: cluster.get(kinds.CLUSTER, NAME))
        seen = {"phase": "Provisioned", "observedGeneration": resources.generation(found)}
        await resources.write_status(cluster.kube, kinds.CLUSTER, found, seen)
        await cluster.scale("web", 1)

        async def is_filled_in() -> bool:
            pool = await cluster.get(kinds.MACHINE_POOL, "nstance-web")
            machines = await cluster.all(kinds.MACHINE)
            return len(resources.spec(pool or {}).get("providerIDList") or ()) == 1 == len(machines)

        await cluster.until(is_filled_in)


def _passes(cluster: Cluster) -> float:
    """How often the operator has looked at the Cluster."""
    operator, _ = cluster.operators["one"]
    rendered = operator.metrics.render().decode()
    found = re.search(r'reconciles_total\{controller="clusters",result="done"\} (.+)', rendered)
    return float(found[1]) if found is not None else 0.0


async def _patch(cluster: Cluster, metadata: Object) -> None:
    await cluster.kube.patch(kinds.CLUSTER, NAME, {"metadata": metadata}, namespace=cluster.namespace)
