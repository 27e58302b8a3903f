"""Events are counted instead of repeated, never fail anybody, and never grow without bound."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from nstance.kube import errors, events, kinds, memory
from nstance.kube.port import Object
from nstance.sim.loop import Machine
from nstance.sim.rng import SeededRng
from support.virtual_time import virtually

POD: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "u1"}}
NODE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u2"}}


class Scene:
    def __init__(self, clock: Machine) -> None:
        self.clock = clock
        self.calls: list[memory.Verb] = []
        self.fates: list[memory.Fate] = []
        self.api = memory.cluster(clock, SeededRng(1))
        self.kube = memory.MemoryKube(self.api, clock, faults=self._fate)
        self.recorder = events.Recorder(self.kube, clock=clock, rng=SeededRng(2), instance="pod-1")

    async def _fate(self, verb: memory.Verb, kind: kinds.Kind, name: str) -> memory.Fate:
        self.calls.append(verb)
        return self.fates.pop(0) if self.fates else memory.Fate()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.recorder.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def seen(self) -> list[Object]:
        await self.clock.sleep(1)
        return (await memory.MemoryKube(self.api, self.clock).list(kinds.EVENT)).items


@virtually
async def test_an_event_says_what_kubectl_shows(clock: Machine) -> None:
    scene = Scene(clock)
    async with scene.running():
        scene.recorder.note(POD, "SyncSucceeded", "all is well")
        scene.recorder.note(NODE, "NodeDraining", "it goes", warning=True)
        pod, node = sorted(await scene.seen(), key=lambda item: str(item["reason"]), reverse=True)
    assert pod["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "p",
        "uid": "u1",
    }
    assert (pod["reason"], pod["message"], pod["type"], pod["count"]) == ("SyncSucceeded", "all is well", "Normal", 1)
    assert pod["source"] == {"component": "nstance-operator", "host": "pod-1"}
    assert pod["firstTimestamp"] == pod["lastTimestamp"]
    assert pod["metadata"]["name"].startswith("p.")
    assert node["metadata"]["namespace"] == "default"
    assert node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u2"}
    assert node["type"] == "Warning"


@virtually
async def test_the_same_again_is_counted(clock: Machine) -> None:
    scene = Scene(clock)
    async with scene.running():
        scene.recorder.note(POD, "ShardUnreachable", "a")
        await scene.seen()
        await clock.sleep(60)
        scene.recorder.note(POD, "ShardUnreachable", "a")
        [event] = await scene.seen()
        assert event["count"] == 2
        assert event["lastTimestamp"] > event["firstTimestamp"]
        scene.recorder.note(POD, "ShardUnreachable", "b")
        assert len(await scene.seen()) == 2
        await clock.sleep(3600)
        scene.recorder.note(POD, "ShardUnreachable", "a")
        assert len(await scene.seen()) == 3, "much later it is news again"


@virtually
async def test_a_storm_costs_one_call(clock: Machine) -> None:
    scene = Scene(clock)
    for _ in range(1000):
        scene.recorder.note(POD, "ProviderError", "again")
    async with scene.running():
        [event] = await scene.seen()
    assert event["count"] == 1000
    assert scene.calls == [memory.Verb.CREATE]


@virtually
async def test_an_event_that_the_server_forgot_is_made_anew(clock: Machine) -> None:
    scene = Scene(clock)
    async with scene.running():
        scene.recorder.note(POD, "Reason", "a")
        [event] = await scene.seen()
        await scene.kube.delete(kinds.EVENT, event["metadata"]["name"], namespace="default")
        scene.recorder.note(POD, "Reason", "a")
        [event] = await scene.seen()
        assert event["count"] == 1


@virtually
async def test_messages_that_differ_do_not_fill_the_server(clock: Machine) -> None:
    scene = Scene(clock)
    async with scene.running():
        for number in range(100):
            scene.recorder.note(POD, "Reason", f"attempt {number}")
        scene.recorder.note(NODE, "Reason", "another object has room")
        assert len(await scene.seen()) == events.MAX_PER_OBJECT + 1
        await clock.sleep(events.FORGET_SECONDS)
        scene.recorder.note(POD, "Reason", "later")
        assert len(await scene.seen()) == events.MAX_PER_OBJECT + 2


@virtually
async def test_too_many_are_dropped_and_counted(clock: Machine) -> None:
    scene = Scene(clock)
    for number in range(events.MAX_QUEUED + 5):
        scene.recorder.note(POD, "Reason", str(number))
    assert scene.recorder.dropped == 5


@pytest.mark.parametrize(
    ("problem", "arrives"),
    [
        (errors.UnavailableError("down"), True),
        (errors.ThrottledError("later", delay=3.0), True),
        (errors.ForbiddenError("no right"), False),
        (errors.UnknownOutcomeError("lost"), False),
    ],
)
def test_a_failing_server_fails_nobody(problem: errors.KubeError, arrives: bool) -> None:
    @virtually
    async def scene(clock: Machine) -> None:
        scene = Scene(clock)
        scene.fates = [memory.Fate(error=problem)]
        async with scene.running():
            scene.recorder.note(POD, "First", "a")
            scene.recorder.note(POD, "Second", "b")
            await clock.sleep(60)
            reasons = {event["reason"] for event in await scene.seen()}
            assert reasons == ({"First", "Second"} if arrives else {"Second"})
            assert scene.recorder.dropped == (0 if arrives else 1)

    scene()


@virtually
async def test_a_server_that_stays_down_holds_nothing_up_for_ever(clock: Machine) -> None:
    scene = Scene(clock)
    scene.fates = [memory.Fate(error=errors.UnavailableError("down"))] * events.ATTEMPTS
    async with scene.running():
        scene.recorder.note(POD, "First", "a")
        scene.recorder.note(POD, "Second", "b" * 5000)
        await clock.sleep(60)
        [event] = await scene.seen()
        assert event["reason"] == "Second"
        assert len(event["message"]) == 1024
        assert scene.recorder.dropped == 1
