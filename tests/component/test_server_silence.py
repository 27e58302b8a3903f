"""An agent that is killed before it connects, with a whole server. `tests/sim` has the others that fall silent."""

from pathlib import Path

from component.whole_server import World, config, states
from support.eventually import eventually


async def test_one_that_is_killed_before_it_connects_is_replaced_without_waiting_for_its_silence(
    tmp_path: Path,
) -> None:
    settings = config(groups={"default": {"web": {"template": "web", "size": 1}}}, health={"suspect_after": "50s"})
    async with World(tmp_path, settings) as world:
        world.agents_are_shut_out = True
        await world.start()
        [(killed, _)] = await eventually(lambda: [e for e in states(world, "web").items() if e[1] == "running"])
        world.cloud.stop(killed)
        world.agents_are_shut_out = False
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == 1, seconds=40)
        assert states(world, "web")[killed] in ("deleting", "deleted")
