"""Pools: import, scaling, division over shards, drift, static protection, deletion; against every Kubernetes there is."""

import asyncio
import os
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, REAL, Cluster, operating
from nstance.kube import errors, kinds
from nstance.kube.kinds import Kind
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Kube, Listing, Object
from nstance.operator.controllers import resources
from support import real_kube

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

TWO = {"zone-a": {"web": 2}, "zone-b": {"web": 1}}


def condition(item: Object | None, type: str) -> str | None:
    found = (item or {}).get("status", {}).get("conditions", [])
    return next((each["status"] for each in found if each["type"] == type), None)


async def sizes(cluster: Cluster) -> dict[str, int]:
    return {item["metadata"]["name"]: item["spec"]["size"] for item in await cluster.all(kinds.NSTANCE_SHARD_GROUP)}


async def test_groups_of_all_shards_are_imported_with_their_sizes(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO) as cluster:
        pool = await cluster.until(lambda: cluster.get(kinds.MACHINE_POOL, "nstance-web"))
        assert pool["spec"]["replicas"] == 3
        assert pool["spec"]["clusterName"] == "demo--default"
        assert pool["spec"]["template"]["spec"]["bootstrap"] == {"dataSecretName": ""}

        async def whole() -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            is_listed = item is not None and len(item["spec"].get("providerIDList", ())) == 3  # follows the status
            return item if condition(item, "Ready") == "True" and is_listed else None

        ours = await cluster.until(whole)
        assert ours["spec"]["shards"] == ["zone-a", "zone-b"]
        assert ours["status"]["isStatic"] is True
        assert (ours["status"]["replicas"], ours["status"]["readyReplicas"]) == (3, 3)
        assert ours["status"]["initialization"] == {"provisioned": True}
        assert await sizes(cluster) == {"web--zone-a": 2, "web--zone-b": 1}
        # Cluster API's controllers look at nodes only when they are told that there is a control plane.
        assert condition(await cluster.get(kinds.CLUSTER, "demo--default"), "ControlPlaneInitialized") == "True"
        assert condition(await cluster.get(kinds.NSTANCE_CLUSTER, "demo--default"), "Ready") == "True"


async def test_a_scale_is_divided_and_reaches_the_shards(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        await cluster.until(lambda: cluster.get(kinds.MACHINE_POOL, "nstance-web"))
        await cluster.scale("web", 7)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 4)
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 3)
        await cluster.scale("web", 1)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 0)


async def test_a_scale_reads_only_the_groups_of_its_pool(tmp_path: Path, kubernetes: str) -> None:
    """With many pools, a list of all groups takes longer than the rest."""
    async with operating(tmp_path, kubernetes, TWO, start=False, drain_timeout="0") as cluster:
        listed: list[Kind] = []
        connect = cluster.connect

        def watching(access: Access) -> Kube:
            kube = connect(access)
            list_objects = kube.list

            async def record(kind: Kind, **selection: str) -> Listing:
                listed.append(kind)
                return await list_objects(kind, **selection)

            kube.list = record  # type: ignore[method-assign,assignment]
            return kube

        cluster.connect = watching
        await cluster.start()
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-b"))
        assert kinds.NSTANCE_SHARD_GROUP in listed  # by the mirror
        listed.clear()
        await cluster.scale("web", 7)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 4)
        await cluster.scale("web", 3)
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 1)
        assert kinds.NSTANCE_SHARD_GROUP not in listed


