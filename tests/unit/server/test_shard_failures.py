"""Bugs in what follows a decision end the term with their reason, and nobody waits for an answer in vain."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from nstance.clock import SystemClock
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.decision import ReasonCode
from nstance.model.group import Group
from nstance.model.ids import GroupKey, GroupName, IdMaker, InstanceId, Kind, TenantId
from nstance.model.instance import Instance
from nstance.objects import slots
from nstance.objects.journal import DeposedError
from nstance.server.state.commits import Committed
from nstance.server.state.inbox import ShardFailedError
from support.shards import make_shard

KEY = GroupKey(TenantId("acme"), GroupName("web"))


class Writer:
    """Entries are durable when the test says so."""

    def __init__(self) -> None:
        self.queued: list[asyncio.Future[None]] = []

    def commit(self, entry: slots.Entry) -> "asyncio.Future[None]":
        self.queued.append(asyncio.get_running_loop().create_future())
        return self.queued[-1]

    def barrier(self) -> "asyncio.Future[None] | None":
        return next((each for each in reversed(self.queued) if not each.done()), None)

    async def write(self) -> None:
        async with asyncio.timeout(10):
            while self.barrier() is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for each in self.queued:
            if not each.done():
                each.set_result(None)


class Scene:
    """A group of size 0 that takes on-demand instances."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.writer = Writer()
        self.started: list[dec.Effect] = []
        self.broken = False
        self._ids = IdMaker(wall=clock.wall, bits=lambda count: 1)
        self.shard = make_shard(
            self.writer,
            instances={},
            desired_groups={KEY: Group(key=KEY, size=0, template="web", kind=Kind("web"))},
            clock=clock,
            ids=self._ids,
            start_effect=self._act,
        )
        self.running = asyncio.create_task(self.shard.run())

    def _act(self, effect: dec.Effect, instance: Instance, posted: float) -> None:
        if self.broken:
            raise RuntimeError("effects are broken")
        self.started.append(effect)

    def fresh(self) -> InstanceId:
        return self._ids.make(Kind("web"))

    def ask(self) -> "asyncio.Task[object]":
        return asyncio.create_task(self.shard.ask(ev.InstanceRequested(id=self.fresh()), key=KEY))

    async def failed(self) -> str:
        """Why the shard ended by itself."""
        with pytest.raises(ShardFailedError) as failure:
            await asyncio.wait_for(self.running, 10)
        return str(failure.value)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.running.cancel()
    await asyncio.wait([made.running])


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The test ends with an error in the log, with its traceback."""
    yield
    assert [r for r in caplog.get_records("call") if r.levelno >= logging.ERROR and r.exc_info]


def observe(committed: Committed) -> None:
    raise RuntimeError("the observer is broken")


@pytest.mark.usefixtures("logged")
async def test_an_observer_that_raises_ends_the_term_and_the_caller_is_answered(scene: Scene) -> None:
    scene.shard.commits.subscribe(observe)
    asked = scene.ask()
    await scene.writer.write()
    with pytest.raises(DeposedError):
        await asyncio.wait_for(asked, 10)
    assert await scene.failed() == "failed to observe a decision: RuntimeError('the observer is broken')"


@pytest.mark.usefixtures("logged")
async def test_an_observer_that_raises_for_a_note_ends_the_term_too(scene: Scene) -> None:
    scene.shard.commits.subscribe(observe)
    scene.shard.event_log.record(KEY, ReasonCode.CONFIG, "something")  # its caller is not the one to blame
    assert "the observer is broken" in await scene.failed()


@pytest.mark.usefixtures("logged")
async def test_an_effect_that_cannot_be_started_ends_the_term(scene: Scene) -> None:
    """Otherwise the record would count as being created, and nobody would ask the provider again."""
    scene.broken = True
    asked, other = scene.ask(), scene.ask()
    await scene.writer.write()
    for each in (asked, other):
        with pytest.raises(DeposedError):
            await asyncio.wait_for(each, 10)
    assert "effects are broken" in await scene.failed()
    assert any(facts.calls.creating for facts in scene.shard.facts.values())


@pytest.mark.usefixtures("logged")
async def test_nothing_is_started_after_a_failure(scene: Scene) -> None:
    scene.shard.commits.subscribe(observe)
    first = scene.ask()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = scene.ask()
    await scene.writer.write()
    await asyncio.gather(first, second, return_exceptions=True)
    assert "the observer is broken" in await scene.failed()
    assert len(scene.started) <= 1


async def test_a_caller_is_answered_when_a_term_ends(scene: Scene) -> None:
    await asyncio.sleep(0)
    scene.running.cancel()
    undecided = scene.ask()
    with pytest.raises(DeposedError):
        await asyncio.wait_for(undecided, 10)
    with pytest.raises(DeposedError):
        await asyncio.wait_for(scene.ask(), 10)


class DoubtfulTerm:
    """Its lease is confirmed when the test says so."""

    epoch = 1

    def __init__(self) -> None:
        self.confirmed = asyncio.Event()

    async def ready(self) -> None:
        await self.confirmed.wait()


async def test_a_request_that_nobody_waits_for_any_more_is_dropped(scene: Scene) -> None:
    """Its deadline passed while the lease was in doubt. Whoever sent it may have forgotten the instance since."""
    await _run_others()  # the first look at all groups is over
    term: Any = DoubtfulTerm()
    scene.shard.term = term
    abandoned, kept = scene.ask(), scene.ask()
    await _run_others()
    abandoned.cancel()
    await asyncio.wait([abandoned])
    term.confirmed.set()
    await scene.writer.write()
    await asyncio.wait_for(kept, 10)
    assert len(scene.shard.instances) == 1


async def _run_others() -> None:
    """Until all other tasks wait for something."""
    for _ in range(20):
        await asyncio.sleep(0)
