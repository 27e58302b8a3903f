"""A simulated operator: watches the shard, and acknowledges drains in time or not."""

import asyncio
from math import inf
from typing import TYPE_CHECKING

from nstance.model import events as ev
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.model.instance import State
from nstance.objects.journal import DeposedError
from nstance.server.state.shard import Shard
from nstance.sim.server import SimServer

if TYPE_CHECKING:
    from nstance.sim.world import World

POLL_SECONDS = 1.5


async def operate(world: "World") -> None:
    acknowledge_at: dict[InstanceId, float] = {}
    while True:
        await asyncio.sleep(POLL_SECONDS)
        server = world.leader()
        if server is None or server.lead is None or server.machine.stopped:
            continue
        shard = server.lead.shard
        server.later(0.0, _watch, world, shard)
        draining = State.DRAINING  # looked up once: there are thousands of instances
        for id in [instance.id for instance in shard.instances.values() if instance.state is draining]:
            due = acknowledge_at.get(id)
            if due is None:
                acknowledges = world.faults_stopped or world.random.random() < world.setup.acknowledges
                acknowledge_at[id] = world.now + world.random.uniform(0.5, 6.0) if acknowledges else inf
            elif world.faults_stopped or world.now >= due:
                server.spawn(_acknowledge(world, server, id))


def _watch(world: "World", shard: Shard) -> None:
    """Watch as a drainer for a moment: its lease lasts until the next poll."""
    with shard.drainers.watching(DEFAULT_TENANT):
        world.auditor.operator_seen_at = world.now


async def _acknowledge(world: "World", server: SimServer, id: InstanceId) -> None:
    if server.lead is None:
        return
    world.auditor.drained.add(id)
    try:
        refusal = await server.lead.shard.ask(ev.DrainAcknowledged(id))
    except DeposedError:
        world.count("drain acknowledgement lost with its leader")
        return
    if refusal is None:
        world.count("drain acknowledged")
        world.auditor.on_drain_acknowledged(id)
