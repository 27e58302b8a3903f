"""What a server knows of an instance goes with its record: nothing in the process is filed under its ID any more."""

import builtins
import gc
from pathlib import Path
from typing import Any

from component.whole_server import World, config, states
from nstance.model.ids import InstanceId
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}


def filed_under(id: InstanceId, *, but: list[object]) -> list[Any]:
    excepted = set(map(builtins.id, but))
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, dict | set) and builtins.id(each) not in excepted and id in each
    ]


async def test_nothing_is_kept_of_an_instance_whose_retention_is_over(tmp_path: Path) -> None:
    short = {"interval": "1s", "registration_timeout": "60s", "deleted_record_retention": "200ms"}
    async with World(tmp_path, config(groups=GROUPS, garbage_collection=short)) as world:
        server = await world.start()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        gone, other = states(world, "web", "acme")
        assert filed_under(gone, but=[]), "the search finds what is there"
        world.cloud.stop(gone)
        await eventually(lambda: gone not in server.shard.instances)
        world_only = [world.agents, world.cloud._deleted, world.cloud._by_id]
        await eventually(lambda: not filed_under(gone, but=world_only))
        assert other in server.shard.instances