async def test_drift_is_repaired(tmp_path: Path, kubernetes: str) -> None:
    """Somebody changes the size at the server: Kubernetes is the truth."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="0") as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a"))
        world = cluster.shards["zone-a"]
        other = await world.operator()
        await other.call("UpsertGroup", key="web", config={"size": 5})

        async def repaired() -> bool:
            [group] = (await other.call("ListGroups")).groups
            return bool(group.size == 2)

        await cluster.until(repaired)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 2)


async def test_a_pool_made_in_kubernetes_becomes_a_group_and_goes_with_it(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {}, "zone-b": {}}) as cluster:
        await make_pool(cluster, "jobs", 2, ["zone-b"], template="web", vars={"greeting": "hi"})
        await cluster.until(lambda: len(cluster.running("zone-b", "jobs")) == 2)
        operator = await cluster.shards["zone-b"].operator()
        [group] = (await operator.call("ListGroups")).groups
        assert dict(group.vars)["greeting"] == "hi"
        await cluster.kube.patch(
            kinds.NSTANCE_MACHINE_POOL,
            "jobs",
            {"spec": {"vars": {"greeting": None, "other": "x"}}},
            namespace=cluster.namespace,
        )

        async def changed() -> bool:
            [group] = (await operator.call("ListGroups")).groups
            return dict(group.config.vars) == {"other": "x"}

        await cluster.until(changed)
        # From shard to shard: made there, drained here.
        await cluster.kube.patch(
            kinds.NSTANCE_MACHINE_POOL, "jobs", {"spec": {"shards": ["zone-a"]}}, namespace=cluster.namespace
        )
        await cluster.until(lambda: len(cluster.running("zone-a", "jobs")) == 2)
        await cluster.until(lambda: not cluster.running("zone-b", "jobs"))
        await cluster.kube.delete(kinds.MACHINE_POOL, "jobs", namespace=cluster.namespace)
        await cluster.until(lambda: gone(cluster, "jobs"))
        assert not cluster.running("zone-a", "jobs")
        assert not (await operator.call("ListGroups")).groups


async def gone(cluster: Cluster, name: str) -> bool:
    left = [await cluster.get(kind, name) for kind in (kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE_POOL)]
    return not any(left) and not await cluster.all(kinds.NSTANCE_SHARD_GROUP)


async def make_pool(cluster: Cluster, name: str, replicas: int, shards: list[str], **spec: object) -> None:
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": "NstanceMachinePool", "name": name}
    inner = {"clusterName": "demo--default", "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    await cluster.kube.create(
        kinds.MACHINE_POOL,
        {
            "metadata": {"name": name},
            "spec": {"clusterName": "demo--default", "replicas": replicas, "template": {"spec": inner}},
        },
        namespace=cluster.namespace,
    )
    await cluster.kube.create(
        kinds.NSTANCE_MACHINE_POOL,
        {"metadata": {"name": name}, "spec": {"group": name, "shards": shards, **spec}},
        namespace=cluster.namespace,
    )


async def test_a_group_that_the_shard_refuses_says_why(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {}}) as cluster:
        await make_pool(cluster, "jobs", 1, ["zone-a"], template="no-such-template")

        async def refused() -> Object | None:
            item = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "jobs--zone-a")
            return item if condition(item, "ConfigValid") == "False" else None

        item = await cluster.until(refused)
        assert any("no-such-template" in each["message"] for each in item["status"]["conditions"])
        await make_right(cluster)
        await cluster.until(lambda: len(cluster.running("zone-a", "jobs")) == 1)


async def make_right(cluster: Cluster) -> None:
    await cluster.kube.patch(
        kinds.NSTANCE_MACHINE_POOL, "jobs", {"spec": {"template": "web"}}, namespace=cluster.namespace
    )


async def test_a_static_pool_stays_where_its_configuration_has_it(tmp_path: Path, kubernetes: str) -> None:
    """Also where no webhook says so: what would be left on the other shard would be nobody's."""
    async with operating(tmp_path, kubernetes, TWO) as cluster:
        await cluster.until(lambda: ready(cluster, "nstance-web"))

        async def refused() -> str | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            conditions = [each for each in (item or {})["status"]["conditions"] if each["type"] == "Ready"]
            return conditions[0]["message"] if conditions[0]["reason"] == "ConfigInvalid" else None

        for change, why in (
            ({"shards": ["zone-a"]}, "spec.shards cannot be changed here"),
            ({"shards": ["zone-a", "zone-b"], "template": "other"}, "template is 'web' there and 'other' here"),
        ):
            patch = cluster.kube.patch(
                kinds.NSTANCE_MACHINE_POOL, "nstance-web", {"spec": change}, namespace=cluster.namespace
            )
            if kubernetes == "real":  # it evaluates the rules of the CRD
                with pytest.raises(errors.InvalidError, match="the group is static"):
                    await patch
                continue
            await patch
            assert why in await cluster.until(refused)
            assert await sizes(cluster) == {"web--zone-a": 2, "web--zone-b": 1}
            right = {"spec": {"shards": ["zone-a", "zone-b"], "template": None}}
            await cluster.kube.patch(kinds.NSTANCE_MACHINE_POOL, "nstance-web", right, namespace=cluster.namespace)
            await cluster.until(lambda: ready(cluster, "nstance-web"))


