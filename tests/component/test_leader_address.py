"""The shard's fixed address follows its leader, and full subnets come last: calls to a provider that has both."""

from pathlib import Path
from typing import Any

from component.whole_server import CLUSTER, SHARD, World, config, states
from nstance.providers import errors
from nstance.providers.memory_behavior import Call, Outcome
from nstance.providers.port import Scope
from support.eventually import eventually

SCOPE = Scope(cluster=CLUSTER, shard=SHARD)


def told(**other: Any) -> dict[str, Any]:
    return config(leader_network={"ip": "10.0.0.9"}, **other)


async def test_the_leader_network_is_given_back_by_one_that_stops_in_order(tmp_path: Path) -> None:
    async with World(tmp_path, told(), agents=False) as world:
        running = await world.start("a")
        await eventually(lambda: world.cloud.leader_networks == {SCOPE: "a"})
        await running.stop()
        assert world.cloud.leader_networks == {}
        assert b'nstance_provider_requests_total{code="ok",op="release_leader_network"} 1.0' in (
            running.server.metrics.render()
        )


async def test_one_that_crashed_gives_nothing_back_and_its_successor_takes_it(tmp_path: Path) -> None:
    async with World(tmp_path, told(), agents=False) as world:
        first = await world.start("a")
        await eventually(lambda: world.cloud.leader_networks == {SCOPE: "a"})
        await world.start("b", lead=False)
        await first.crash()
        await eventually(lambda: world.cloud.leader_networks == {SCOPE: "b"})
        assert not world.cloud.calls[Call.RELEASE_LEADER_NETWORK]


async def test_a_release_that_hangs_or_fails_holds_nobody_up(tmp_path: Path) -> None:
    async with World(tmp_path, told(), agents=False) as world:
        for number, outcome in enumerate(
            (Outcome(before=60.0), Outcome(applied=False, error=errors.PermanentError("no")))
        ):
            running = await world.start(f"s{number}")
            await eventually(lambda: world.cloud.calls[Call.ASSIGN_LEADER_NETWORK] > number)  # noqa: B023
            world.behaviour.then(Call.RELEASE_LEADER_NETWORK, outcome)
            await running.stop()
            assert world.cloud.calls[Call.RELEASE_LEADER_NETWORK] == number + 1


async def test_a_leader_without_its_network_leads_all_the_same(tmp_path: Path) -> None:
    groups = {"default": {"web": {"template": "web", "size": 1}}}
    async with World(tmp_path, told(groups=groups)) as world:
        refused = Outcome(applied=False, error=errors.PermanentError("it is attached elsewhere"))
        world.behaviour.then(Call.ASSIGN_LEADER_NETWORK, refused)
        await world.start("a")
        await eventually(lambda: list(states(world, "web").values()) == ["running"])
        await eventually(lambda: world.cloud.leader_networks == {SCOPE: "a"})  # asked again in the background
        assert world.cloud.calls[Call.ASSIGN_LEADER_NETWORK] == 2


async def test_a_nearly_full_subnet_is_not_tried_first(tmp_path: Path) -> None:
    pools = {"main": ["full", "roomy"]}
    groups = {"acme": {"web": {"template": "web", "size": 0}}}
    async with World(tmp_path, config(subnet_pools=pools, groups=groups), agents=False) as world:
        world.cloud.subnets.update({"full": 3, "roomy": 100})
        running = await world.start()
        await running.until(lambda: running.lead_now.supplies.subnets.crowded == {"full"})
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config={"size": 4})
        made = await running.until(lambda: [m for m in running.shard.instances.values() if m.provider_id])
        await running.until(lambda: len(running.shard.instances) == 4)
        assert {m.subnet for m in made} == {"roomy"}
        assert running.shard._hooks.crowded_subnets() == {"full"}  # also under the new configuration
