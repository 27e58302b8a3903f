"""What the operator leaves to Cluster API's controllers where they run: here a test says what they would."""

import re
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

NAME = "demo--default"
THEIRS = "cluster.cluster.x-k8s.io"


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
        await cluster.kube.delete(kinds.NSTANCE_CLUSTER, NAME, namespace=cluster.namespace)
        for turn in ("one", "another"):  # the first may have begun before
            before = _passes(cluster)
            await _patch(cluster, {"annotations": {"turn": turn}})
            await cluster.until(lambda before=before: _passes(cluster) > before)  # type: ignore[misc]
        assert await cluster.get(kinds.NSTANCE_CLUSTER, NAME) is None
        await _patch(cluster, {"finalizers": None})

        await cluster.until(lambda: "Cluster was deleted, nothing is created" in caplog.text)
        assert await cluster.get(kinds.CLUSTER, NAME) is None
        await cluster.kube.create(
            kinds.CLUSTER, {"metadata": {"name": NAME}, "spec": first["spec"]}, namespace=cluster.namespace
        )
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_CLUSTER, NAME))


def _passes(cluster: Cluster) -> float:
    """How often the operator has looked at the Cluster."""
    operator, _ = cluster.operators["one"]
    rendered = operator.metrics.render().decode()
    found = re.search(r'reconciles_total\{controller="clusters",result="done"\} (.+)', rendered)
    return float(found[1]) if found is not None else 0.0


async def _patch(cluster: Cluster, metadata: Object) -> None:
    await cluster.kube.patch(kinds.CLUSTER, NAME, {"metadata": metadata}, namespace=cluster.namespace)
