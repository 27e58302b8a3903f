"""A wrong clock with whole servers: a standby whose machine's clock is an hour off takes over, and ages nobody by it."""

import time
from pathlib import Path

import pytest

from component.whole_server import World, config, states
from support.eventually import eventually
from support.off_clock import OffClock

HOUR = 3600.0


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_taking_over_with_a_wrong_clock_expires_nobody(tmp_path: Path, off: float) -> None:
    said = config(groups={"default": {"web": {"template": "web", "size": 3}}}, expiry={"forced_age": "50m"})
    async with World(tmp_path, said) as world:
        first = await world.start("a")
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 3)
        before = dict(states(world, "web"))
        operator = await world.operator()
        second = await world.start("b", lead=False, clock=OffClock(off))
        await first.crash()
        await second.until(lambda: second.lead is not None)
        await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == 3)
        await eventually(lambda: second.shard.listed)
        assert states(world, "web") == before
        assert abs(second.shard._clock.steady() - time.time()) < 30.0
        events = (await operator.call("ListEvents")).events
        assert [e.reason for e in events if "this machine's clock is" in e.message] == ["clock"]
