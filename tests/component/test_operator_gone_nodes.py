"""Nodes of VMs that are gone, where no cloud's software and no Cluster API deletes them."""

from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, operating
from nstance.kube import kinds
from nstance.operator.controllers import resources

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

INSTANCE = "nstance.dev/instance"


async def test_a_node_goes_when_its_shard_confirms_the_end_of_its_vm(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="0") as cluster:
        cluster.is_cloud_deleting_nodes = False

        async def annotated() -> bool:
            nodes = await cluster.nodes()
            return len(nodes) == 2 and all(INSTANCE in resources.annotations(each) for each in nodes.values())

        await cluster.until(annotated)
        first = sorted(await cluster.nodes())[0]
        # A node of another tenant has no instance here either.
        foreign = {
            "name": f"{cluster.namespace}-foreign",
            "labels": {"nstance.dev/instance-id": "web-01hf7yj6caesvswbgbvdrt65z9", "test": cluster.namespace},
            "annotations": {INSTANCE: "demo--other/zone-a/web-01hf7yj6caesvswbgbvdrt65z9"},
        }
        unknown = {"name": f"{cluster.namespace}-unknown", "labels": {"test": cluster.namespace}}
        for metadata in (foreign, unknown):
            await cluster.kube.create(kinds.NODE, {"metadata": metadata})
        await cluster.crash()
        await cluster.scale("web", 1)
        await cluster.start()
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)

        async def names() -> set[str]:
            listed = await cluster.all(kinds.NODE)
            return {resources.name(each) for each in listed if resources.labels(each).get("test") == cluster.namespace}

        async def is_left() -> bool:
            return first not in await names()

        await cluster.until(is_left)
        assert await names() == {*map(str, cluster.running("zone-a", "web")), foreign["name"], unknown["name"]}
        for metadata in (foreign, unknown):
            await cluster.kube.delete(kinds.NODE, str(metadata["name"]))


async def test_a_node_goes_whose_vm_ended_before_the_operator_saw_it(tmp_path: Path, kubernetes: str) -> None:
    """Nobody annotated it. What has the name of an instance that no shard ever had is somebody else's."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, start=False, drain_timeout="0") as cluster:
        cluster.is_cloud_deleting_nodes = False

        async def registered() -> bool:
            return len(await cluster.nodes()) == 2

        await cluster.until(registered)
        other = await cluster.shards["zone-a"].operator()
        await other.call("UpsertGroup", key="web", config={"size": 1})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        foreign = "web-01hf7yj6caesvswbgbvdrt65z9"
        labels = {"nstance.dev/instance-id": foreign, "test": cluster.namespace}
        body = {"metadata": {"name": f"{cluster.namespace}-foreign", "labels": labels}}
        await cluster.kube.create(kinds.NODE, body)
        await cluster.start()

        async def is_left() -> bool:
            return sorted(await cluster.nodes()) == sorted([foreign, *map(str, cluster.running("zone-a", "web"))])

        await cluster.until(is_left)


async def test_a_ready_node_stays_that_its_shard_does_not_know(tmp_path: Path, kubernetes: str) -> None:
    """As after a backup of the shard's storage was restored: the VM runs, and its record is lost."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, drain_timeout="0") as cluster:
        for name, status in (("ready", "True"), ("silent", "Unknown")):
            condition = {"type": "Ready", "status": status, "reason": "Kubelet", "lastHeartbeatTime": None}
            metadata = {
                "name": f"{cluster.namespace}-{name}",
                "labels": {"test": cluster.namespace, "nstance.dev/instance-id": name},
                "annotations": {INSTANCE: "demo--default/zone-a/web-01hf7yj6caesvswbgbvdrt65z9"},
            }
            body = {"metadata": metadata, "status": {"conditions": [condition]}}
            await cluster.kube.create(kinds.NODE, body)

        async def is_left() -> bool:
            return list(await cluster.nodes()) == ["ready"]

        await cluster.until(is_left)
        # The one that stays was looked at too: it is looked at again and goes when it falls silent.
        silent = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Kubelet"}]}}
        await cluster.kube.patch(kinds.NODE, f"{cluster.namespace}-ready", silent, subresource="status")

        async def is_gone() -> bool:
            return not await cluster.nodes()

        await cluster.until(is_gone)


async def test_nodes_stay_where_the_option_says_so(tmp_path: Path, kubernetes: str) -> None:
    groups = {"zone-a": {"web": 1}}
    async with operating(tmp_path, kubernetes, groups, drain_timeout="0", start=False) as cluster:
        cluster.is_cloud_deleting_nodes = False
        await cluster.start(delete_nodes=False)
        await cluster.until(cluster.nodes)
        await cluster.scale("web", 0)
        await cluster.until(lambda: not cluster.running("zone-a", "web"))

        async def released() -> bool:
            return not await cluster.all(kinds.NSTANCE_MACHINE)

        await cluster.until(released)  # what came after it was done
        [node] = (await cluster.nodes()).values()
        assert INSTANCE not in resources.annotations(node)
