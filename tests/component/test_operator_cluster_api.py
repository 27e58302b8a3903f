"""The operator beside Cluster API's own controllers and webhooks, at a real API server: who writes what, and who waits for
whom. Only `make test-kube` has both; everywhere else these are skipped.

What Cluster API is known to do that we rely on, or guard against, is named at each test.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from component.cluster_api_world import NEEDS_CLUSTER_API, together
from component.operator_world import REAL, Cluster
from component.test_operator_pools import make_pool
from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.providers.memory_behavior import Call, Outcome
from support import real_kube

pytestmark = NEEDS_CLUSTER_API

NAME = "demo--default"
DEPLOYMENT = Kind(kinds.CAPI, "v1beta2", "MachineDeployment", "machinedeployments")


def condition(item: Object, type: str) -> str:
    return next((each["status"] for each in resources.status(item).get("conditions", ()) if each["type"] == type), "")


def controller(item: Object) -> tuple[str, str] | None:
    found = [each for each in item["metadata"].get("ownerReferences", ()) if each.get("controller")]
    return (found[0]["kind"], found[0]["name"]) if found else None


def whole(cluster: Cluster, name: str, count: int) -> Callable[[], Awaitable[Object | None]]:
    """Cluster API says that the pool runs, with that many nodes."""

    async def look() -> Object | None:
        pool = await cluster.get(kinds.MACHINE_POOL, name)
        status = resources.status(pool or {})
        runs = status.get("phase") == "Running" and len(status.get("nodeRefs") or ()) == count == status.get("replicas")
        return pool if runs else None

    return look


async def test_an_imported_pool_runs_and_scales(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cluster API finds nodes by comparing provider IDs letter by letter, and reads `status.ready` of a pool as "it was
    provisioned": while that is false it forgets replicas and nodes."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 2}, "zone-b": {"web": 1}}) as cluster:
        pool = await cluster.until(whole(cluster, "nstance-web", 3))
        ours = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
        found = await cluster.get(kinds.CLUSTER, NAME)
        assert ours is not None
        assert found is not None
        nodes = await cluster.nodes()
        ids = sorted(node["spec"]["providerID"] for node in nodes.values())
        assert pool["spec"]["providerIDList"] == ours["spec"]["providerIDList"] == ids
        assert controller(ours) == ("MachinePool", "nstance-web")
        assert resources.is_owned_by(pool, resources.uid(found))
        assert {each["metadata"]["annotations"]["cluster.x-k8s.io/owner-name"] for each in nodes.values()} == {
            "nstance-web"
        }
        cluster.shards["zone-b"].behavior.then(Call.CREATE, Outcome(before=6.0))
        scale = ("scale", "machinepool", "nstance-web", "--replicas=5", "-n", cluster.namespace)
        await asyncio.to_thread(real_kube.kubectl, Path(os.environ[REAL]), *scale)
        await cluster.until(lambda: _is_in(cluster, "ScalingUp", 4))  # one is there, one is long in coming
        await cluster.until(whole(cluster, "nstance-web", 5))
        await cluster.scale("web", 1)
        await cluster.until(whole(cluster, "nstance-web", 1))


async def _is_in(cluster: Cluster, phase: str, nodes: int) -> bool:
    """Cluster API says that the pool is in this phase, and follows its nodes."""
    pool = await cluster.get(kinds.MACHINE_POOL, "nstance-web")
    status = resources.status(pool or {})
    assert status["initialization"]["infrastructureProvisioned"] is True
    return bool(status["phase"] == phase and len(status.get("nodeRefs") or ()) == nodes)


async def test_the_cluster_is_accepted_and_then_nobody_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The NstanceControlPlane says that there is a control plane. Without it the Cluster would never be available."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 1}}) as cluster:
        await cluster.until(whole(cluster, "nstance-web", 1))

        async def connected() -> Object | None:
            found = await cluster.get(kinds.CLUSTER, NAME)
            return found if found is not None and condition(found, "Available") == "True" else None

        found = await cluster.until(connected)
        assert found["status"]["phase"] == "Provisioned"
        assert found["status"]["initialization"] == {"controlPlaneInitialized": True, "infrastructureProvisioned": True}
        assert [each["name"] for each in found["status"]["failureDomains"]] == ["zone-a"]
        initialized = ("ControlPlaneInitialized", "ControlPlaneAvailable", "InfrastructureReady", "WorkersAvailable")
        for each in initialized:
            assert condition(found, each) == "True", each

        async def quiet() -> bool:
            before = await _versions(cluster)
            await asyncio.sleep(5)  # Cluster API looks at an object once a second at most
            return await _versions(cluster) == before

        await cluster.until(quiet)


async def _versions(cluster: Cluster) -> dict[tuple[str, str], str]:
    watched = (
        kinds.CLUSTER,
        kinds.NSTANCE_CLUSTER,
        kinds.NSTANCE_CONTROL_PLANE,
        kinds.MACHINE_POOL,
        kinds.MACHINE,
        kinds.NSTANCE_MACHINE,
        kinds.NSTANCE_MACHINE_POOL,
        kinds.NSTANCE_SHARD_GROUP,
        kinds.NODE,
    )
    return {
        (kind.name, resources.name(item)): item["metadata"]["resourceVersion"]
        for kind in watched
        for item in await cluster.all(kind)
    }


async def test_a_node_that_drains_is_not_deleted_under_its_pods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cluster API deletes the Node of a provider ID that a pool no longer lists."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 1}}, drain_timeout="60s") as cluster:
        await cluster.until(whole(cluster, "nstance-web", 1))
        [(name, node)] = (await cluster.nodes()).items()
        await cluster.pod("guarded", node=name, labels={"app": "guarded"})
        healthy = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await cluster.kube.patch(
            kinds.POD, "guarded", {"status": healthy}, namespace=cluster.namespace, subresource="status"
        )
        budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
        await cluster.kube.create(
            kinds.POD_DISRUPTION_BUDGET, {"metadata": {"name": "guard"}, **budget}, namespace=cluster.namespace
        )
        await cluster.scale("web", 0)

        async def refused() -> bool:
            listing = await cluster.kube.list(kinds.EVENT, fields=f"involvedObject.name={name}")
            return any(each["reason"] == "EvictionRefused" for each in listing.items)

        await cluster.until(refused)
        await cluster.until(lambda: _is_in(cluster, "ScalingDown", 1))
        await asyncio.sleep(3)  # time for a controller that would delete it
        found = await cluster.get(kinds.NODE, name)
        assert found is not None
        assert resources.uid(found) == resources.uid(node)
        await cluster.kube.delete(kinds.POD_DISRUPTION_BUDGET, "guard", namespace=cluster.namespace)
        await cluster.until(lambda: _is_gone(cluster, kinds.NODE, name))
        pool = await cluster.until(whole(cluster, "nstance-web", 0))
        assert not pool["spec"].get("providerIDList")


async def _is_gone(cluster: Cluster, kind: Kind, name: str) -> bool:
    return await cluster.get(kind, name) is None


async def test_a_pod_gets_a_machine_that_runs_and_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cluster API deletes the Node when the instance is gone. Draining is the operator's: an annotation says so."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 0}}, drain_timeout="60s") as cluster:
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        machine = await cluster.until(lambda: _running_machine(cluster))
        [(name, node)] = (await cluster.nodes()).items()
        item = await cluster.get(kinds.NSTANCE_MACHINE, resources.name(machine))
        assert item is not None
        assert machine["spec"]["providerID"] == item["spec"]["providerID"] == node["spec"]["providerID"]
        assert machine["status"]["nodeRef"] == {"name": name}
        assert machine["status"]["failureDomain"] == "zone-a"
        assert controller(item) == ("Machine", resources.name(machine))
        await cluster.pod("other", node=name)
        await cluster.kube.delete(kinds.POD, "job", namespace=cluster.namespace)
        await cluster.until(lambda: _nothing_left(cluster))
        assert await _is_gone(cluster, kinds.POD, "other")


async def _running_machine(cluster: Cluster) -> Object | None:
    for machine in await _on_demand(cluster, kinds.MACHINE):
        if condition(machine, "Ready") == "True" and resources.status(machine).get("phase") == "Running":
            return machine
    return None


async def _nothing_left(cluster: Cluster) -> bool:
    return await _no_machines(cluster) and not await cluster.nodes()


async def test_machines_of_a_deployment_are_made_replaced_and_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cluster API copies the NstanceMachineTemplate, and replaces a Machine that went because its instance did."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 0}}) as cluster:
        await cluster.until(lambda: cluster.get(kinds.CLUSTER, NAME))
        await _deploy(cluster, "jobs", 2)
        await cluster.until(lambda: _run(cluster, 2))
        items = await cluster.all(kinds.NSTANCE_MACHINE)
        assert len(items) == 2, "none was left behind"
        for item in items:
            assert resources.labels(item)["team"] == "a"
            assert resources.annotations(item)["note"] == "x"
        before = {resources.uid(each) for each in await cluster.all(kinds.MACHINE)}
        lost = items[0]["status"]["instanceID"]
        server = await cluster.shards["zone-a"].operator()
        await server.call("DeleteInstance", instance_id=lost)

        async def replaced() -> bool:
            now = {resources.uid(each) for each in await cluster.all(kinds.MACHINE)}
            return len(now & before) == 1 and await _run(cluster, 2)

        await cluster.until(replaced)
        await cluster.kube.delete(DEPLOYMENT, "jobs", namespace=cluster.namespace)
        await cluster.until(lambda: _nothing_left(cluster))


async def _deploy(cluster: Cluster, name: str, replicas: int) -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "x"}}
    inner = {"metadata": metadata, "spec": {"group": "web"}}
    template: Object = {"metadata": {"name": name}, "spec": {"template": inner}}
    await cluster.kube.create(kinds.NSTANCE_MACHINE_TEMPLATE, template, namespace=cluster.namespace)
    machine = {
        "clusterName": NAME,
        "bootstrap": {"dataSecretName": ""},
        "infrastructureRef": {
            "apiGroup": kinds.INFRASTRUCTURE,
            "kind": kinds.NSTANCE_MACHINE_TEMPLATE.name,
            "name": name,
        },
    }
    spec = {"clusterName": NAME, "replicas": replicas, "template": {"spec": machine}}
    await cluster.kube.create(DEPLOYMENT, {"metadata": {"name": name}, "spec": spec}, namespace=cluster.namespace)


async def _run(cluster: Cluster, count: int) -> bool:
    machines = await cluster.all(kinds.MACHINE)
    return len(machines) == count and all(condition(each, "Ready") == "True" for each in machines)


async def test_a_deleted_cluster_takes_everything_with_it_and_stays_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cluster API waits until the object behind the Cluster is gone: if the operator created it again, the wait would last for
    ever. The VMs of a static group stay; Kubernetes has only lost sight of them, until somebody creates the Cluster again."""
    async with together(tmp_path, caplog, {"zone-a": {"web": 1}}) as cluster:
        await cluster.until(whole(cluster, "nstance-web", 1))
        await make_pool(cluster, "jobs", 2, ["zone-a"], template="web")
        await cluster.until(whole(cluster, "jobs", 2))
        first = await cluster.get(kinds.CLUSTER, NAME)
        assert first is not None
        await cluster.kube.delete(kinds.CLUSTER, NAME, namespace=cluster.namespace)

        await cluster.until(lambda: _is_gone(cluster, kinds.CLUSTER, NAME))
        await cluster.until(lambda: "Cluster was deleted, nothing is created" in caplog.text)
        for kind in (kinds.NSTANCE_CLUSTER, kinds.NSTANCE_CONTROL_PLANE, kinds.MACHINE_POOL, kinds.NSTANCE_MACHINE):
            assert not await cluster.all(kind), kind
        assert not cluster.running("zone-a", "jobs")
        assert len(cluster.running("zone-a", "web")) == 1
        again = {"metadata": {"name": NAME}, "spec": first["spec"]}
        await cluster.kube.create(kinds.CLUSTER, again, namespace=cluster.namespace)
        await cluster.until(whole(cluster, "nstance-web", 1))