async def ready(cluster: Cluster, name: str) -> bool:
    return condition(await cluster.get(kinds.NSTANCE_MACHINE_POOL, name), "Ready") == "True"


async def test_a_silent_shard_delays_only_itself(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-b"))
        await cluster.shards["zone-b"].servers["a"].stop()

        async def unreachable() -> bool:
            item = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-b")
            return condition(item, "ShardReachable") == "False"

        await cluster.until(unreachable)
        await cluster.scale("web", 6)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 3)
        await cluster.shards["zone-b"].start("a")
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 3)


@pytest.mark.parametrize("half", [kinds.NSTANCE_MACHINE_POOL, kinds.MACHINE_POOL], ids=["ours", "theirs"])
async def test_a_paused_pool_is_left_alone(tmp_path: Path, kubernetes: str, half: kinds.Kind) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 1}}) as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a"))
        pool = "nstance-web"
        paused = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": "true"}}}
        await cluster.kube.patch(half, pool, paused, namespace=cluster.namespace)
        await make_pool(cluster, "later", 1, ["zone-a"], template="web")
        await cluster.scale("web", 3)
        await cluster.until(lambda: len(cluster.running("zone-a", "later")) == 1)  # what came after it was done
        assert await sizes(cluster) == {"web--zone-a": 1, "later--zone-a": 1}
        resumed = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": None}}}
        await cluster.kube.patch(half, pool, resumed, namespace=cluster.namespace)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 3)


