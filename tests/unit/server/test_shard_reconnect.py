"""After a change of leaders, agents that return one by one are waited for as long as others still return. An agent that
registers is waited for from the moment at which its registration is answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from nstance.core.liveness import RECONNECT_MAX_SECONDS, RECONNECT_MIN_SECONDS
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.group import Group
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, IdMaker, InstanceId, Kind, ProviderId
from nstance.model.instance import Instance, Put, State
from nstance.model.observation import VmObservation
from nstance.objects import slots
from support.shards import make_shard

KEY = GroupKey(DEFAULT_TENANT, GroupName("web"))
START = 1_000.0
AGENTS = 10


class HandClock:
    now = START

    def monotonic(self) -> float:
        return self.now

    boot = wall = steady = monotonic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class QuickWriter:
    """Everything is durable at once, or when `slow` is done."""

    slow: asyncio.Future[None] | None = None

    def commit(self, entry: slots.Entry) -> asyncio.Future[None] | None:
        return self.slow

    def barrier(self) -> asyncio.Future[None] | None:
        return self.slow


class Scene:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.writer = QuickWriter()
        self.effects: list[dec.Effect] = []
        self.last_seen: float | None = None  # when a byte came last
        ids = IdMaker(wall=self.clock.wall, bits=lambda count: 1)
        self.ids = [ids.make(Kind("web")) for _ in range(AGENTS)]
        self.shard = make_shard(
            self.writer,
            instances={id: _running(id) for id in self.ids},
            desired_groups={KEY: Group(key=KEY, size=AGENTS, template="web", kind=Kind("web"))},
            clock=self.clock,
            ids=ids,
            start_effect=lambda effect, instance, posted: self.effects.append(effect),
            last_seen=lambda id: self.last_seen,
        )
        self.shard.set_listing(mass_absence=False)

    async def at(self, seconds: float, *events: ev.Event) -> None:
        """So long after the term began, this happens; time passes in small steps, so that the shard is not deaf in it."""
        while self.clock.now < START + seconds:
            self.clock.now = min(self.clock.now + 1.0, START + seconds)
            self.shard.post(ev.TimerFired(), key=KEY)
            await self.settle()
        for event in (*events, *(ev.VmChecked(id, ev.VmState.RUNNING, ProviderId(id)) for id in self.ids)):
            self.shard.post(event)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def suspects(self) -> set[InstanceId]:
        return {instance.id for instance in self.shard.instances.values() if instance.suspect}


def _running(id: InstanceId) -> Instance:
    return Instance(
        id=id,
        tenant=KEY.tenant,
        group=KEY.name,
        state=State.RUNNING,
        created=0.0,
        provider_id=ProviderId(id),
        seen=True,
    )


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    running = asyncio.create_task(made.shard.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _connected(ids: list[InstanceId]) -> Iterator[ev.Event]:
    return (ev.AgentConnected(id) for id in ids)


async def test_the_last_is_waited_for_while_others_still_return(scene: Scene) -> None:
    *early, late, last = scene.ids
    await scene.at(1, *_connected(early))
    await scene.at(9, ev.AgentConnected(late))
    await scene.at(11, *_connected(early))  # the grace that was planned is over
    assert not scene.suspects()
    await scene.at(9 + RECONNECT_MIN_SECONDS + 1, *_connected([*early, late]))
    assert scene.suspects() == {last}


async def test_who_was_back_already_lengthens_nothing(scene: Scene) -> None:
    *early, last = scene.ids
    await scene.at(1, *_connected(early))
    await scene.at(9, *_connected(early))
    await scene.at(12, *_connected(early))
    assert scene.suspects() == {last}


async def test_there_is_an_end_to_it(scene: Scene) -> None:
    await scene.at(RECONNECT_MAX_SECONDS - 1, *_connected(scene.ids[:1]))
    assert scene.shard.liveness.reconnect_grace == RECONNECT_MAX_SECONDS


async def test_a_slow_journal_is_not_the_silence_of_an_agent_that_registers(scene: Scene) -> None:
    """It cannot connect before its registration is durable (seeds 2083, 2379)."""
    *others, new = scene.ids
    starting = replace(scene.shard.instances[new], state=State.STARTING)
    suspect_after = scene.shard.policy.suspect_after
    scene.shard._state.apply([Put(starting)], ())
    scene.shard.liveness.forget(new)
    await scene.at(1, *_connected(others))
    scene.writer.slow = asyncio.get_running_loop().create_future()
    registered = ev.Registered(id=new, public_key="key", certificate_serial="1", certificate_expires=START + 9_000)
    await scene.at(2, *_connected(others), registered)
    registered_at = 2 + 3 * suspect_after
    await scene.at(registered_at, *_connected(others))
    assert not scene.suspects()
    scene.clock.now += 0.9
    scene.writer.slow.set_result(None)
    scene.writer.slow = None
    await scene.settle()
    await scene.at(registered_at + suspect_after + 0.5, *_connected(others))
    assert not scene.suspects()
    await scene.at(registered_at + suspect_after + 1, *_connected(others))
    assert scene.suspects() == {new}
    assert scene.shard.trend(KEY).failures


async def test_a_plan_asks_the_connections_before_it_calls_an_agent_silent(scene: Scene) -> None:
    """While a group is paused nobody asks them: pings make no events."""
    desired = scene.shard.desired_groups[KEY]
    await scene.at(1.0, *_connected(scene.ids))
    scene.shard.configure({KEY: replace(desired, paused=True)}, scene.shard.policy)
    await scene.settle()
    for second in range(2, 40):  # without any event
        scene.clock.now = scene.last_seen = START + second
        scene.shard.liveness.notice_deafness()
    for id in scene.ids:  # the provider's word is younger than the last report
        running = replace(scene.shard.facts[id], vm=VmObservation(ev.VmState.RUNNING, scene.clock.now))
        scene.shard._state.observe({id: running})
    assert scene.shard.plan(KEY, desired).changes == ()