async def test_cluster_api_that_comes_later_takes_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the operator wrote in its place is accepted. And since Cluster API makes its Cluster an owner of each Machine,
    Kubernetes does not clear up after a pod that went while the operator was away: the operator does."""

    async def alone(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})

        async def filled_in() -> bool:
            machines = await _on_demand(cluster, kinds.MACHINE)
            return any("nodeRef" in resources.status(each) for each in machines)

        await cluster.until(filled_in)

    async with together(tmp_path, caplog, {"zone-a": {"web": 1}}, alone=alone) as cluster:
        await cluster.until(whole(cluster, "nstance-web", 1))
        await cluster.until(lambda: _running_machine(cluster))
        await cluster.stop()
        await cluster.kube.delete(kinds.POD, "job", namespace=cluster.namespace)
        await asyncio.sleep(2)  # time for a controller that would clean up
        assert len(await _on_demand(cluster, kinds.MACHINE)) == 1
        await cluster.start()
        await cluster.until(lambda: _has_no_on_demand_machines(cluster))
        await cluster.until(lambda: _has_pool_machines(cluster, 1))


async def _no_machines(cluster: Cluster) -> bool:
    return not any([await cluster.all(kind) for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE)])


async def _on_demand(cluster: Cluster, kind: Kind) -> list[Object]:
    """Without those of pools."""
    return [each for each in await cluster.all(kind) if resources.POOL_LABEL not in resources.labels(each)]


async def _has_no_on_demand_machines(cluster: Cluster) -> bool:
    return not any([await _on_demand(cluster, kind) for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE)])


async def _has_pool_machines(cluster: Cluster, count: int) -> bool:
    """As Cluster API sees them: running, each with its node."""
    machines = [each for each in await cluster.all(kinds.MACHINE) if resources.POOL_LABEL in resources.labels(each)]
    run = [
        each for each in machines if resources.status(each).get("phase") == "Running" and "nodeRef" in each["status"]
    ]
    return len(machines) == len(run) == count