async def test_a_pool_that_leaves_its_groups_behind_does_not_delete_them(tmp_path: Path, kubernetes: str) -> None:
    """`kubectl delete --cascade=orphan`: a finalizer says so, until Kubernetes has taken the groups from the pool."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, drain_timeout="0") as cluster:
        await make_pool(cluster, "jobs", 1, ["zone-a"], template="web")
        await cluster.until(lambda: ready(cluster, "jobs"))

        async def change(kind: kinds.Kind, name: str, **metadata: object) -> None:
            await cluster.kube.patch(kind, name, {"metadata": metadata}, namespace=cluster.namespace)

        if kubernetes == "real":  # its own controller takes the groups from the pool
            arguments = (
                "-n",
                cluster.namespace,
                "delete",
                "nstancemachinepool",
                "jobs",
                "--cascade=orphan",
                "--wait=false",
            )
            await asyncio.to_thread(real_kube.kubectl, Path(os.environ[REAL]), *arguments)
        else:
            await change(kinds.NSTANCE_MACHINE_POOL, "jobs", finalizers=["nstance.dev/operator", "orphan"])
            await cluster.kube.delete(kinds.NSTANCE_MACHINE_POOL, "jobs", namespace=cluster.namespace)
            await cluster.scale("web", 1)
            await cluster.until(lambda: cluster.running("zone-a", "web"))  # what came after it was done
            await change(kinds.NSTANCE_SHARD_GROUP, "jobs--zone-a", ownerReferences=None)
            await change(kinds.NSTANCE_MACHINE_POOL, "jobs", finalizers=["nstance.dev/operator"])

        async def gone() -> bool:
            return await cluster.get(kinds.NSTANCE_MACHINE_POOL, "jobs") is None

        await cluster.until(gone)
        left = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "jobs--zone-a")
        assert left is not None
        assert not left["metadata"].get("deletionTimestamp")
        assert len(cluster.running("zone-a", "jobs")) == 1


async def test_an_import_changes_nothing(tmp_path: Path, kubernetes: str) -> None:
    """Sizes that are far from even, and vars that one shard has of its own."""
    groups = {"zone-a": {"web": 4, "apart": 1}, "zone-b": {"web": 0, "apart": 2}}
    async with operating(tmp_path, kubernetes, groups, start=False) as cluster:
        other = await cluster.shards["zone-b"].operator()
        await other.call("UpsertGroup", key="apart", config={"vars": {"greeting": "servus"}})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 4)
        await cluster.until(lambda: len(cluster.running("zone-b", "apart")) == 2)
        before = {(shard, group): cluster.running(shard, group) for shard in groups for group in groups[shard]}
        await cluster.start()
        for pool in ("nstance-web", "nstance-apart", "nstance-apart-zone-b"):
            await cluster.until(lambda: ready(cluster, pool))  # noqa: B023
        assert await sizes(cluster) == {
            "web--zone-a": 4,
            "web--zone-b": 0,
            "apart--zone-a": 1,
            "apart--zone-b": 2,
        }
        after = {(shard, group): cluster.running(shard, group) for shard in groups for group in groups[shard]}
        assert after == before
        [apart] = [each for each in (await other.call("ListGroups")).groups if each.key == "apart"]
        assert dict(apart.config.vars) == {"greeting": "servus"}
        # They hold until the replicas change, and not after it.
        await cluster.scale("web", 5)
        await cluster.until(lambda: len(cluster.running("zone-b", "web")) == 1)
        assert cluster.running("zone-a", "web") == before["zone-a", "web"]
        pool = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web") or {}
        assert "shardSizes" not in pool["spec"]


async def test_fields_that_are_removed_go_back_to_the_template(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}) as cluster:
        await cluster.until(lambda: ready(cluster, "nstance-web"))
        operator = await cluster.shards["zone-a"].operator()

        async def change(**spec: object) -> None:
            await cluster.kube.patch(
                kinds.NSTANCE_MACHINE_POOL, "nstance-web", {"spec": spec}, namespace=cluster.namespace
            )

        async def shows(instance_type: str, greeting: str) -> None:
            async def look() -> bool:
                [group] = (await operator.call("ListGroups")).groups
                return (group.instance_type, group.vars["greeting"]) == (instance_type, greeting)

            await cluster.until(look)

        await change(instanceType="large", vars={"greeting": "hi"})
        await shows("large", "hi")
        await cluster.crash()
        await change(instanceType="", vars=None)
        await cluster.start()
        await shows("small", "hello")
        # What was set at the shard alone stays, and a condition names it.
        await operator.call("UpsertGroup", key="web", config={"instance_type": "huge", "size": 0})

        expected = "set at the shard and not named here: instanceType is 'huge'"
        named = (
            (kinds.NSTANCE_SHARD_GROUP, "web--zone-a", ""),
            (kinds.NSTANCE_MACHINE_POOL, "nstance-web", "zone-a: "),
        )
        for kind, name, shard in named:

            async def says(kind: Kind = kind, name: str = name, message: str = shard + expected) -> bool:
                found = resources.condition(await cluster.get(kind, name) or {}, "InSync")
                return (found.get("status"), found.get("message")) == ("False", message)

            await cluster.until(says)


async def test_a_mistyped_shard_does_not_keep_a_pool(tmp_path: Path, kubernetes: str) -> None:
    """Nothing was ever asked of a shard that nobody has configured, so nothing has to be confirmed."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, drain_timeout="0") as cluster:
        await make_pool(cluster, "jobs", 2, ["zone-a", "zone-typo"], template="web")
        await cluster.until(lambda: cluster.running("zone-a", "jobs"))
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "jobs--zone-typo"))
        await cluster.kube.delete(kinds.MACHINE_POOL, "jobs", namespace=cluster.namespace)

        async def gone() -> bool:
            return await cluster.get(kinds.NSTANCE_MACHINE_POOL, "jobs") is None

        await cluster.until(gone)
        assert not cluster.running("zone-a", "jobs")
