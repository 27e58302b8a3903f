"""The history over the wire, and over a change of leaders."""

import asyncio
from pathlib import Path

from component.whole_server import World, states
from nstance.model.decision import ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName
from nstance.objects.errors import UnavailableError
from nstance.objects.memory import Fate
from nstance.server.state import event_log
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

WEB = GroupKey(DEFAULT_TENANT, GroupName("web"))


async def test_the_history_outlives_the_leader(tmp_path: Path) -> None:
    """A standby reads the journal along, so what an operator asks of the new leader begins before its term."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        follower = second.follower
        await eventually(lambda: follower.tail >= 1)
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 2)
        before = {(e.reason, e.instance_id) for e in (await operator.call("ListEvents")).events if e.instance_id}
        assert {reason for reason, _ in before} == {"scale-up", "created", "registered"}
        await first.crash()
        await eventually(lambda: second.lead is not None)
        after = {(e.reason, e.instance_id) for e in (await operator.call("ListEvents")).events}
        assert before <= after


async def test_what_changes_no_record_outlives_the_leader_too(tmp_path: Path) -> None:
    """Who changed which group, what concerned the whole shard, and an acknowledgement that nobody waited for."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False)
        follower = second.follower
        await eventually(lambda: follower.tail >= 1)
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=1))
        await eventually(lambda: list(states(world, "web").values()) == ["running"])
        [id] = states(world, "web")
        group = GroupConfig(template="web", size=1, vars={"greeting": "hi"})
        await operator.call("UpsertGroup", key="web", config=group)
        assert not (await operator.call("AcknowledgeDrained", instance_id=id)).accepted
        first.shard.event_log.record_for_all(ReasonCode.MASS_SILENCE, "nobody speaks")
        tail = first.shard.commits.writer.tail
        await eventually(lambda: follower.tail > tail)
        await first.crash()
        await eventually(lambda: second.lead is not None)
        events = [(e.group, e.instance_id, e.reason, e.message) for e in (await operator.call("ListEvents")).events]
        who = operator.identity.id
        assert ("web", "", "config", f"vars greeting changed (by {who})") in events
        assert ("", "", "mass-silence", "nobody speaks") in events
        message = f"acknowledgement by {who} ignored: expected a draining instance, found running: nothing was done"
        assert ("web", id, "drained", message) in events
        assert len(events) == len(set(events))


async def test_many_events_cost_few_writes(tmp_path: Path) -> None:
    """However many events there are, the journal is written at most twice a second for them, and the queue is bounded."""
    async with World(tmp_path, agents=False) as world:
        server = await world.start()
        operator = await world.operator()
        before = server.shard.commits.writer.tail
        for number in range(3 * event_log.MAX_WAITING):
            server.shard.event_log.record(WEB, ReasonCode.SECURITY, f"knock {number}")
        await eventually(lambda: server.shard.commits.writer.tail > before)
        server.shard.event_log.record(WEB, ReasonCode.SECURITY, "the end")  # written behind whatever else would be
        messages = [e.message for e in (await operator.call("ListEvents", limit=event_log.MAX_WAITING)).events]
        assert messages == [*(f"knock {number}" for number in range(1, event_log.MAX_WAITING)), "the end"]
        assert server.shard.commits.writer.tail == before + 2


async def test_events_while_storage_fails_are_bounded_and_kept(tmp_path: Path) -> None:
    """Without storage, notes wait; they do not pile up."""
    async with World(tmp_path, agents=False) as world:
        server = await world.start()
        operator = await world.operator()
        writer = server.shard.commits.writer
        world.fate = lambda verb, key: Fate(error=UnavailableError("out")) if "/journal/" in key else Fate()
        for number in range(8):
            server.shard.event_log.record(WEB, ReasonCode.SECURITY, f"knock {number}")
            await asyncio.sleep(event_log.WRITE_INTERVAL_SECONDS / 4)
        assert not writer._queue
        world.fate = lambda verb, key: Fate()
        messages = [e.message for e in (await operator.call("ListEvents")).events]
        assert messages == [f"knock {number}" for number in range(8)]
