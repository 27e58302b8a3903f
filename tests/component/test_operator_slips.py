"""What people type by mistake, and delete by hand: it is said, it loses nothing, and mending it is enough."""

import contextlib
import uuid
from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.model import ids

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

TWO = {"zone-a": {"web": 2}, "zone-b": {"web": 1}}
GROUP = "on-demand.nstance.dev/group"


def ready(item: Object | None) -> Object:
    found = (item or {}).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == "Ready"), {})


async def settled(cluster: Cluster) -> set[str]:
    """All three run, and the pool says so."""

    async def whole() -> bool:
        return ready(await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")).get("status") == "True"

    await cluster.until(whole)
    await cluster.until(lambda: len(running(cluster)) == 3)
    return running(cluster)


def running(cluster: Cluster) -> set[str]:
    return {id for shard in cluster.shards for id in cluster.running(shard, "web")}


async def sizes(cluster: Cluster) -> dict[str, int]:
    return {item["metadata"]["name"]: item["spec"]["size"] for item in await cluster.all(kinds.NSTANCE_SHARD_GROUP)}


async def patch(cluster: Cluster, kind: kinds.Kind, name: str, body: Object) -> None:
    await cluster.kube.patch(kind, name, body, namespace=cluster.namespace)


@pytest.mark.parametrize("replicas", [-2, "five", 2**31])
async def test_malformed_replicas_do_not_mean_zero(tmp_path: Path, kubernetes: str, replicas: object) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        before = await settled(cluster)
        with pytest.raises(errors.InvalidError, match="replicas"):
            await patch(cluster, kinds.MACHINE_POOL, "nstance-web", {"spec": {"replicas": replicas}})
        assert await sizes(cluster) == {"web--zone-a": 2, "web--zone-b": 1}
        assert await settled(cluster) == before


async def test_a_shard_group_of_a_static_pool_that_is_deleted_by_hand_comes_back(
    tmp_path: Path, kubernetes: str
) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        before = await settled(cluster)
        old = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a")
        await cluster.kube.delete(kinds.NSTANCE_SHARD_GROUP, "web--zone-a", namespace=cluster.namespace)

        async def another() -> bool:
            found = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a")
            return found is not None and old is not None and found["metadata"]["uid"] != old["metadata"]["uid"]

        await cluster.until(another)
        assert await settled(cluster) == before
        await cluster.scale("web", 5)
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 3)


async def test_a_shard_group_is_not_moved_to_another_shard_by_hand(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        before = await settled(cluster)
        with contextlib.suppress(errors.InvalidError):  # where the schema says so already
            await patch(cluster, kinds.NSTANCE_SHARD_GROUP, "web--zone-a", {"spec": {"shard": "zone-b"}})

        async def back() -> bool:
            found = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a")
            return found is not None and found["spec"]["shard"] == "zone-a" and ready(found)["status"] == "True"

        await cluster.until(back)
        assert await settled(cluster) == before


async def test_a_pod_shows_an_unknown_group_and_may_ask_for_another(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}) as cluster:
        await cluster.pod("job", annotations={GROUP: "nosuch"})

        async def is_noted() -> bool:
            listing = await cluster.kube.list(
                kinds.EVENT, namespace=cluster.namespace, fields="involvedObject.name=job"
            )
            return any(
                each["reason"] == "NodeNotMade"
                and "no shard that can be reached has a group 'nosuch'" in each["message"]
                for each in listing.items
            )

        await cluster.until(is_noted)
        await patch(cluster, kinds.POD, "job", {"metadata": {"annotations": {GROUP: "web"}}})
        [instance] = await cluster.until(lambda: cluster.running("zone-a", "web"))
        await cluster.kube.delete(kinds.POD, "job", namespace=cluster.namespace)
        await cluster.until(lambda: instance not in cluster.running("zone-a", "web"))


