"""The history over the wire, and over a change of leaders."""

from pathlib import Path

from component.whole_server import World, eventually, states
from nstance.v1.operator_pb2 import GroupConfig


async def test_the_history_outlives_the_leader(tmp_path: Path) -> None:
    """A standby reads the journal along, so what an operator asks of the new leader begins before its term."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        assert second.server.reign is not None
        follower = second.server.reign.parts.follower
        await eventually(lambda: follower.tail >= 1 and first.server.elector.held.members)  # type: ignore[union-attr]
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 2)
        before = {(e.reason, e.instance_id) for e in (await operator.call("ListEvents")).events if e.instance_id}
        assert {reason for reason, _ in before} == {"scale-up", "created", "registered"}
        await first.crash()
        await eventually(lambda: second.lead is not None)
        after = {(e.reason, e.instance_id) for e in (await operator.call("ListEvents")).events}
        assert before <= after
