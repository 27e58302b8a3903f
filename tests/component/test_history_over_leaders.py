"""The history is the same on every server: IDs and times come from the journal, so a follower sees each event once."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.whole_server import SECONDS, SHARD, Operator, Running, World, states
from nstance.admin import client
from nstance.admin.shard import history as following
from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.model.decision import ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName
from nstance.objects import journal
from nstance.server.cache.cache import Event
from nstance.server.leader import history
from nstance.v1.operator_pb2 import GroupConfig
from nstance.wire.call import call
from support.eventually import eventually
from support.off_clock import OffClock

HOUR = 3600.0
WEB = GroupKey(DEFAULT_TENANT, GroupName("web"))


class Asking:
    """A `Client` as far as following needs one. It asks without waiting for what is not in the journal yet."""

    shard = SHARD

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def call(self, rpc: str, **fields: Any) -> Any:
        method = getattr(self._operator.stub, rpc)
        try:
            return await call(method, method.request_type(**fields), timeout=SECONDS)
        except (GRPCError, StreamTerminatedError, OSError) as problem:
            raise client.ShardError(str(problem), Status.UNAVAILABLE) from problem

    async def renew_if_due(self) -> None:
        return None


@contextlib.asynccontextmanager
async def followed(operator: Operator) -> AsyncIterator[list[tuple[int, str]]]:
    """IDs and messages, as they come to somebody who follows."""
    seen: list[tuple[int, str]] = []

    async def follow() -> None:
        asking = cast("client.Client", Asking(operator))
        coming = following.follow(
            [asking],
            following.EventQuery(limit=0),
            after={SHARD: 0},
            on_status=lambda shard, text: None,
            clock=SystemClock(),
        )
        async with contextlib.aclosing(coming):
            async for id, record in coming:
                seen.append((id, record["message"]))

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


async def written(world: World) -> list[Event]:
    """What the journal says, without any cache."""
    found: list[Event] = []
    books = journal.Journal(
        world.store,
        journal_prefix=storage_keys.journal_prefix(SHARD),
        snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
        clock=world.clock,
    )
    await books.load(on_slot=lambda slot: found.extend(history.events(slot)))
    return [event for event in found if event.tenant == DEFAULT_TENANT]


async def kept(server: Running) -> list[Event]:
    cache = server.configured.env.cache
    assert cache is not None
    return await cache.events(tenant=DEFAULT_TENANT, limit=1000)


async def caught_up(world: World, standby: Running) -> None:
    await world.leader.shard.event_log.flush(timeout=SECONDS)
    tail = world.leader.shard.commits.writer.tail
    await standby.until(lambda: standby.follower.tail >= tail)


async def grow(operator: Operator, size: int) -> None:
    await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=size))


async def running(world: World, count: int) -> None:
    """And told to be ready, so that nothing more happens."""
    instances = world.leader.shard.instances
    await eventually(
        lambda: (
            sum(s == "running" and instances[id].ready_at is not None for id, s in states(world, "web").items())
            == count
        )
    )


async def test_a_standby_keeps_the_same_events_with_the_same_ids_and_times(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False, clock=OffClock(-HOUR))
        operator = await world.operator()
        await grow(operator, 2)
        await running(world, 2)
        first.shard.event_log.record_for_all(ReasonCode.MASS_SILENCE, "nobody speaks")
        await caught_up(world, second)
        events = await kept(first)
        assert {"scale-up", "created", "registered", "config", "mass-silence"} <= {event.code for event in events}
        assert await kept(second) == events == await written(world)
        assert all(abs(event.time - time.time()) < HOUR / 2 for event in events)


@pytest.mark.parametrize("off", [0.0, -HOUR, HOUR], ids=["right", "behind", "ahead"])
async def test_over_a_crash_a_follower_sees_each_event_once(tmp_path: Path, off: float) -> None:
    """The leader ends right after a change, and the next one's clock may be an hour off."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        second = await world.start("b", lead=False, clock=OffClock(off))
        operator = await world.operator()
        async with followed(operator) as seen:
            await grow(operator, 1)
            await eventually(lambda: any("agent registered" in message for _, message in seen))
            await grow(operator, 2)
            await first.crash()
            await second.until(lambda: second.lead is not None)
            await running(world, 2)
            await grow(operator, 3)
            await running(world, 3)
            second.shard.event_log.record(WEB, ReasonCode.CONFIG, "the end")
            await eventually(lambda: any(message == "the end" for _, message in seen))
        journaled = [(event.id, event.message) for event in await written(world)]
        last = next(number for number, (_, message) in enumerate(journaled) if message == "the end")
        end = seen.index(journaled[last])
        assert seen[: end + 1] == journaled[: last + 1]
        assert sum("registered" in message for _, message in seen) == 3


async def test_a_leader_that_comes_back_fills_what_it_missed(tmp_path: Path) -> None:
    """It reads again what follows the last snapshot, also what happened while it was away, and keeps nothing twice."""
    async with World(tmp_path) as world:
        first = await world.start("a")
        await world.start("b", lead=False)
        operator = await world.operator()
        await grow(operator, 1)
        await running(world, 1)
        await first.crash()
        await eventually(lambda: world.servers["b"].lead is not None)
        await grow(operator, 2)
        await running(world, 2)
        again = await world.start("a", lead=False)
        await caught_up(world, again)
        assert await kept(again) == await kept(world.servers["b"]) == await written(world)
