"""What a shard tells reaches the journal, and so the history: with a change or without, and never without bound."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from nstance.clock import Clock, SystemClock
from nstance.model import events as ev
from nstance.model.decision import ReasonCode
from nstance.model.group import Group
from nstance.model.ids import GroupKey, GroupName, IdMaker, Kind, ProviderId, TenantId
from nstance.model.instance import Instance, Put, Remove, State
from nstance.objects import slots
from nstance.server.state.event_log import MAX_WAITING
from nstance.sim.loop import Machine
from support.eventually import eventually
from support.shards import make_shard
from support.virtual_time import virtually

KEY = GroupKey(TenantId("acme"), GroupName("web"))
OTHER_KEY = "with another key"


class Writer:
    """Keeps the entries; they are durable at once, or never."""

    def __init__(self) -> None:
        self.entries: list[slots.Entry] = []
        self.works = True

    def commit(self, entry: slots.Entry) -> "asyncio.Future[None]":
        self.entries.append(entry)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.works:
            future.set_result(None)
        return future

    def barrier(self) -> None:
        return None

    def events(self) -> list[slots.LoggedReason]:
        return [why for entry in self.entries for why in entry.reason]

    async def until(self, count: int) -> None:
        await eventually(lambda: len(self.entries) >= count)


class Scene:
    def __init__(self, clock: Clock) -> None:
        self.writer = Writer()
        ids = IdMaker(wall=clock.wall, bits=lambda count: 1)
        self.one, self.old = ids.make(Kind("web")), ids.make(Kind("web"))
        known = Instance(
            id=self.one,
            tenant=KEY.tenant,
            group=KEY.name,
            state=State.RUNNING,
            created=clock.steady(),
            provider_id=ProviderId("vm-1"),
            public_key="its key",
            seen=True,
        )
        ended = replace(known, id=self.old, state=State.DELETED, created=0.0, ended=1.0, public_key="")
        self.shard = make_shard(
            self.writer,
            instances={known.id: known, ended.id: ended},
            desired_groups={KEY: Group(key=KEY, size=1, template="web", kind=Kind("web"))},
            clock=clock,
            ids=ids,
        )

    def knock(self) -> None:
        """A registration that is refused: a reason, and no change."""
        self.shard.post(
            ev.Registered(id=self.one, public_key="another", certificate_serial="1", certificate_expires=0.0)
        )


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene(SystemClock())
    running = asyncio.create_task(made.shard.run())
    yield made
    running.cancel()
    await asyncio.wait([running])


async def test_the_reasons_of_a_decision_that_changes_nothing_are_written(scene: Scene) -> None:
    scene.knock()
    await scene.writer.until(1)
    [entry] = scene.writer.entries
    assert not entry.changes
    [why] = entry.reason
    assert (why.code, why.tenant, why.group, why.instance) == ("security", "acme", "web", scene.one)
    assert OTHER_KEY in why.message


async def test_a_decision_that_only_removes_records_names_its_group(scene: Scene) -> None:
    scene.shard.set_listing(mass_absence=False)
    scene.knock()
    await scene.writer.until(1)
    [entry] = [entry for entry in scene.writer.entries if entry.changes]
    assert entry.changes == (Remove(scene.old),)
    assert [(why.tenant, why.group) for why in entry.reason if OTHER_KEY in why.message] == [("acme", "web")]


async def test_an_event_before_a_change_is_written_before_it(scene: Scene) -> None:
    scene.shard.set_listing(mass_absence=False)  # creating waits for it
    scene.shard.event_log.record(KEY, ReasonCode.CONFIG, "first")
    scene.shard.configure({KEY: replace(scene.shard.desired_groups[KEY], size=2)}, scene.shard.policy)
    await scene.writer.until(2)
    assert [why.code for why in scene.writer.events()] == ["config", "scale-up"]
    assert isinstance(scene.writer.entries[1].changes[0], Put)


@virtually
async def test_while_the_journal_cannot_be_written_events_wait_and_are_bounded(clock: Machine) -> None:
    scene = Scene(clock)
    scene.writer.works = False
    for number in range(MAX_WAITING + 200):
        scene.shard.event_log.record(KEY, ReasonCode.CONFIG, str(number))
        if number % 20 == 0:
            await clock.sleep(0.1)
    assert len(scene.writer.entries) == 1
    scene.shard.event_log.write()  # as at the end of a term
    first, rest = (len(entry.reason) for entry in scene.writer.entries)
    assert first < 50
    assert rest == MAX_WAITING
    assert [why.message for why in scene.writer.events()] == [str(number) for number in range(first + rest)]
