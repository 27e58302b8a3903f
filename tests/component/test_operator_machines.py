"""Machines and on-demand pods: one instance each, whatever dies in between; against every Kubernetes there is."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from nstance.kube import errors, kinds
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Kube, Object
from nstance.objects.errors import UnavailableError
from nstance.objects.memory import Fate
from nstance.operator.controllers import machines, resources
from nstance.operator.controllers.shard_groups import ABANDON_ANNOTATION
from nstance.operator.options import Waits
from nstance.providers.errors import PermanentError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.providers.port import Status

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)

ONE = {"zone-a": {"web": 0}}
BOTH = {"zone-a": {"web": 0}, "zone-b": {"web": 0}}


async def make_machine(cluster: Cluster, name: str, **spec: object) -> None:
    await make_only_machine(cluster, name)
    await cluster.kube.create(
        kinds.NSTANCE_MACHINE, {"metadata": {"name": name}, "spec": spec}, namespace=cluster.namespace
    )


async def make_only_machine(cluster: Cluster, name: str) -> None:
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": "NstanceMachine", "name": name}
    await cluster.kube.create(
        kinds.MACHINE,
        {
            "metadata": {"name": name},
            "spec": {
                "clusterName": "demo--default",
                "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": reference,
            },
        },
        namespace=cluster.namespace,
    )


async def ready(cluster: Cluster, name: str) -> Object | None:
    item = await cluster.get(kinds.NSTANCE_MACHINE, name)
    return item if item is not None and resources.status(item).get("ready") else None


def alive(cluster: Cluster, shard: str) -> int:
    """All VMs of the cloud, known or not."""
    return sum(vm.status in (Status.PENDING, Status.RUNNING) for vm in cluster.shards[shard].cloud.vms())


async def test_a_machine_becomes_an_instance_and_goes_with_it(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, BOTH, drain_timeout="0") as cluster:
        await make_machine(cluster, "alone", group="web", failureDomain="zone-b")
        item = await cluster.until(lambda: ready(cluster, "alone"))
        [instance] = cluster.running("zone-b", "web")
        assert item["status"]["instanceID"] == instance
        assert item["status"]["shard"] == "zone-b"
        assert item["status"]["initialization"] == {"provisioned": True}
        assert {"type": "InternalIP"}.items() <= item["status"]["addresses"][0].items()

        async def whole() -> Object | None:
            machine = await cluster.get(kinds.MACHINE, "alone")
            return machine if machine is not None and resources.status(machine).get("nodeRef") else None

        machine = await cluster.until(whole)
        assert machine["status"]["nodeRef"]["name"] == instance
        assert machine["spec"]["providerID"] == (await item_of(cluster, "alone"))["spec"]["providerID"]
        await cluster.kube.delete(kinds.MACHINE, "alone", namespace=cluster.namespace)
        await cluster.until(lambda: missing(cluster, "alone"))
        assert alive(cluster, "zone-b") == 0


async def test_a_machine_from_a_template_is_not_touched_before_its_machine_exists(
    tmp_path: Path, kubernetes: str
) -> None:
    """Cluster API creates it, writes it on the version that it has read, and then creates the Machine. After a conflict it
    would make another one, and leave this one and its instance behind."""
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        annotations = {"cluster.x-k8s.io/cloned-from-name": "jobs"}
        body: Object = {"metadata": {"name": "jobs-1", "annotations": annotations}, "spec": {"group": "web"}}
        made = await cluster.kube.create(kinds.NSTANCE_MACHINE, body, namespace=cluster.namespace)
        await make_machine(cluster, "alone", group="web")
        await cluster.until(lambda: ready(cluster, "alone"))
        assert (await item_of(cluster, "jobs-1"))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        assert alive(cluster, "zone-a") == 1
        await make_only_machine(cluster, "jobs-1")
        await cluster.until(lambda: ready(cluster, "jobs-1"))
        for name in ("alone", "jobs-1"):
            await cluster.kube.delete(kinds.MACHINE, name, namespace=cluster.namespace)
            await cluster.until(lambda name=name: missing(cluster, name))  # type: ignore[misc]
        assert alive(cluster, "zone-a") == 0


async def item_of(cluster: Cluster, name: str) -> Object:
    found = await cluster.get(kinds.NSTANCE_MACHINE, name)
    assert found is not None
    return found


async def missing(cluster: Cluster, name: str) -> bool:
    return await cluster.get(kinds.NSTANCE_MACHINE, name) is None and await cluster.get(kinds.MACHINE, name) is None


@pytest.mark.parametrize("spelling", [{"groupRef": "web"}, {"groupRef": {"name": "web"}}], ids=["name", "object"])
async def test_a_group_may_be_spelled_as_a_reference(
    tmp_path: Path, kubernetes: str, spelling: dict[str, object]
) -> None:
    async with operating(tmp_path, kubernetes, ONE) as cluster:
        await make_machine(cluster, "alone", **spelling)
        await cluster.until(lambda: ready(cluster, "alone"))


async def test_an_operator_that_dies_anywhere_makes_no_second_instance(tmp_path: Path, kubernetes: str) -> None:
    """Crashed ever later while a machine is made, until it is made: there is one VM, and never was another."""
    async with operating(tmp_path, kubernetes, BOTH, start=False) as cluster:
        await cluster.start()
        for number in range(12):
            name = f"m{number}"
            await make_machine(cluster, name, group="web")
            for _ in range(number * 4):
                await asyncio.sleep(0)
            await asyncio.sleep(0.002 * number)
            await cluster.crash()
            await cluster.start()
            await cluster.until(lambda name=name: ready(cluster, name))  # type: ignore[misc]
        assert alive(cluster, "zone-a") + alive(cluster, "zone-b") == 12
        assert sum(len(world.agents) for world in cluster.shards.values()) == 12  # one for each VM that ever booted


async def test_an_instance_that_the_server_deletes_takes_its_machine_with_it(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        await make_machine(cluster, "alone", group="web")
        item = await cluster.until(lambda: ready(cluster, "alone"))
        other = await cluster.shards["zone-a"].operator()
        await other.call("DeleteInstance", instance_id=item["status"]["instanceID"])
        await cluster.until(lambda: missing(cluster, "alone"))


async def test_a_machine_of_a_shard_that_is_gone_for_good_can_be_let_go(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, BOTH, drain_timeout="0") as cluster:
        await make_machine(cluster, "alone", group="web", failureDomain="zone-b")
        await cluster.until(lambda: ready(cluster, "alone"))
        cluster.configure("zone-a")
        await cluster.until(lambda: "zone-b" not in cluster.links.names())
        for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE):
            await cluster.kube.delete(kind, "alone", namespace=cluster.namespace)

        async def stuck() -> bool:
            found = resources.status(await item_of(cluster, "alone")).get("conditions", [])
            return any(ABANDON_ANNOTATION in each["message"] for each in found)

        await cluster.until(stuck)
        let_go = {"metadata": {"annotations": {ABANDON_ANNOTATION: "true"}}}
        await cluster.kube.patch(kinds.NSTANCE_MACHINE, "alone", let_go, namespace=cluster.namespace)
        await cluster.until(lambda: missing(cluster, "alone"))
        assert alive(cluster, "zone-b") == 1


async def test_an_instance_whose_record_is_written_late_goes_with_its_machine(tmp_path: Path, kubernetes: str) -> None:
    """The shard has decided, its journal takes nothing for longer than any call waits, and the operator that asked is dead.
    Afterwards the shard's events still lack the instance."""
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        world = cluster.shards["zone-a"]
        world.fate = lambda verb, key: Fate(error=UnavailableError("slow down")) if "/journal/" in key else Fate()
        await make_machine(cluster, "alone", group="web")
        await cluster.until(lambda: len(world.leader.shard.instances) == 1)
        await cluster.crash()
        for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE):
            with contextlib.suppress(errors.NotFoundError):
                await cluster.kube.delete(kind, "alone", namespace=cluster.namespace)
        cluster.waits = Waits(call_settled=0.05, vm_gone_check=0.5)
        operator = await cluster.start()

        async def concluded() -> bool:
            asked = b'call="GetInstanceStatus",code="UNREACHABLE"' in operator.metrics.render()
            return asked or await cluster.get(kinds.NSTANCE_MACHINE, "alone") is None

        await cluster.until(concluded)
        assert await cluster.get(kinds.NSTANCE_MACHINE, "alone") is not None
        world.fate = lambda verb, key: Fate()
        await cluster.until(lambda: missing(cluster, "alone"))
        await cluster.until(lambda: alive(cluster, "zone-a") == 0)
        assert not world.leader.shard.instances or cluster.running("zone-a", "web") == []


