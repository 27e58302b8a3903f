"""A simulated operator: shows that it is there, sees what drains, and says when it is done. Or not."""

import asyncio
from typing import TYPE_CHECKING

from nstance.model import events as ev
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.model.instance import State
from nstance.objects.journal import DeposedError
from nstance.server.state.shard import Shard
from nstance.sim.server import SimServer

if TYPE_CHECKING:
    from nstance.sim.world import World

LOOKS_EVERY = 1.5


async def operate(world: "World") -> None:
    asked: dict[InstanceId, float] = {}
    while True:
        await asyncio.sleep(LOOKS_EVERY)
        server = world.leader()
        if server is None or server.lead is None or server.machine.stopped:
            continue
        lead = server.lead
        server.later(0.0, _watch, world, lead.shard)
        draining = State.DRAINING  # looked up once: thousands are gone through, every other second
        for instance in [each for each in lead.shard.instances.values() if each.state is draining]:
            patience = asked.get(instance.id)
            if patience is None:
                willing = world.quiet or world.random.random() < world.setup.acknowledges
                asked[instance.id] = world.now + world.random.uniform(0.5, 6.0) if willing else float("inf")
            elif world.quiet or world.now >= patience:
                server.spawn(_acknowledge(world, server, instance.id))


def _watch(world: "World", shard: Shard) -> None:
    """As one that drains. A watch of this moment: the lease carries it to the next look."""
    with shard.drainers.watching(DEFAULT_TENANT):
        world.auditor.operator_came = world.now


async def _acknowledge(world: "World", server: SimServer, id: InstanceId) -> None:
    lead = server.lead
    if lead is None:
        return
    world.auditor.about_to_acknowledge(id)
    try:
        refusal = await lead.shard.ask(ev.DrainAcknowledged(id))
    except DeposedError:
        world.count("drain acknowledgement lost with its leader")
        return
    if refusal is None:
        world.count("drain acknowledged")
        world.auditor.drain_acknowledged(id)
