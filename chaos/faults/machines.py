"""VMs die, and agents become unresponsive while their VMs run."""

import asyncio
import contextlib

from chaos.faults.strike import Strike, fault, kill_some, pick
from chaos.world import DEAD_AFTER, SUSPECT_AFTER, World

SHARE_KILLED = 0.15


@fault("agents")
async def kill_vms(world: World, strike: Strike) -> None:
    """A few VMs end."""
    strike.now = "a few VMs die"
    kill_some(world, strike, world.rng.randint(1, 3))
    await asyncio.sleep(2.0)


@fault("agents")
async def kill_many_vms(world: World, strike: Strike) -> None:
    """A zone loses many VMs at once."""
    count = max(2, round(SHARE_KILLED * world.agents))
    strike.now = f"{count} VMs die at once"
    kill_some(world, strike, count)
    await asyncio.sleep(5.0)


@fault("agents")
async def silence_vms(world: World, strike: Strike) -> None:
    """Agents hang for longer than `suspect_after` and recover: their instances stay."""
    chosen = pick(world, world.rng.randint(1, 3))
    seconds = world.rng.uniform(SUSPECT_AFTER + 2.0, DEAD_AFTER - 12.0)
    strike.now = f"{len(chosen)} agents hang for {seconds:.0f} s"
    try:
        strike.proof["agents stopped"] += sum(world.stop_agent(id) for id in chosen)
        await asyncio.sleep(seconds)
    finally:
        for id in chosen:
            world.resume_agent(id)


@fault("agents")
async def silence_vms_for_good(world: World, strike: Strike) -> None:
    """Agents hang until their instances are given up."""
    chosen = pick(world, 1)
    strike.now = f"{len(chosen)} agents hang for good"
    try:
        strike.proof["agents stopped"] += sum(world.stop_agent(id) for id in chosen)
        with contextlib.suppress(TimeoutError):
            deletions = world.vms.deletions
            seconds = DEAD_AFTER + 20.0
            await world.until(lambda: all(id in deletions() for id in chosen), seconds, "their deletion")
            strike.proof["given up"] += len(chosen)
    finally:
        for id in chosen:
            world.resume_agent(id)