async def test_objects_that_are_not_of_their_kinds_shape_hold_nobody_up(tmp_path: Path, kubernetes: str) -> None:
    """Cluster API's kinds have no schema in dev-k8s until their CRDs are applied, and files are edited by hand."""
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0") as cluster:
        await settled(cluster)
        for kind, spec in (
            (kinds.MACHINE, {"infrastructureRef": [1]}),
            (kinds.MACHINE, "text"),
            (kinds.MACHINE_POOL, {"replicas": 1, "template": "text"}),
            (kinds.MACHINE_POOL, {"replicas": 1, "template": {"spec": {"infrastructureRef": 5}}}),
            (kinds.NODE, {"providerID": 7}),
        ):
            with contextlib.suppress(errors.InvalidError):
                name = {"generateName": "odd-"}
                await cluster.kube.create(kind, {"metadata": name, "spec": spec}, namespace=cluster.namespace)
        await cluster.pod("job", annotations={GROUP: "web"})
        await cluster.until(lambda: len(running(cluster)) == 4)
        await cluster.scale("web", 1)
        await cluster.until(lambda: len(running(cluster)) == 2)


async def test_an_id_that_somebody_wrote_does_not_keep_its_machine(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}) as cluster:
        noted = {"nstance.dev/instance-uuid": "nonsense", "nstance.dev/shard": "zone-a"}
        metadata = {"name": "odd", "annotations": noted, "finalizers": ["nstance.dev/operator"]}
        await cluster.kube.create(
            kinds.NSTANCE_MACHINE, {"metadata": metadata, "spec": {"group": "web"}}, namespace=cluster.namespace
        )

        async def refused() -> bool:
            return ready(await cluster.get(kinds.NSTANCE_MACHINE, "odd")).get("reason") == "Refused"

        await cluster.until(refused)
        await cluster.kube.delete(kinds.NSTANCE_MACHINE, "odd", namespace=cluster.namespace)

        async def gone() -> bool:
            return await cluster.get(kinds.NSTANCE_MACHINE, "odd") is None

        await cluster.until(gone)


async def test_a_pod_is_not_alarmed_while_shards_have_not_answered(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}, "zone-b": {}}) as cluster:
        await cluster.until(lambda: cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a"))
        await cluster.shards["zone-a"].servers["a"].stop()

        async def unreachable() -> bool:
            item = await cluster.get(kinds.NSTANCE_SHARD_GROUP, "web--zone-a")
            found = (item or {}).get("status", {}).get("conditions", [])
            return any(each["type"] == "ShardReachable" and each["status"] == "False" for each in found)

        await cluster.until(unreachable)
        await cluster.pod("job", annotations={GROUP: "web"})

        async def waits() -> bool:
            items = await cluster.all(kinds.NSTANCE_MACHINE)
            return bool(items) and ready(items[0]).get("reason") == "ShardUnreachable"

        await cluster.until(waits)
        await cluster.shards["zone-a"].start("a")
        await cluster.until(lambda: cluster.running("zone-a", "web"))
        events = await cluster.kube.list(kinds.EVENT, namespace=cluster.namespace, fields="involvedObject.name=job")
        assert "NodeRequested" in {each["reason"] for each in events.items}
        assert {each["type"] for each in events.items} == {"Normal"}


async def test_shard_groups_that_nobody_owns_are_taken_over(tmp_path: Path, kubernetes: str) -> None:
    """As after `kubectl delete --cascade=orphan`, once the group is imported again."""
    async with operating(tmp_path, kubernetes, TWO, drain_timeout="0", start=False) as cluster:
        for shard, size in (("zone-a", 2), ("zone-b", 1)):
            left = {"metadata": {"name": f"web--{shard}"}, "spec": {"group": "web", "shard": shard, "size": size}}
            await cluster.kube.create(kinds.NSTANCE_SHARD_GROUP, left, namespace=cluster.namespace)
        await cluster.start()
        await settled(cluster)
        await cluster.scale("web", 1)
        await cluster.until(lambda: len(running(cluster)) == 1)


@pytest.mark.parametrize(
    "kept",
    [{}, {"nstance.dev/instance-uuid": None}, {"nstance.dev/instance-uuid": None, "nstance.dev/shard": "zone-b"}],
    ids=["nothing", "the number", "another shard"],
)
async def test_a_machine_that_is_replaced_keeps_its_instance(
    tmp_path: Path, kubernetes: str, kept: dict[str, str | None]
) -> None:
    """`kubectl replace` drops annotations and finalizers: the shard of the instance must not be chosen again."""
    both = {"zone-a": {"web": 0}, "zone-b": {"web": 0}}
    async with operating(tmp_path, kubernetes, both, drain_timeout="0") as cluster:
        body: Object = {"metadata": {"name": "alone"}, "spec": {"group": "web"}}
        await cluster.kube.create(kinds.NSTANCE_MACHINE, body, namespace=cluster.namespace)

        async def made() -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE, "alone")
            return item if ready(item).get("status") == "True" and item["spec"].get("providerID") else None  # type: ignore[index]

        before = await cluster.until(made)
        instances = cluster.running("zone-a", "web")
        noted = before["metadata"]["annotations"]
        await cluster.stop()
        typed = {key: value or noted[key] for key, value in kept.items()}
        metadata = {"name": "alone", "namespace": cluster.namespace, "annotations": typed}
        metadata["resourceVersion"] = (await made() or {})["metadata"]["resourceVersion"]
        await cluster.kube.replace(kinds.NSTANCE_MACHINE, {**before, "metadata": metadata})
        await cluster.start()

        async def held() -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE, "alone")
            assert item is not None
            return item if item["metadata"].get("finalizers") else None

        after = await cluster.until(held)
        stored = after["metadata"]["annotations"]["nstance.dev/instance-uuid"]
        in_id = ids.uuid_of(ids.InstanceId(before["status"]["instanceID"]))  # all that is left without the annotation
        assert stored in (noted["nstance.dev/instance-uuid"], str(uuid.UUID(int=in_id)))
        await cluster.kube.delete(kinds.NSTANCE_MACHINE, "alone", namespace=cluster.namespace)
        await cluster.until(lambda: not cluster.running("zone-a", "web"))
        assert len(instances) == 1


