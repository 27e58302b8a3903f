"""A balancer keeps connections to a deregistered target for a while: its VM waits for them, within its drain's deadline."""

from dataclasses import replace
from pathlib import Path

import pytest

from component.test_server_load_balancers import configuration, members, settled, vms
from component.whole_server import CLUSTER, World, states
from nstance.model.ids import ProviderId
from nstance.providers import errors
from nstance.providers.memory import MemoryProvider
from nstance.providers.port import LoadBalancer, Scope, Traits
from nstance.server.waits import Waits
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually


class DrainingProvider(MemoryProvider):
    """Like AWS."""

    has_connections = True
    asked = 0
    fails = False

    @property
    def traits(self) -> Traits:
        return replace(super().traits, drains_targets=True)

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        self.asked += 1
        if self.fails:
            raise errors.UnavailableError("503")
        return self.has_connections


class DrainingWorld(World):
    provider: DrainingProvider
    waits = Waits(connections_check=0.02)

    def open_provider(self, name: str) -> DrainingProvider:
        scope = Scope(cluster=CLUSTER, shard=self.shard)
        self.provider = DrainingProvider(scope, self.clock, cloud=self.cloud, server=name)
        return self.provider


async def drained(world: DrainingWorld) -> None:
    """A group shrinks from two to one, and its operator has drained the instance."""
    await world.start()
    operator = await world.drainer("acme")
    await settled(world, 2)
    await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1))
    await eventually(lambda: vms(world, "draining") and members(world) == vms(world))
    (leaving,) = [id for id, state in states(world, "web", "acme").items() if state == "draining"]
    await operator.call("AcknowledgeDrained", instance_id=leaving)


@pytest.mark.parametrize("fails", [False, True], ids=["draining", "not known"])
async def test_a_vm_is_deleted_when_its_last_connections_are_gone(tmp_path: Path, fails: bool) -> None:
    async with DrainingWorld(tmp_path, configuration(2, default_drain_timeout="10m")) as world:
        await drained(world)
        world.provider.fails = fails
        await eventually(lambda: world.provider.asked > 3)
        assert len(world.cloud.vms()) == 2
        world.provider.has_connections = world.provider.fails = False
        await eventually(lambda: len(world.cloud.vms()) == 1)


async def test_no_wait_is_longer_than_the_deadline_of_the_drain(tmp_path: Path) -> None:
    async with DrainingWorld(tmp_path, configuration(2, default_drain_timeout="3s")) as world:
        await drained(world)
        await eventually(lambda: world.provider.asked > 3)
        await eventually(lambda: len(world.cloud.vms()) == 1)
        assert world.provider.has_connections
