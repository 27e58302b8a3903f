"""Who may order nodes with a pod, how many, and what the pod's owner learns."""

from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating, with_template
from nstance.kube import kinds

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

GROUP = "on-demand.nstance.dev/group"
ONE = {"zone-a": {"web": 0}}


async def noted(cluster: Cluster, pod: str, namespace: str, reason: str, words: str) -> bool:
    listing = await cluster.kube.list(kinds.EVENT, namespace=namespace, fields=f"involvedObject.name={pod}")
    return any(each["reason"] == reason and words in each["message"] for each in listing.items)


async def test_a_namespace_must_be_labelled_to_order_nodes(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        other = f"{cluster.namespace}-other"
        await cluster.kube.create(kinds.NAMESPACE, {"metadata": {"name": other}})
        await cluster.pod("job", namespace=other, annotations={GROUP: "web"})
        words = "an administrator has to label it with nstance.dev/on-demand=enabled"
        await cluster.until(lambda: noted(cluster, "job", other, "NodeRefused", words))
        assert not await cluster.all(kinds.MACHINE)
        label = {"metadata": {"labels": {"nstance.dev/on-demand": "enabled"}}}
        await cluster.kube.patch(kinds.NAMESPACE, other, label)
        [instance] = await cluster.until(lambda: cluster.running("zone-a", "web"))
        # Who loses the right keeps what it has, and gets nothing new.
        taken = {"metadata": {"labels": {"nstance.dev/on-demand": None}}}
        await cluster.kube.patch(kinds.NAMESPACE, other, taken)
        await cluster.pod("second", namespace=other, annotations={GROUP: "web"})
        await cluster.until(lambda: noted(cluster, "second", other, "NodeRefused", words))
        assert cluster.running("zone-a", "web") == [instance]
        await cluster.kube.delete(kinds.POD, "job", namespace=other)
        await cluster.until(lambda: not cluster.running("zone-a", "web"))


async def test_the_feature_can_be_turned_off(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, start=False) as cluster:
        await cluster.start(on_demand_namespaces=None)
        await cluster.pod("job", annotations={GROUP: "web"})
        await cluster.until(lambda: noted(cluster, "job", cluster.namespace, "NodeRefused", "turned off"))
        assert not await cluster.all(kinds.MACHINE)


async def test_a_template_limits_what_a_namespace_orders(tmp_path: Path, kubernetes: str) -> None:
    limits = {"max": 3, "max_per_requester": 1}
    async with operating(
        tmp_path, kubernetes, ONE, drain_timeout="0", make_world=with_template(on_demand=limits)
    ) as cluster:
        await cluster.pod("first", annotations={GROUP: "web"})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        await cluster.pod("second", annotations={GROUP: "web"})
        words = f"1 for {cluster.namespace}"
        await cluster.until(lambda: noted(cluster, "second", cluster.namespace, "NodeNotMade", words))
        assert len(cluster.running("zone-a", "web")) == 1
