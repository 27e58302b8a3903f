"""F59 with whole servers: most agents are cut off at once and return, one of them later than the others."""

import asyncio
from pathlib import Path

from component.whole_server import World, config, eventually, states

AGENTS = 10
CUT = 6
BEHIND = 3.0  # longer than dead_after: the last one is not blamed for what was nobody's own silence


def told() -> dict[str, object]:
    timings = {"suspect_after": "1s", "dead_after": "2s"}
    return config(groups={"default": {"web": {"template": "web", "size": AGENTS}}}, health=timings)


async def test_f59_six_of_ten_are_cut_off_and_return_one_of_them_late(tmp_path: Path) -> None:
    async with World(tmp_path, told()) as world:
        server = await world.start()
        operator = await world.operator()
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * AGENTS)
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == AGENTS)
        before, calls = states(world, "web"), len(world.cloud.vms())
        last, *others = list(world.agents.values())[:CUT]
        for agent in (last, *others):
            agent.mute()
        await eventually(lambda: server.shard.hearing.mass_silence)
        for agent in others:
            agent.speak()
        await eventually(lambda: not server.shard.hearing.mass_silence)
        await asyncio.sleep(BEHIND)  # its lateness is what is tried
        last.speak()
        await eventually(lambda: last.connected)
        assert states(world, "web") == before
        assert len(world.cloud.vms()) == calls
        events = (await operator.call("ListEvents")).events
        assert not [e for e in events if e.reason in ("suspect", "unhealthy", "replace")]
        assert len([e for e in events if "fell silent at once" in e.message]) == 1
