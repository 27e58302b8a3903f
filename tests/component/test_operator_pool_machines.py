"""MachinePool Machines, and what cluster-autoscaler's clusterapi provider reads and calls, replayed step by step."""

import contextlib
import uuid
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating, with_template
from component.test_operator_machines import make_machine
from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from support import kube_verbs

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

TWO = {"zone-a": {"web": 2}, "zone-b": {"web": 2}}
POOL = "nstance-web"
DELETE = "cluster.x-k8s.io/delete-machine"


def normalized(provider_id: str) -> str:
    """cluster-autoscaler compares what follows the last slash."""
    return provider_id.rpartition("/")[2]


async def members(cluster: Cluster) -> dict[str, Object]:
    """The pool's Machines that are not being deleted, by name."""
    found = {each["metadata"]["name"]: each for each in await cluster.all(kinds.MACHINE)}
    return {name: each for name, each in found.items() if not each["metadata"].get("deletionTimestamp")}


async def settled(cluster: Cluster, number: int) -> dict[str, Object]:
    """The Machines, when each has its node and the pool lists all of them."""
    found: dict[str, Object] = {}

    async def complete() -> bool:
        nonlocal found
        found = await members(cluster)
        pool = await cluster.get(kinds.MACHINE_POOL, POOL) or {}
        ids = {normalized(each["spec"].get("providerID", "")) for each in found.values()}
        listed = {normalized(each) for each in pool.get("spec", {}).get("providerIDList") or ()}
        nodes = [each.get("status", {}).get("nodeRef") for each in found.values()]
        references = pool.get("status", {}).get("nodeRefs") or []
        return len(found) == len(references) == number and all(nodes) and ids == listed

    await cluster.until(complete)
    return found


def running(cluster: Cluster) -> list[str]:
    return sorted(str(id) for shard in cluster.shards for id in cluster.running(shard, "web"))


async def mark(cluster: Cluster, machine: str) -> None:
    """As cluster-autoscaler does it: read, annotate, update."""
    found = await cluster.kube.get(kinds.MACHINE, machine, namespace=cluster.namespace)
    found["metadata"].setdefault("annotations", {})[DELETE] = "2026-01-31 12:00:00"
    try:
        await cluster.kube.replace(kinds.MACHINE, found)
    except errors.ConflictError:
        await mark(cluster, machine)


