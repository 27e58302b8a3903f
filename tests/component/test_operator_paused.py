"""Hands off: what is paused is neither made, changed nor deleted, until it is resumed."""

from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.wire.status import UnreachableError

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

CLUSTER = "demo--default"
ONE = {"zone-a": {"web": 0}}
ANNOTATION = "cluster.x-k8s.io/paused"


async def pause(cluster: Cluster, kind: Kind, name: str, *, paused: bool) -> None:
    change: Object = {"metadata": {"annotations": {ANNOTATION: "true" if paused else None}}}
    if kind is kinds.CLUSTER:
        change = {"spec": {"paused": True if paused else None}}
    await cluster.kube.patch(kind, name, change, namespace=cluster.namespace)


async def make(cluster: Cluster, name: str) -> None:
    """A pool `name` of one, and a machine `name` beside it."""
    for kind, infrastructure, spec in (
        (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL, {"group": name, "shards": ["zone-a"], "template": "web"}),
        (kinds.MACHINE, kinds.NSTANCE_MACHINE, {"group": "web"}),
    ):
        reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": infrastructure.name, "name": name}
        inner = {"clusterName": CLUSTER, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
        wanted = {"clusterName": CLUSTER, "replicas": 1, "template": {"spec": inner}}
        outer = {"metadata": {"name": name}, "spec": wanted if kind is kinds.MACHINE_POOL else inner}
        await cluster.kube.create(kind, outer, namespace=cluster.namespace)
        ours = {"metadata": {"name": name}, "spec": spec}
        await cluster.kube.create(infrastructure, ours, namespace=cluster.namespace)


def instances(cluster: Cluster) -> int:
    return sum(len(cluster.running("zone-a", group)) for group in ("web", "jobs"))


async def machines(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in await cluster.all(kinds.NSTANCE_MACHINE)}


@pytest.mark.parametrize(
    "paused",
    [
        [(kinds.CLUSTER, CLUSTER)],
        [(kinds.NSTANCE_MACHINE_POOL, "jobs"), (kinds.NSTANCE_MACHINE, "jobs")],
    ],
    ids=["cluster", "objects"],
)
async def test_what_is_deleted_while_it_is_paused_stays_until_it_is_resumed(
    tmp_path: Path, kubernetes: str, paused: list[tuple[Kind, str]]
) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        await make(cluster, "jobs")
        await cluster.until(lambda: instances(cluster) == 2)
        await cluster.stop()  # it may hear of the deletion before it hears of the pause
        for kind, name in paused:
            await pause(cluster, kind, name, paused=True)
        for kind in (kinds.MACHINE_POOL, kinds.MACHINE):
            await cluster.kube.delete(kind, "jobs", namespace=cluster.namespace)

        async def leaves() -> bool:
            found = [await cluster.get(kind, "jobs") for kind in (kinds.NSTANCE_MACHINE_POOL, kinds.NSTANCE_MACHINE)]
            return all(each is not None and each["metadata"].get("deletionTimestamp") for each in found)

        await cluster.until(leaves)
        await cluster.start()
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        if paused[0][0] is kinds.CLUSTER:
            await cluster.until(lambda: cluster.all(kinds.MACHINE))
        else:
            await cluster.until(lambda: instances(cluster) == 3)
        assert instances(cluster) == (2 if paused[0][0] is kinds.CLUSTER else 3)
        assert "jobs" in await machines(cluster)
        for kind, name in paused:
            await pause(cluster, kind, name, paused=False)
        await cluster.until(lambda: instances(cluster) == 1)  # the pod's

        async def gone() -> bool:
            return "jobs" not in await machines(cluster) and not await cluster.get(kinds.NSTANCE_MACHINE_POOL, "jobs")

        await cluster.until(gone)


@pytest.mark.parametrize("half", [kinds.NSTANCE_MACHINE_POOL, kinds.MACHINE_POOL], ids=["ours", "theirs"])
async def test_a_shard_group_of_a_paused_pool_is_not_set_back(tmp_path: Path, kubernetes: str, half: Kind) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1, "other": 1}}, drain_timeout="0") as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a"))
        await pause(cluster, half, "nstance-web", paused=True)
        operator = await cluster.shards["zone-a"].operator()

        async def grow(group: str) -> bool:
            try:
                await operator.call("UpsertGroup", key=group, config={"size": 3})
            except UnreachableError:
                return False  # a server on a loaded machine: asking again changes nothing
            return True

        for group in ("web", "other"):
            await cluster.until(lambda group=group: grow(group))  # type: ignore[misc]

        async def size(group: str) -> int:
            found = (await operator.call("ListGroups")).groups
            return next(each.size for each in found if each.key == group)

        async def set_back(group: str) -> bool:
            return await size(group) == 1

        await cluster.until(lambda: set_back("other"))  # what came after it was done
        assert await size("web") == 3
        await pause(cluster, half, "nstance-web", paused=False)
        await cluster.until(lambda: set_back("web"))


async def paused_condition(cluster: Cluster, kind: Kind, name: str) -> str:
    item = await cluster.get(kind, name) or {}
    found = [each for each in item.get("status", {}).get("conditions", ()) if each["type"] == "Paused"]
    return str(found[0]["status"]) if found else ""


async def test_what_is_paused_says_so(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        await cluster.until(lambda: cluster.running("zone-a", "web"))

        async def all_show(status: str) -> bool:
            [instance] = cluster.running("zone-a", "web")
            named = (
                (kinds.NSTANCE_CLUSTER, CLUSTER),
                (kinds.NSTANCE_MACHINE_POOL, "nstance-web"),
                (kinds.NSTANCE_SHARD_GROUP, "web--zone-a"),
                (kinds.NSTANCE_MACHINE, str(instance)),
            )
            return {await paused_condition(cluster, kind, name) for kind, name in named} == {status}

        await cluster.until(lambda: all_show("False"))
        await pause(cluster, kinds.CLUSTER, CLUSTER, paused=True)
        await cluster.until(lambda: all_show("True"))
        await pause(cluster, kinds.CLUSTER, CLUSTER, paused=False)
        await cluster.until(lambda: all_show("False"))
