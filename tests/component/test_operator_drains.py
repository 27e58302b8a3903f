"""Drains: nodes are emptied before their VMs go; budgets hold them; cancellations give them back. Against every Kubernetes."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from component.whole_server import states
from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.model.ids import InstanceId
from nstance.operator.controllers import resources
from nstance.operator.controllers.drains import DRAINING_ANNOTATION

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

DAEMON_SET = kinds.Kind("apps", "v1", "DaemonSet", "daemonsets")
THREE = {"zone-a": {"web": 3}}


def daemon_set() -> Object:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template}}


async def settled(cluster: Cluster, count: int) -> list[InstanceId]:
    """That many instances run, each with its node."""
    await cluster.until(lambda: len(cluster.running("zone-a", "web")) == count)
    ids = cluster.running("zone-a", "web")

    async def noded() -> bool:
        return set(ids) <= (await cluster.nodes()).keys()

    await cluster.until(noded)
    return ids


def state(cluster: Cluster, instance: InstanceId) -> str:
    return states(cluster.shards["zone-a"], "web")[instance]


async def leave(cluster: Cluster, instance: InstanceId) -> None:
    other = await cluster.shards["zone-a"].operator()
    await other.call("DeleteInstance", instance_id=instance)


async def pods_on(cluster: Cluster, node: str) -> set[str]:
    listing = await cluster.kube.list(kinds.POD, namespace=cluster.namespace, fields=f"spec.nodeName={node}")
    return {resources.name(pod) for pod in listing.items}


async def test_a_node_is_emptied_before_its_vm_goes(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="10m") as cluster:
        first, *_ = await settled(cluster, 3)
        daemons = await cluster.kube.create(DAEMON_SET, daemon_set(), namespace=cluster.namespace)
        await cluster.pod("plain", node=first)
        await cluster.pod(
            "daemon", node=first, ownerReferences=[resources.owner_reference(daemons, DAEMON_SET, controller=True)]
        )
        await cluster.pod("static", node=first, annotations={"kubernetes.io/config.mirror": "x"})
        await leave(cluster, first)
        await cluster.until(lambda: state(cluster, first) == "deleted")
        assert await pods_on(cluster, first) == {"daemon", "static"}
        assert len(await settled(cluster, 3)) == 3


async def test_a_budget_holds_a_drain_until_it_lets_go(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="10m") as cluster:
        first, *_ = await settled(cluster, 3)
        await cluster.pod("guarded", node=first, labels={"app": "x"})
        await healthy(cluster, "guarded")
        budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
        await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget, namespace=cluster.namespace)
        await leave(cluster, first)

        async def refused() -> bool:
            listing = await cluster.kube.list(kinds.EVENT, fields=f"involvedObject.name={first}")
            return any(each["reason"] == "EvictionRefused" for each in listing.items)

        await cluster.until(refused)
        assert state(cluster, first) == "draining"
        node = (await cluster.nodes())[first]
        assert node["spec"]["unschedulable"] is True
        await cluster.kube.delete(kinds.POD_DISRUPTION_BUDGET, "all", namespace=cluster.namespace)
        await cluster.until(lambda: state(cluster, first) == "deleted")
        assert await pods_on(cluster, first) == set()


async def healthy(cluster: Cluster, pod: str) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.kube.patch(kinds.POD, pod, {"status": status}, namespace=cluster.namespace, subresource="status")


async def test_a_deadline_ends_a_drain_that_nothing_else_ends(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="2s") as cluster:
        first, *_ = await settled(cluster, 3)
        await cluster.pod("guarded", node=first, labels={"app": "x"}, finalizers=["example.com/never"])
        await leave(cluster, first)
        await cluster.until(lambda: state(cluster, first) == "deleted")
        assert await pods_on(cluster, first) == {"guarded"}
        await cluster.kube.patch(kinds.POD, "guarded", {"metadata": {"finalizers": None}}, namespace=cluster.namespace)


async def test_many_nodes_drain_at_once(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 20}}, drain_timeout="10m") as cluster:
        ids = await settled(cluster, 20)
        for number, instance in enumerate(ids):
            await cluster.pod(f"p{number}", node=instance)
        await cluster.scale("web", 0)
        await cluster.until(lambda: all(state(cluster, instance) == "deleted" for instance in ids))
        assert await cluster.all(kinds.POD) == []


async def test_a_cancelled_drain_gives_the_node_back(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="10m") as cluster:
        for instance in await settled(cluster, 3):
            await cluster.pod(f"stays-{instance[-6:]}", node=instance, finalizers=["example.com/never"])
        await cluster.scale("web", 2)

        async def cordoned() -> Object | None:
            found = [node for node in (await cluster.nodes()).values() if node["spec"].get("unschedulable")]
            return found[0] if found else None

        node = await cluster.until(cordoned)
        assert DRAINING_ANNOTATION in node["metadata"]["annotations"]
        await cluster.scale("web", 3)

        async def given_back() -> bool:
            return await cordoned() is None

        await cluster.until(given_back)
        assert len(cluster.running("zone-a", "web")) == 3
        for pod in await cluster.all(kinds.POD):
            await free(cluster, resources.name(pod))


async def test_a_drain_that_was_cancelled_while_the_operator_was_away(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="10m") as cluster:
        for instance in await settled(cluster, 3):
            await cluster.pod(f"stays-{instance[-6:]}", node=instance, finalizers=["example.com/never"])
        await cluster.scale("web", 2)

        async def cordoned() -> bool:
            return any(node["spec"].get("unschedulable") for node in (await cluster.nodes()).values())

        await cluster.until(cordoned)
        await cluster.crash()
        other = await cluster.shards["zone-a"].operator()
        await other.call("UpsertGroup", key="web", config={"size": 3})
        await cluster.scale("web", 3)
        await cluster.start()

        async def given_back() -> bool:
            return not await cordoned()

        await cluster.until(given_back)
        for pod in await cluster.all(kinds.POD):
            await free(cluster, resources.name(pod))


async def test_a_node_that_was_cordoned_by_somebody_else_stays_cordoned(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="10m") as cluster:
        first, second = await settled(cluster, 2)
        for each in (first, second):
            await cluster.kube.patch(kinds.NODE, each, {"spec": {"unschedulable": True}})
            await cluster.pod(f"stays-{each[-6:]}", node=each, finalizers=["example.com/never"])
        await cluster.scale("web", 1)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        await cluster.scale("web", 2)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 2)
        await asyncio.gather(*(free(cluster, resources.name(pod)) for pod in await cluster.all(kinds.POD)))
        assert all(node["spec"].get("unschedulable") for node in (await cluster.nodes()).values())


async def free(cluster: Cluster, pod: str) -> None:
    with contextlib.suppress(errors.NotFoundError):
        await cluster.kube.patch(kinds.POD, pod, {"metadata": {"finalizers": None}}, namespace=cluster.namespace)


async def test_the_server_fails_over_in_the_middle_of_a_drain(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, THREE, drain_timeout="10m", start=False) as cluster:
        world = cluster.shards["zone-a"]
        await world.start("b", lead=False)
        await cluster.start()
        first, *_ = await settled(cluster, 3)
        await cluster.pod("stays", node=first, finalizers=["example.com/never"])
        await leave(cluster, first)
        await cluster.until(lambda: state(cluster, first) == "draining")
        await world.servers["a"].crash()
        await world.servers["b"].until(lambda: world.servers["b"].lead is not None)
        assert state(cluster, first) == "draining"
        await free(cluster, "stays")
        await cluster.until(lambda: state(cluster, first) == "deleted")
        assert len(await settled(cluster, 3)) == 3