async def test_a_pool_may_have_a_longer_name_than_a_label(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {}}, drain_timeout="0") as cluster:
        name = f"batch.{'long-' * 40}name"
        reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": "NstanceMachinePool", "name": name}
        inner = {"clusterName": "demo--default", "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
        theirs = {"clusterName": "demo--default", "replicas": 1, "template": {"spec": inner}}
        ours = {"group": "web", "shards": ["zone-a"], "template": "web"}
        for kind, named, spec in ((kinds.MACHINE_POOL, "short", theirs), (kinds.NSTANCE_MACHINE_POOL, name, ours)):
            await cluster.kube.create(kind, {"metadata": {"name": named}, "spec": spec}, namespace=cluster.namespace)

        async def whole() -> bool:
            return ready(await cluster.get(kinds.NSTANCE_MACHINE_POOL, name)).get("status") == "True"

        await cluster.until(whole)
        await cluster.kube.delete(kinds.MACHINE_POOL, "short", namespace=cluster.namespace)

        async def gone() -> bool:
            return not await cluster.get(kinds.NSTANCE_MACHINE_POOL, name)

        await cluster.until(gone)
        assert not running(cluster)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_a_machine_made_from_the_yaml_of_another_gets_an_instance_of_its_own(
    tmp_path: Path, kubernetes: str, stopped: bool
) -> None:
    """`kubectl get -o yaml`, renamed and applied: the number of the first one's instance comes with it. `stopped`: it is
    deleted before the operator has seen it."""
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, drain_timeout="0") as cluster:
        body: Object = {"metadata": {"name": "one"}, "spec": {"group": "web"}}
        await cluster.kube.create(kinds.NSTANCE_MACHINE, body, namespace=cluster.namespace)

        async def made(name: str) -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE, name)
            return item if item and ready(item).get("status") == "True" and item["spec"].get("providerID") else None

        one = await cluster.until(lambda: made("one"))
        if stopped:
            await cluster.stop()
        kept = {key: one["metadata"][key] for key in ("annotations", "finalizers")}
        copy: Object = {"metadata": {"name": "a-copy", **kept}, "spec": one["spec"]}
        await cluster.kube.create(kinds.NSTANCE_MACHINE, copy, namespace=cluster.namespace)
        if not stopped:
            two = await cluster.until(lambda: made("a-copy"))
            for key, part in (("instanceID", "status"), ("providerID", "spec")):
                assert two[part][key] != one[part][key]
            assert len(running(cluster)) == 2
        await cluster.kube.delete(kinds.NSTANCE_MACHINE, "a-copy", namespace=cluster.namespace)
        if stopped:
            await cluster.start()

        async def alone() -> bool:
            return len(await cluster.all(kinds.NSTANCE_MACHINE)) == 1

        await cluster.until(alone)
        assert running(cluster) == {one["status"]["instanceID"]}
