"""What a pool gives its Nodes, how far it may grow, and a pod that is bound to its own node."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from component.operator_world import KUBERNETES, Cluster, operating, with_template
from component.test_operator_pools import make_pool
from component.whole_server import Json, World
from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.operator.controllers import node_settings, resources
from nstance.v1 import operator_pb2 as pb
from support import real_kube

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

POOL = "nstance-web"
TAINT = {"key": "tier", "value": "web", "effect": "NoSchedule"}
STARTUP = {"key": "cni", "effect": "NoExecute"}


async def set_pool(cluster: Cluster, spec: Object) -> None:
    await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, POOL))
    await cluster.kube.patch(kinds.NSTANCE_MACHINE_POOL, POOL, {"spec": spec}, namespace=cluster.namespace)


def _taints(node: Object) -> list[str]:
    return [each["key"] for each in resources.spec(node).get("taints") or () if "kubernetes.io" not in each["key"]]


async def test_labels_annotations_and_taints_reach_the_nodes(tmp_path: Path, kubernetes: str) -> None:
    """The Nodes that are there, and vars for the kubelets of those that come."""
    settings = {"labels": {"tier": "web"}, "annotations": {"note": "x"}, "taints": [TAINT], "startupTaints": [STARTUP]}
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, POOL))
        api = await cluster.shards["zone-a"].operator()
        await api.call(
            "UpsertGroup", key="web", config={"vars": {"greeting": "hi"}}
        )  # the pool names no vars: it stays
        await set_pool(cluster, {"node": settings})

        async def are_set() -> bool:
            nodes = (await cluster.nodes()).values()
            return len(nodes) == 1 and all(
                resources.labels(each).get("tier") == "web"
                and resources.annotations(each).get("note") == "x"
                and _taints(each) == ["tier", "cni"]
                for each in nodes
            )

        await cluster.until(are_set)
        vars = {
            "greeting": "hi",
            "kubelet_node_labels": "tier=web",
            "kubelet_register_with_taints": "tier=web:NoSchedule,cni=:NoExecute",
        }
        await cluster.until(lambda: dict(cluster.links.get("zone-a").groups["web"].config.vars) == vars)  # type: ignore[union-attr]
        await set_pool(cluster, {"node": None})

        async def are_taken_back() -> bool:
            [node] = (await cluster.nodes()).values()
            return "tier" not in resources.labels(node) and _taints(node) == ["cni"]

        await cluster.until(are_taken_back)
        await cluster.until(lambda: dict(cluster.links.get("zone-a").groups["web"].config.vars) == {"greeting": "hi"})  # type: ignore[union-attr]


def _with_vars(cluster: Cluster, names: Iterable[str]) -> pb.GroupStatus | None:
    shard = cluster.links.get("zone-a")
    group = shard.groups.get("web") if shard is not None else None
    return group if group is not None and all(map(group.config.vars.get, names)) else None


async def test_a_kubelet_registers_with_the_settings_of_its_pool(tmp_path: Path, kubernetes: str) -> None:
    """No operator runs when the Node joins. The one that comes adds what the kubelet may not set, and nothing twice."""
    names = ("kubelet_node_labels", "kubelet_register_with_taints")
    flags = (
        "--node-labels={{ .Vars.kubelet_node_labels }} --register-with-taints={{ .Vars.kubelet_register_with_taints }}"
    )
    vars = {"greeting": "hello", **dict.fromkeys(names, "")}
    template = with_template(userdata={"content": f"kubelet {flags}"}, vars=vars)
    settings = {
        "labels": {"tier": "web", "kubernetes.io/role": "web"},
        "annotations": {"note": "x"},
        "taints": [TAINT],
        "startupTaints": [STARTUP],
    }
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, make_world=template) as cluster:
        await set_pool(cluster, {"node": settings})
        group = await cluster.until(lambda: _with_vars(cluster, names))
        await cluster.crash()
        api = await cluster.shards["zone-a"].operator()
        await api.call("UpsertGroup", key="web", config={"size": 1, "vars": dict(group.config.vars)})
        await cluster.until(cluster.nodes)
        [node] = (await cluster.nodes()).values()
        assert "kubernetes.io/role" not in resources.labels(node)
        assert resources.labels(node)["tier"] == "web"
        assert _taints(node) == ["tier", "cni"]
        await cluster.scale("web", 1)  # what the next operator finds; its ShardGroup would make it 0 first
        size = {"spec": {"size": 1}}
        await cluster.kube.patch(kinds.NSTANCE_SHARD_GROUP, "web--zone-a", size, namespace=cluster.namespace)
        await cluster.start()

        async def is_complete() -> bool:
            [node] = (await cluster.nodes()).values()
            return resources.labels(node).get("kubernetes.io/role") == "web" and _taints(node) == ["tier", "cni"]

        await cluster.until(is_complete)


async def test_a_kubelet_may_set_exactly_the_labels_of_its_flags(tmp_path: Path, kubernetes: str) -> None:
    """The real API server refuses others of a kubelet, and a kubelet that has them does not start."""
    if kubernetes != "real":
        pytest.skip("only the real API server has the admission plugin NodeRestriction")
    domains = ("", "mine.io/", "kubernetes.io/", "x.kubernetes.io/", "x.k8s.io/", "node-restriction.kubernetes.io/")
    domains += ("node.kubernetes.io/", "x.node.kubernetes.io/", "kubelet.kubernetes.io/", "x.kubelet.kubernetes.io/")
    async with operating(tmp_path, kubernetes, {"zone-a": {}}, start=False) as cluster:
        path, binding = cluster._kubeconfig(), cluster.namespace
        role = ("create", "clusterrolebinding", binding, "--clusterrole=system:node", "--group=system:nodes")
        real_kube.kubectl(path, *role)
        try:
            for number, domain in enumerate(domains):
                name, labels = f"{cluster.namespace}-{number}", {f"{domain}role": "x"}
                vars = node_settings.kubelet_vars({"node": {"labels": labels}})
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
                arguments = ("create", f"--as=system:node:{name}", "--as-group=system:nodes", "--dry-run=server")
                body = json.dumps(node)
                if vars:
                    real_kube.kubectl(path, *arguments, "-f", "-", given=body)
                else:
                    with pytest.raises(real_kube.Failed, match="is not allowed to set"):
                        real_kube.kubectl(path, *arguments, "-f", "-", given=body)
        finally:
            real_kube.kubectl(path, "delete", "clusterrolebinding", binding)


async def test_a_pool_does_not_grow_beyond_its_limit(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}, "zone-b": {"web": 0}}) as cluster:
        await set_pool(cluster, {"limits": {"instances": 3}})
        await cluster.scale("web", 5)

        async def is_limited() -> bool:
            pool = await cluster.get(kinds.NSTANCE_MACHINE_POOL, POOL)
            return resources.condition(pool or {}, "Ready").get("reason") == "LimitReached"

        await cluster.until(is_limited)
        assert sum(len(cluster.running(each, "web")) for each in cluster.shards) == 3
        await set_pool(cluster, {"limits": {"instances": 4}})
        await cluster.until(lambda: sum(len(cluster.running(each, "web")) for each in cluster.shards) == 4)


def priced_world(dir: Path, settings: Json, **more: Any) -> World:
    """A shard that knows what an instance costs."""
    settings["shard"]["prices"] = {"currency": "EUR", "hourly": {"*": 0.1}}
    return World(dir, settings, **more)


async def test_a_pool_does_not_cost_more_than_its_limit(tmp_path: Path, kubernetes: str) -> None:
    """A new one neither: nothing is ordered before its price is known."""
    async with operating(tmp_path, kubernetes, {"zone-a": {}, "zone-b": {}}, make_world=priced_world) as cluster:
        await make_pool(cluster, "jobs", 5, list(cluster.shards), template="web", limits={"hourlyCost": 0.3})

        async def is_limited() -> bool:
            pool = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "jobs")
            return resources.condition(pool or {}, "Ready").get("message") == (
                "3 ready; 5 wanted, spec.limits.hourlyCost allows 3, at 0.1 EUR each"
            )

        await cluster.until(is_limited)
        assert [len(world.agents) for world in cluster.shards.values()] == [2, 1]
        change = {"spec": {"limits": {"hourlyCost": 0.45}}}
        await cluster.kube.patch(kinds.NSTANCE_MACHINE_POOL, "jobs", change, namespace=cluster.namespace)
        await cluster.until(lambda: sum(len(cluster.running(each, "jobs")) for each in cluster.shards) == 4)


async def test_a_pod_with_the_gate_is_bound_to_its_own_node(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}) as cluster:
        body: Object = {
            "metadata": {"name": "job", "annotations": {"on-demand.nstance.dev/group": "web"}},
            "spec": {
                "containers": [{"name": "main", "image": "none"}],
                "schedulingGates": [{"name": "nstance.dev/on-demand"}, {"name": "example.com/quota"}],
            },
        }
        await cluster.kube.create(kinds.POD, body, namespace=cluster.namespace)

        async def bound() -> Object | None:
            pod = await cluster.get(kinds.POD, "job")
            return pod if pod is not None and resources.spec(pod).get("nodeSelector") else None

        pod = await cluster.until(bound)
        [instance] = await cluster.nodes()
        assert pod["spec"]["nodeSelector"] == {"nstance.dev/instance-id": instance}
        assert pod["spec"]["schedulingGates"] == [{"name": "example.com/quota"}]  # not ours

        async def are_recorded() -> bool:
            listing = await cluster.kube.list(
                kinds.EVENT, namespace=cluster.namespace, fields="involvedObject.name=job"
            )
            return {"NodeRequested", "NodeStarting", "NodeBound"} <= {each["reason"] for each in listing.items}

        await cluster.until(are_recorded)
