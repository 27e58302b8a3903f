"""Cordoning and giving back, when they meet each other, a person, or a mirror that lags."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, cast

from nstance.clock import SystemRng
from nstance.kube import errors, kinds, memory
from nstance.kube.kinds import Kind
from nstance.kube.memory import Fate, MemoryKube, Verb
from nstance.operator.controllers.drains import DRAINING_ANNOTATION, Drains
from nstance.operator.controllers.nodes import Nodes
from nstance.sim.loop import Machine
from nstance.v1 import operator_pb2 as pb
from support import operator_parts
from support.virtual_time import virtually

NODE = "web-1"
DRAINS = pb.InstanceEvent(instance_id=NODE, provider_id=f"dev:///{NODE}", state="draining", waits=True)
RUNS = pb.InstanceEvent(instance_id=NODE, provider_id=f"dev:///{NODE}", state="running")


class OneShard:
    """Of a cluster with one node, which gets acknowledgments of drains."""

    name, synced, unsynced_reason = "a", True, ""
    groups: dict[str, pb.GroupStatus] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.instances: dict[str, pb.InstanceEvent] = {}
        self.acknowledged = asyncio.Event()

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse:
        self.acknowledged.set()
        return pb.AcknowledgeDrainedResponse(accepted=True)

    def names(self) -> tuple[str, ...]:
        return ("a",)

    def get(self, name: str) -> "OneShard | None":
        return self if name == "a" else None


@dataclasses.dataclass
class World:
    clock: Machine
    person: MemoryKube  # what somebody else does
    client: MemoryKube  # the operator's
    drains: Drains
    shard: OneShard
    fates: dict[Verb, Fate]  # of the operator's own calls for nodes

    def hear(self, event: pb.InstanceEvent) -> None:
        self.shard.instances[NODE] = event
        self.drains.on_instance_change("a", event)

    async def cordoned(self) -> bool:
        return bool((await self.person.get(kinds.NODE, NODE)).get("spec", {}).get("unschedulable"))

    async def cordon(self, yes: bool | None) -> None:
        await self.person.patch(kinds.NODE, NODE, {"spec": {"unschedulable": yes}})

    async def marked(self) -> bool:
        return DRAINING_ANNOTATION in ((await self.person.get(kinds.NODE, NODE))["metadata"].get("annotations") or {})


@contextlib.asynccontextmanager
async def world(clock: Machine) -> AsyncIterator[World]:
    rng = SystemRng()
    api = memory.cluster(clock, rng)
    person = MemoryKube(api, clock)
    fates: dict[Verb, Fate] = {}

    async def fate(verb: Verb, kind: Kind, name: str) -> Fate:
        return fates.get(verb, Fate()) if kind == kinds.NODE else Fate()

    kube = MemoryKube(api, clock, faults=fate)
    shard = OneShard()
    parts = operator_parts.made(kube, cast(Any, shard), clock=clock, rng=rng)
    mirror = parts.mirrors.of(kinds.NODE)
    drains = Drains(parts, Nodes(kube, mirror))
    await person.create(kinds.NODE, {"metadata": {"name": NODE}, "spec": {"providerID": f"dev:///{NODE}"}})
    tasks = [asyncio.create_task(work) for work in (mirror.run(), drains.run())]
    try:
        await mirror.synced.wait()
        yield World(clock, person, kube, drains, shard, fates)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stuck_pod(world: World) -> None:
    body = {
        "metadata": {"name": "stays", "finalizers": ["example.com/never"]},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]},
    }
    await world.person.create(kinds.POD, body, namespace="default")


def lag(world: World) -> None:
    """From now on the mirror learns nothing."""
    world.fates[Verb.WATCH] = world.fates[Verb.LIST] = Fate(error=errors.UnavailableError("down"))
    world.client.break_watches()


@virtually
async def test_a_node_that_drains_again_is_not_given_back(clock: Machine) -> None:
    async with world(clock) as here:
        await stuck_pod(here)
        here.hear(DRAINS)
        await clock.sleep(10)
        assert await here.cordoned()
        here.fates[Verb.PATCH] = Fate(error=errors.UnavailableError("down"))
        here.hear(RUNS)
        await clock.sleep(10)
        here.hear(DRAINS)
        here.fates.clear()
        await clock.sleep(60)
        assert await here.cordoned()


@virtually
async def test_a_drain_that_begins_while_its_node_is_given_back_cordons_it_again(clock: Machine) -> None:
    async with world(clock) as here:
        await stuck_pod(here)
        here.hear(DRAINS)
        await clock.sleep(10)
        here.fates[Verb.PATCH] = Fate(before=3.0)  # on its way
        here.hear(RUNS)
        await clock.sleep(1)
        here.hear(DRAINS)
        await clock.sleep(60)
        assert await here.cordoned()


@virtually
async def test_a_cordon_that_is_on_its_way_when_its_drain_is_cancelled_is_taken_back(clock: Machine) -> None:
    async with world(clock) as here:
        here.fates[Verb.PATCH] = Fate(before=3.0)
        here.hear(DRAINS)
        await clock.sleep(1)
        here.hear(RUNS)
        await clock.sleep(60)
        assert not await here.cordoned()
        assert not await here.marked()


@virtually
async def test_a_persons_cordon_that_the_mirror_has_not_seen_stays(clock: Machine) -> None:
    async with world(clock) as here:
        await stuck_pod(here)
        lag(here)
        await here.cordon(True)
        here.hear(DRAINS)
        await clock.sleep(10)
        assert not await here.marked()
        here.hear(RUNS)
        await clock.sleep(60)
        assert await here.cordoned()


@virtually
async def test_a_persons_cordon_between_our_look_and_our_write_stays(clock: Machine) -> None:
    async with world(clock) as here:
        await stuck_pod(here)
        here.fates[Verb.PATCH] = Fate(before=2.0)
        here.hear(DRAINS)
        await clock.sleep(1)
        await here.cordon(True)
        await clock.sleep(10)
        assert not await here.marked()


@virtually
async def test_a_cordon_that_is_gone_though_the_mirror_still_has_it_is_made(clock: Machine) -> None:
    async with world(clock) as here:
        await stuck_pod(here)
        await here.cordon(True)
        await clock.sleep(1)
        lag(here)
        await here.cordon(None)
        here.hear(DRAINS)
        await clock.sleep(10)
        assert await here.cordoned()


@virtually
async def test_a_node_that_is_deleted_by_hand_does_not_hold_its_drain(clock: Machine) -> None:
    async with world(clock) as here:
        lag(here)
        await here.person.delete(kinds.NODE, NODE)
        here.hear(DRAINS)
        async with asyncio.timeout(60):
            await here.shard.acknowledged.wait()
