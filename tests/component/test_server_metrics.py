"""What a whole server says of itself to Prometheus."""

from pathlib import Path

import pytest

from component.whole_server import World, config, states
from support.eventually import eventually


@pytest.mark.parametrize("usable", [True, False])
async def test_whether_the_cache_is_on_disk_can_be_watched(tmp_path: Path, usable: bool) -> None:
    if not usable:
        (tmp_path / "a").write_text("a file where the cache directory should be")
    async with World(tmp_path, agents=False) as world:
        running = await world.start()  # leads in either case
        wanted = f"nstance_cache_on_disk {float(usable)}\n".encode()
        await running.until(lambda: wanted in running.server.metrics.render())
        assert b"nstance_cache_dropped_total 0.0" in running.server.metrics.render()


async def test_only_replacements_count_as_replacements_and_they_name_their_predecessor(tmp_path: Path) -> None:
    groups = {"acme": {"web": {"template": "web", "size": 3}}}
    async with World(tmp_path, config(groups=groups)) as world:
        server = await world.start()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 3)
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        assert b"nstance_replacement_seconds_count" not in server.server.metrics.render()
        killed = next(iter(states(world, "web", "acme")))
        world.cloud.stop(killed)
        await eventually(lambda: len(world.agents) == 4)
        counted = b'nstance_replacement_seconds_count{group="web",tenant="acme"} 1.0'
        await eventually(lambda: counted in server.server.metrics.render())
        operator = await world.operator("acme")
        made = [id for id in world.agents if id != killed][-1]

        async def is_recorded() -> bool:
            events = (await operator.call("ListEvents", instance_id=made)).events
            found = [(event.reason, event.message) for event in events if event.instance_id == made]
            return ("replace", f"replacing {killed}: gone") in found

        await eventually(is_recorded)
        assert (await operator.call("GetInstanceStatus", instance_id=made)).replaces == killed
