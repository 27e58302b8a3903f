"""F64: whoever wishes is away for hours. What was wished last stays, and nobody scales anything to zero."""

from pathlib import Path

from component.whole_server import World, states
from nstance.model.instance import State
from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.setup import Setup
from nstance.sim.world import world
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

LONG = 1200.0  # twice as long as an operator counts as present; whatever depends on it has happened by then


def test_f64_a_long_time_without_an_operator_changes_nothing() -> None:
    """In virtual time, with a change of leaders in between."""
    desired_groups = DesiredGroups(groups={"web": DesiredGroup(size=3, drain=60.0)})
    with world(1, Setup(servers=2, operator=False, snapshots=False, desired_groups=desired_groups)) as w:
        w.begin()
        w.advance(60.0)
        before = {id for id, record in w.auditor.records.items() if record.state is State.RUNNING}
        assert len(before) == 3
        w.advance(LONG)
        leader = w.leader()
        assert leader is not None
        w.do(w.kill, leader, 30.0)
        w.advance(LONG)
        assert {id for id, record in w.auditor.records.items() if record.state is State.RUNNING} == before
        assert (w.counts["calls create"], w.counts["calls delete"]) == (3, 0)
        assert not w.violations, w.violations[0]


async def test_f64_groups_of_the_api_stay_when_their_operator_is_gone(tmp_path: Path) -> None:
    """Its connection is lost, the server stops and another one begins: the group is as it was wished last."""
    async with World(tmp_path) as w:
        first = await w.start("a")
        operator = await w.operator("acme")
        async with operator.watch() as watching:
            await watching.snapshot()
            await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
            await eventually(lambda: list(states(w, "web", "acme").values()) == ["running"] * 2)
        operator.channel.close()
        before = dict(states(w, "web", "acme"))
        await first.stop()
        second = await w.start("b")
        await eventually(lambda: second.shard.listed)
        await eventually(lambda: all(agent.connected for agent in w.agents.values()))
        (desired,) = [group for key, group in second.shard.desired_groups.items() if key.name == "web"]
        assert desired.size == 2
        assert states(w, "web", "acme") == before
        assert len(w.cloud.vms()) == 2