async def test_every_instance_has_its_objects(tmp_path: Path, kubernetes: str) -> None:
    """What the contract of MachinePool Machines and cluster-autoscaler's provider read, field by field."""
    async with operating(tmp_path, kubernetes, TWO) as cluster:
        machines = await settled(cluster, 4)
        assert sorted(machines) == running(cluster)
        pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
        ours = await cluster.kube.get(kinds.NSTANCE_MACHINE_POOL, POOL, namespace=cluster.namespace)
        assert ours["status"]["infrastructureMachineKind"] == "NstanceMachine"
        assert ours["status"]["nodeInfo"] == {"architecture": "amd64", "operatingSystem": "linux"}
        assert [each["instanceName"] for each in ours["status"]["instances"]] == sorted(machines)
        assert pool["spec"]["replicas"] == 4
        assert {each["name"] for each in pool["status"]["nodeRefs"]} == set(machines)  # here nodes have these names
        for name, machine in machines.items():
            item = await cluster.kube.get(kinds.NSTANCE_MACHINE, name, namespace=cluster.namespace)
            for each in (machine, item):
                labels = each["metadata"]["labels"]
                assert labels["cluster.x-k8s.io/pool-name"] == POOL
                assert labels["cluster.x-k8s.io/cluster-name"] == "demo--default"
            [owner] = machine["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("MachinePool", POOL, pool["metadata"]["uid"])
            assert owner["controller"] is True
            owners = {each["kind"]: each for each in item["metadata"]["ownerReferences"]}
            assert owners["NstanceMachinePool"]["uid"] == ours["metadata"]["uid"]
            assert not owners["NstanceMachinePool"].get("controller")  # Cluster API makes the Machine its controller
            assert machine["spec"]["clusterName"] == "demo--default"
            assert machine["spec"]["infrastructureRef"]["name"] == name
            assert machine["spec"]["providerID"] == item["spec"]["providerID"] == f"dev:///{name}"
            assert machine["status"]["nodeRef"] == {"name": name}
            assert item["status"]["initialization"] == {"provisioned": True}
            assert item["spec"]["failureDomain"] == item["status"]["failureDomain"]


async def test_every_node_names_its_machine(tmp_path: Path, kubernetes: str) -> None:
    """HasInstance of cluster-autoscaler's provider looks for the Machine that two annotations of the Node name."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, start=False) as cluster:

        async def have_joined() -> bool:
            return len(await cluster.nodes()) == 2

        await cluster.until(have_joined)
        first, second = sorted(await cluster.nodes())
        stale = {"cluster.x-k8s.io/machine": "other", "cluster.x-k8s.io/cluster-namespace": "moved", "theirs": "stays"}
        await cluster.kube.patch(kinds.NODE, first, {"metadata": {"annotations": stale}})
        await cluster.start()
        await make_machine(cluster, "alone", group="web", failureDomain="zone-a")

        async def named() -> dict[str, str]:
            """Machines, by Node."""
            found = {}
            for name, node in (await cluster.nodes()).items():
                annotations = resources.annotations(node)
                if annotations.get("cluster.x-k8s.io/cluster-namespace") == cluster.namespace:
                    found[name] = annotations.get("cluster.x-k8s.io/machine", "")
            return found

        async def are_all_named() -> bool:
            alone = resources.status(await cluster.get(kinds.NSTANCE_MACHINE, "alone") or {}).get("instanceID", "")
            return await named() == {first: first, second: second, alone: "alone"}

        await cluster.until(are_all_named)
        nodes = await cluster.nodes()
        for instance, machine in (await named()).items():
            found = await cluster.kube.get(kinds.MACHINE, machine, namespace=cluster.namespace)
            assert nodes[instance]["spec"]["providerID"] == found["spec"]["providerID"]
            assert resources.annotations(nodes[instance])["cluster.x-k8s.io/cluster-name"] == "demo--default"
        owner = [resources.annotations(nodes[first])[f"cluster.x-k8s.io/owner-{each}"] for each in ("kind", "name")]
        assert owner == ["MachinePool", POOL]
        assert resources.annotations(nodes[first])["theirs"] == "stays"
        # What others write about a Node whose pool has no settings stays, also when those change.
        await cluster.kube.patch(
            kinds.NSTANCE_MACHINE_POOL,
            POOL,
            {"spec": {"node": {"annotations": {"note": "x"}}}},
            namespace=cluster.namespace,
        )

        async def is_noted() -> bool:
            return all(resources.annotations(each).get("note") == "x" for each in (await cluster.nodes()).values())

        await cluster.until(is_noted)
        assert await are_all_named()


async def test_cluster_autoscaler_scales_down_to_its_node(tmp_path: Path, kubernetes: str) -> None:
    """Always the newest of the second shard, which no other rule would choose."""
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        for number in (4, 3):
            machines = await settled(cluster, number)
            victim = str(cluster.running("zone-b", "web")[-1])
            node = (await cluster.nodes())[victim]
            # nodeGroupForNode: the pool that lists the node's provider ID; findMachineByProviderID: exactly one Machine.
            pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
            id = normalized(node["spec"]["providerID"])
            assert [each for each in pool["spec"]["providerIDList"] if normalized(each) == id] != []
            [found] = [each for each in machines.values() if normalized(each["spec"]["providerID"]) == id]
            assert found["metadata"]["name"] == victim
            before = running(cluster)
            scale = await kube_verbs.read_scale(cluster.kube, kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
            assert scale["spec"]["replicas"] == pool["spec"]["replicas"] == number
            await mark(cluster, victim)
            await cluster.scale("web", number - 1)
            await cluster.until(lambda: len(running(cluster)) == number - 1)  # noqa: B023
            assert running(cluster) == [each for each in before if each != victim]
        await settled(cluster, 2)
        assert len(cluster.running("zone-a", "web")) == 2


async def test_cluster_autoscaler_scales_up_to_zero_and_back(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        await settled(cluster, 4)
        await cluster.scale("web", 0)
        await settled(cluster, 0)
        assert not running(cluster)
        await cluster.scale("web", 3)
        await settled(cluster, 3)
        # Growth evens out what a chosen victim left behind, and moves nothing.
        victims = cluster.running("zone-b", "web")
        await mark(cluster, str(victims[0]))
        await cluster.scale("web", 2)
        await cluster.until(lambda: not cluster.running("zone-b", "web"))
        kept = cluster.running("zone-a", "web")
        await cluster.scale("web", 3)
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 1)
        assert cluster.running("zone-a", "web") == kept


async def test_cluster_autoscaler_reads_what_a_node_of_an_empty_pool_will_have(tmp_path: Path, kubernetes: str) -> None:
    """From the object behind the MachinePool: maps of texts. And from annotations of the MachinePool."""
    capacity = {"cpu": "4", "memory": "16Gi"}
    async with operating(
        tmp_path, kubernetes, {"zone-a": {"web": 0}}, make_world=with_template(capacity=capacity)
    ) as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_MACHINE_POOL, POOL))
        node = {"labels": {"tier": "web"}, "taints": [{"key": "tier", "value": "web", "effect": "NoSchedule"}]}
        await cluster.kube.patch(
            kinds.NSTANCE_MACHINE_POOL, POOL, {"spec": {"node": node}}, namespace=cluster.namespace
        )

        async def is_complete() -> bool:
            pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
            reference = pool["spec"]["template"]["spec"]["infrastructureRef"]
            assert (
                reference["apiGroup"] == kinds.INFRASTRUCTURE
            )  # its version is discovered, its plural is the kind + s
            assert f"{reference['kind'].lower()}s" == kinds.NSTANCE_MACHINE_POOL.plural
            ours = await cluster.kube.get(kinds.NSTANCE_MACHINE_POOL, reference["name"], namespace=cluster.namespace)
            status, annotations = ours.get("status", {}), pool["metadata"].get("annotations") or {}
            return (
                status.get("capacity") == capacity
                and status.get("nodeInfo") == {"architecture": "amd64", "operatingSystem": "linux"}
                and annotations.get("capacity.cluster-autoscaler.kubernetes.io/labels") == "tier=web"
                and annotations.get("capacity.cluster-autoscaler.kubernetes.io/taints") == "tier=web:NoSchedule"
            )

        await cluster.until(is_complete)


async def test_a_deleted_machine_takes_its_instance_and_shrinks_the_pool(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO) as cluster:
        await settled(cluster, 4)
        victim = str(cluster.running("zone-b", "web")[-1])
        before = running(cluster)
        await cluster.crash()
        # Machines that were gone before an operator could forget them.
        left = {"annotations": {"nstance.dev/removed-machines": ",".join(str(uuid.uuid4()) for _ in range(1000))}}
        await cluster.kube.patch(kinds.MACHINE_POOL, POOL, {"metadata": left}, namespace=cluster.namespace)
        await cluster.kube.delete(kinds.MACHINE, victim, namespace=cluster.namespace)
        await cluster.start()
        await settled(cluster, 3)
        assert running(cluster) == [each for each in before if each != victim]
        pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
        assert pool["spec"]["replicas"] == 3

        async def forgotten() -> bool:
            pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
            return not (pool["metadata"].get("annotations") or {}).get("nstance.dev/removed-machines")

        await cluster.until(forgotten)


async def test_objects_that_go_by_themselves_take_no_instance(tmp_path: Path, kubernetes: str) -> None:
    """Only the NstanceMachine; a Machine of another MachinePool's UID, as after a restored backup; all with their pool."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}) as cluster:
        machines = await settled(cluster, 2)
        before, (first, second) = running(cluster), sorted(machines)
        uids = {name: each["metadata"]["uid"] for name, each in machines.items()}
        await cluster.kube.delete(kinds.NSTANCE_MACHINE, first, namespace=cluster.namespace)
        foreign = machines[second]["metadata"]["ownerReferences"][0] | {"uid": "00000000-0000-0000-0000-000000000000"}
        change = {"metadata": {"ownerReferences": [foreign]}}
        await cluster.kube.patch(kinds.MACHINE, second, change, namespace=cluster.namespace)
        with contextlib.suppress(errors.NotFoundError):  # a garbage collector may be faster
            await cluster.kube.delete(kinds.MACHINE, second, namespace=cluster.namespace)

        async def made_again() -> bool:
            found = await members(cluster)
            items = [await cluster.get(kinds.NSTANCE_MACHINE, name) for name in (first, second)]
            alive = all(each is not None and not each["metadata"].get("deletionTimestamp") for each in items)
            return alive and second in found and found[second]["metadata"]["uid"] != uids[second]

        await cluster.until(made_again)
        assert running(cluster) == before
        pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
        assert pool["spec"]["replicas"] == 2
        # The group is static: without its pool it keeps its instances, and no object of it stays.
        await cluster.kube.delete(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)

        async def gone() -> bool:
            return not await cluster.all(kinds.NSTANCE_MACHINE) and not await cluster.all(kinds.MACHINE)

        await cluster.until(gone)
        assert running(cluster) == before


async def test_an_unhealthy_machine_is_replaced_and_the_pool_keeps_its_size(tmp_path: Path, kubernetes: str) -> None:
    """A MachineHealthCheck says so with the condition OwnerRemediated."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="0") as cluster:
        machines = await settled(cluster, 2)
        victim = sorted(machines)[1]
        unhealthy = {
            "type": "OwnerRemediated",
            "status": "False",
            "reason": "WaitingForRemediation",
            "message": "",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
        }
        await cluster.kube.patch(
            kinds.MACHINE,
            victim,
            {"status": {"conditions": [unhealthy]}},
            namespace=cluster.namespace,
            subresource="status",
        )
        await cluster.until(lambda: len(running(cluster)) == 2 and victim not in running(cluster))

        async def is_replaced() -> bool:
            return victim not in await members(cluster)

        await cluster.until(is_replaced)
        await settled(cluster, 2)
        pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
        assert pool["spec"]["replicas"] == 2


async def test_replicas_that_something_else_manages_are_shown(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}, drain_timeout="0") as cluster:
        await settled(cluster, 1)
        external = {"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "nstance"}}}
        await cluster.kube.patch(kinds.MACHINE_POOL, POOL, external, namespace=cluster.namespace)

        async def released() -> bool:
            item = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a") or {}
            return "size" not in item["spec"]

        await cluster.until(released)
        other = await cluster.shards["zone-a"].operator()
        await other.call("UpsertGroup", key="web", config={"size": 3})
        await settled(cluster, 3)
        pool = await cluster.kube.get(kinds.MACHINE_POOL, POOL, namespace=cluster.namespace)
        assert pool["spec"]["replicas"] == 3


async def test_a_pool_that_shrinks_loses_its_idle_nodes(tmp_path: Path, kubernetes: str) -> None:
    """The newest one is idle; by age alone it would stay."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 3}}, drain_timeout="0") as cluster:
        *busy, idle = sorted(await settled(cluster, 3))
        for node in busy:
            await cluster.pod(f"on-{node}", node=node)
        # A pod that is created later is seen later: then the operator knows these too.
        await cluster.pod("last", annotations={"on-demand.nstance.dev/group": "nosuch"})
        await cluster.until(lambda: asked(cluster))
        await cluster.scale("web", 2)
        await cluster.until(lambda: len(running(cluster)) == 2)
        assert running(cluster) == busy
        assert idle not in running(cluster)


async def asked(cluster: Cluster) -> bool:
    found = await cluster.kube.list(kinds.EVENT, namespace=cluster.namespace, fields="involvedObject.name=last")
    return bool(found.items)
