"""Mass silence with whole servers: most agents are cut off at once and return, one of them later than the others."""

import asyncio
from pathlib import Path

from component.whole_server import World, config, states
from support.eventually import eventually

AGENTS = 10
CUT = 6
BEHIND = 3.0  # longer than dead_after: the last one is not blamed for what was nobody's own silence


def told() -> dict[str, object]:
    timings = {"suspect_after": "1s", "dead_after": "2s"}
    return config(groups={"default": {"web": {"template": "web", "size": AGENTS}}}, health=timings)


async def test_six_of_ten_are_cut_off_and_return_one_of_them_late(tmp_path: Path) -> None:
    async with World(tmp_path, told()) as world:
        server = await world.start()
        operator = await world.operator()
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * AGENTS)
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == AGENTS)
        before, calls = states(world, "web"), len(world.cloud.vms())
        last, *others = list(world.agents.values())[:CUT]
        for agent in (last, *others):
            agent.mute()
        await eventually(lambda: server.shard.liveness.mass_silence)
        for agent in others:
            agent.speak()
        await eventually(lambda: not server.shard.liveness.mass_silence)
        await asyncio.sleep(BEHIND)  # its lateness is what is tried
        last.speak()
        await eventually(lambda: last.connected)
        assert states(world, "web") == before
        assert len(world.cloud.vms()) == calls
        events = (await operator.call("ListEvents")).events
        assert not [e for e in events if e.reason in ("suspect", "unhealthy", "replace")]
        assert len([e for e in events if "became unresponsive at once" in e.message]) == 1


async def test_agents_that_register_and_never_connect_are_not_replaced_for_ever(tmp_path: Path) -> None:
    """Their silence is probably this server's fault: an agent address that nobody can reach."""
    timings = {"suspect_after": "1s", "dead_after": "2s"}
    said = config(groups={"default": {"web": {"template": "web", "size": 3}}}, health=timings)
    async with World(tmp_path, said) as world:
        world.agents_are_shut_out = True
        server = await world.start()
        await eventually(lambda: server.shard.liveness.mass_silence)
        before = states(world, "web")
        await asyncio.sleep(BEHIND)  # that nothing happens is what is tried
        assert states(world, "web") == before
        assert "deleting" not in before.values()
        world.agents_are_shut_out = False
        await eventually(lambda: not server.shard.liveness.mass_silence)
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) >= 3)


async def test_a_small_group_whose_agents_never_connect_backs_off(tmp_path: Path) -> None:
    """Two are too few for the brake."""
    timings = {"suspect_after": "1s", "dead_after": "2s"}
    said = config(groups={"default": {"web": {"template": "web", "size": 1}}}, health=timings)
    async with World(tmp_path, said) as world:
        world.agents_are_shut_out = True
        server = await world.start()
        key = next(iter(server.shard.desired_groups))
        await eventually(lambda: server.shard.trend(key).failures >= 2)
        assert server.shard.trend(key).retry_at > world.clock.steady() + 20.0
        assert len(states(world, "web")) == 2
        await asyncio.sleep(BEHIND)
        assert len(states(world, "web")) == 2


async def test_one_that_is_killed_before_it_connects_is_replaced_without_waiting_for_its_silence(
    tmp_path: Path,
) -> None:
    said = config(groups={"default": {"web": {"template": "web", "size": 1}}}, health={"suspect_after": "50s"})
    async with World(tmp_path, said) as world:
        world.agents_are_shut_out = True
        await world.start()
        [(killed, _)] = await eventually(lambda: [e for e in states(world, "web").items() if e[1] == "running"])
        world.cloud.stop(killed)
        world.agents_are_shut_out = False
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == 1, seconds=40)
        assert states(world, "web")[killed] in ("deleting", "deleted")
