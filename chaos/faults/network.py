"""Peers and agents are cut off without a reset: packets are only lost."""

import asyncio
import contextlib
import time

from bench.wires import Wire

from chaos.faults.strike import Strike, fault
from chaos.world import DEAD_AFTER, SUSPECT_AFTER, Harm, World


@fault("peers")
async def cut_peers(world: World, strike: Strike) -> None:
    """Leader and standby are cut off from each other; storage decides."""
    seconds = world.rng.uniform(1.0, 12.0)
    strike.now = f"a and b are cut off from each other for {seconds:.1f} s"
    await _hold_wires(list(world.peers.values()), strike, seconds)


@fault("peers", "storage")
async def cut_leader(world: World, strike: Strike) -> None:
    """The leader is cut off from storage and peers, but not from its agents."""
    epoch, name = world.lease()
    seconds = world.rng.uniform(3.0, 15.0)
    strike.now = f"{name} is cut off from storage and peers for {seconds:.1f} s"
    storage = world.storage[name]
    held = storage.counts["requests held"]
    storage.hold()
    try:
        await _hold_wires(list(world.peers.values()), strike, seconds)
    finally:
        storage.pass_on()
    strike.proof["requests held"] += storage.counts["requests held"] - held
    strike.proof["takeovers"] += world.lease()[0] - epoch


async def _hold_wires(wires: list[Wire], strike: Strike, seconds: float) -> None:
    before = sum(wire.counts["connections held"] for wire in wires)
    try:
        for wire in wires:
            wire.hold()
        await asyncio.sleep(seconds)
    finally:
        for wire in wires:
            wire.pass_on()
        strike.proof["connections held"] += sum(wire.counts["connections held"] for wire in wires) - before


def _fronts(world: World) -> list[Wire]:
    return [wire for wires in world.fronts.values() for wire in wires]


@fault("network")
async def cut_agents(world: World, strike: Strike) -> None:
    """All agents are cut off. The fault is on the servers' side, so nothing may be replaced."""
    seconds = world.rng.uniform(SUSPECT_AFTER + 2.0, DEAD_AFTER - 6.0)
    strike.now = f"all agents are cut off for {seconds:.0f} s"
    cut = Harm("cut", time.time())
    world.cuts.append(cut)
    before = set(world.vms.ids())
    try:
        await _hold_wires(_fronts(world), strike, seconds)
    finally:
        cut.ended = time.time()
    made = len(set(world.vms.ids()) - before)
    if made > world.agents / 3 + 3:  # other faults may have killed some meanwhile
        strike.problems.append(f"{made} VMs were created while all agents were cut off")


@fault("network")
async def cut_some_agents(world: World, strike: Strike) -> None:
    """Connections that are dead without a reset; new ones work."""
    share = world.rng.uniform(0.1, 0.6)
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: sum(wire.connections for wire in _fronts(world)) > world.agents / 2, 15.0, "agents")
    strike.now = f"{share:.0%} of the agents' connections are dead"
    cut = Harm("cut", time.time())
    world.cuts.append(cut)
    try:
        for wire in _fronts(world):
            strike.proof["connections held"] += wire.hold_some(share, world.rng)
        await asyncio.sleep(world.rng.uniform(5.0, 15.0))
    finally:
        for wire in _fronts(world):
            wire.pass_on()
        cut.ended = time.time()