async def test_an_unknown_group_and_an_unknown_shard_are_reported(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE) as cluster:
        for name, spec, why in (
            ("a", {"group": "nope"}, "no shard that can be reached has a group 'nope'"),
            ("b", {"group": "web", "failureDomain": "zone-z"}, "there is no shard 'zone-z'"),
            ("c", {"instanceType": "x"}, "spec.group is missing"),
        ):
            await make_machine(cluster, name, **spec)

            async def has_message(name: str = name, why: str = why) -> bool:
                found = resources.status(await item_of(cluster, name)).get("conditions", [])
                return any(why in each["message"] for each in found)

            await cluster.until(has_message)


# ---- pods


async def test_a_pod_that_asks_gets_a_node_of_its_own_until_it_is_gone(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        asked = {"on-demand.nstance.dev/group": "web", "on-demand.nstance.dev/instance-type": "large"}
        pod = await cluster.pod("job", annotations=asked)
        await cluster.pod("other")
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        [machine] = await cluster.all(kinds.MACHINE)
        assert machine["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        [instance] = cluster.shards["zone-a"].leader.shard.instances.values()
        assert instance.instance_type == "large"
        await cluster.until(lambda: ready(cluster, machine["metadata"]["name"]))
        await cluster.kube.delete(kinds.POD, "job", namespace=cluster.namespace)
        await cluster.until(lambda: missing(cluster, machine["metadata"]["name"]))
        assert alive(cluster, "zone-a") == 0


async def test_a_pod_that_is_gone_gets_no_second_machine(tmp_path: Path, kubernetes: str) -> None:
    """Its machine's end may be heard before its own."""
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        for number in range(8):
            await cluster.pod(f"job{number}", annotations={"on-demand.nstance.dev/group": "web"})
        await cluster.until(lambda: alive(cluster, "zone-a") == 8)
        for number in range(8):
            await cluster.kube.delete(kinds.POD, f"job{number}", namespace=cluster.namespace)
        await cluster.until(lambda: none_left(cluster))
        found = [each for each in await cluster.all(kinds.EVENT) if each["reason"] == "NodeRequested"]
        assert [each["count"] for each in found] == [1] * 8


async def test_a_pod_of_another_cluster_is_not_ours(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        asked = {"on-demand.nstance.dev/group": "web"}
        await cluster.pod("theirs", annotations={**asked, "on-demand.nstance.dev/cluster": "demo--other"})
        await cluster.pod("ours", annotations={**asked, "on-demand.nstance.dev/cluster": "demo--default"})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        [machine] = await cluster.all(kinds.MACHINE)
        assert machine["metadata"]["annotations"]["nstance.dev/pod"].endswith("/ours")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_is_done_lets_its_node_go(tmp_path: Path, kubernetes: str, phase: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        await cluster.until(lambda: alive(cluster, "zone-a") == 1)
        await cluster.kube.patch(
            kinds.POD, "job", {"status": {"phase": phase}}, namespace=cluster.namespace, subresource="status"
        )
        await cluster.until(lambda: none_left(cluster))
        await cluster.until(lambda: alive(cluster, "zone-a") == 0)


async def none_left(cluster: Cluster) -> bool:
    return not await cluster.all(kinds.MACHINE) and not await cluster.all(kinds.NSTANCE_MACHINE)


async def test_a_pod_elsewhere_is_served_too_and_cleared_up_after_a_restart(tmp_path: Path, kubernetes: str) -> None:
    """No owner is possible across namespaces: the operator itself finds out that the pod is gone."""
    async with operating(tmp_path, kubernetes, ONE, drain_timeout="0") as cluster:
        elsewhere = f"{cluster.namespace}-pods"
        labels = {"nstance.dev/on-demand": "enabled"}
        await cluster.kube.create(kinds.NAMESPACE, {"metadata": {"name": elsewhere, "labels": labels}})
        await cluster.pod("job", namespace=elsewhere, annotations={"on-demand.nstance.dev/group": "web"})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        [machine] = await cluster.all(kinds.MACHINE)
        assert "ownerReferences" not in machine["metadata"]
        await cluster.crash()
        await cluster.kube.delete(kinds.POD, "job", namespace=elsewhere)
        await cluster.start()
        await cluster.until(lambda: none_left(cluster))
        await cluster.until(lambda: alive(cluster, "zone-a") == 0)


async def test_what_could_not_be_made_is_tried_anew(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, ONE, start=False, drain_timeout="0") as cluster:
        cluster.waits = Waits(failed_pod_retry=0.2)
        await cluster.start()
        refused = Outcome(applied=False, error=PermanentError("no such image"))
        cluster.shards["zone-a"].behavior.then(Call.CREATE, refused)
        await cluster.pod("job", annotations={"on-demand.nstance.dev/group": "web"})
        await cluster.until(lambda: len(cluster.running("zone-a", "web")) == 1)
        [item] = await cluster.all(kinds.NSTANCE_MACHINE)
        assert item["metadata"]["annotations"][machines.SHARD_ANNOTATION] == "zone-a"


async def test_machines_that_are_made_at_once_are_divided_over_the_shards(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, BOTH, drain_timeout="0") as cluster:
        await cluster.until(lambda: all(cluster.links.get(shard).synced for shard in BOTH))  # type: ignore[union-attr]
        await cluster.until(lambda: cluster.get(kinds.CLUSTER, "demo--default"))
        for paused in (True, None):
            change = {"spec": {"paused": paused}}
            await cluster.kube.patch(kinds.CLUSTER, "demo--default", change, namespace=cluster.namespace)
            for number in range(8 if paused else 0):
                await make_machine(cluster, f"m{number}", group="web")
        await cluster.until(lambda: sum(alive(cluster, shard) for shard in BOTH) == 8)
        assert [alive(cluster, shard) for shard in BOTH] == [4, 4]


async def test_machines_are_divided_also_when_no_answer_says_that_their_shard_is_stored(
    tmp_path: Path, kubernetes: str
) -> None:
    """They are chosen again then. What was reserved for them still counts, and counts once."""
    async with operating(tmp_path, kubernetes, BOTH, start=False, drain_timeout="0") as cluster:
        connect, lost = cluster.connect, set[str]()

        def connect_badly(access: Access) -> Kube:
            kube = connect(access)
            patch = kube.patch

            async def patch_badly(kind: kinds.Kind, name: str, body: Object, **options: Any) -> Object:
                answer = await patch(kind, name, body, **options)
                if machines.UUID_ANNOTATION in resources.annotations(body) and name not in lost:
                    lost.add(name)
                    raise errors.UnknownOutcomeError("no answer")
                return answer

            kube.patch = patch_badly  # type: ignore[method-assign, assignment]
            return kube

        cluster.connect = connect_badly
        await cluster.start()
        await cluster.until(lambda: all(cluster.links.get(shard).synced for shard in BOTH))  # type: ignore[union-attr]
        for number in range(8):
            await make_machine(cluster, f"m{number}", group="web")
        await cluster.until(lambda: sum(alive(cluster, shard) for shard in BOTH) == 8)
        assert [alive(cluster, shard) for shard in BOTH] == [4, 4]
        assert len(lost) == 8
