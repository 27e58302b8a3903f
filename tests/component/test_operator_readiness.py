"""What Kubernetes sees of readiness: the `Ready` condition of Machines and pools, and the count of ready replicas."""

from pathlib import Path

import pytest

from component.operator_world import KUBERNETES, Cluster, operating
from component.whole_server import World, config
from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object
from nstance.operator.controllers import resources

pytestmark = pytest.mark.parametrize("kubernetes", KUBERNETES)


async def condition(cluster: Cluster, kind: Kind, name: str) -> Object:
    item = await cluster.get(kind, name)
    conditions = (each for each in resources.status(item or {}).get("conditions", ()) if each["type"] == "Ready")
    return next(conditions, {})


async def configure(world: World, *, size: int, **template: object) -> None:
    made = config(groups={"default": {"web": {"template": "web", "size": size, "drain_timeout": "0"}}})
    made["templates"]["web"] |= template
    world.configure(made)
    await world.leader.active_config.refresh()


CHECKS = {"up": {"kind": "tcp", "port": 80}}


async def test_a_machine_is_ready_when_its_instance_is(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 0}}, drain_timeout="0") as cluster:
        world = cluster.shards["zone-a"]
        await configure(world, size=0, checks=CHECKS)
        await cluster.kube.create(
            kinds.NSTANCE_MACHINE,
            {"metadata": {"name": "one"}, "spec": {"group": "web"}},
            namespace=cluster.namespace,
        )

        async def says(status: str, reason: str) -> Object | None:
            found = await condition(cluster, kinds.NSTANCE_MACHINE, "one")
            return found if (found.get("status"), found.get("reason")) == (status, reason) else None

        await cluster.until(lambda: says("True", "Running"))
        [agent] = world.agents.values()
        agent.fail("up", "refused")
        bad = await cluster.until(lambda: says("False", "NotReady"))
        assert bad["message"] == "failing checks: up"
        item = await cluster.get(kinds.NSTANCE_MACHINE, "one")
        assert item is not None
        assert item["status"]["ready"]  # its VM is provisioned: Cluster API goes on
        agent.fail("up", "")
        await cluster.until(lambda: says("True", "Running"))


async def test_a_pool_counts_ready_instances_and_says_what_blocks_it(tmp_path: Path, kubernetes: str) -> None:
    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}, drain_timeout="0") as cluster:
        world = cluster.shards["zone-a"]
        await configure(world, size=2, checks=CHECKS)

        async def counts(ready: int, reason: str) -> Object | None:
            item = await cluster.get(kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            status = resources.status(item or {})
            found = await condition(cluster, kinds.NSTANCE_MACHINE_POOL, "nstance-web")
            right = (status.get("replicas"), status.get("readyReplicas")) == (2, ready)
            return found if right and found.get("reason") == reason else None

        await cluster.until(lambda: counts(2, "AllReady"))
        first, second = world.agents.values()
        first.fail("up", "refused")
        await cluster.until(lambda: counts(1, "NotReady"))
        first.fail("up", "")
        await cluster.until(lambda: counts(2, "AllReady"))
        await configure(world, size=2, files={"token": {"kind": "secret", "source": "no-such-secret"}})
        blocked = await cluster.until(lambda: counts(0, "Blocked"))
        assert "no-such-secret" in blocked["message"]
        assert second.connected
        await configure(world, size=2)
        await cluster.until(lambda: counts(2, "AllReady"))
