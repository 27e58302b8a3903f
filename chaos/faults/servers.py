"""Servers are killed, stopped, terminated, and lose their disks."""

import asyncio
import signal

from chaos.faults.strike import Strike, fault, kill_some, restart, wait_for_takeover
from chaos.world import World


@fault("servers")
async def kill_leader(world: World, strike: Strike) -> None:
    epoch, leader = world.lease()[0], world.leader()
    if leader is None:
        return
    strike.now = f"{leader.name} is killed"
    await leader.end()
    try:
        await wait_for_takeover(world, strike, epoch)
    finally:
        await restart(world, leader, world.rng.uniform(0.0, 2.0))


@fault("servers")
async def kill_standby(world: World, strike: Strike) -> None:
    standby = world.standby()
    if standby is None:
        return
    strike.now = f"{standby.name}, the standby, is killed"
    await standby.end()
    strike.proof["kills"] += 1
    await restart(world, standby, world.rng.uniform(0.5, 5.0))


@fault("servers")
async def kill_both(world: World, strike: Strike) -> None:
    """There is no server for a while; the one that starts first leads."""
    epoch = world.lease()[0]
    strike.now = "both servers are killed"
    try:
        for child in world.servers.values():
            await child.end()
            strike.proof["kills"] += 1
        await asyncio.sleep(world.rng.uniform(0.5, 4.0))
    finally:
        for child in world.servers.values():
            await restart(world, child, 0.0)
    await wait_for_takeover(world, strike, epoch)


@fault("servers")
async def stop_leader(world: World, strike: Strike) -> None:
    """SIGSTOP for less or more than a lease; then it continues in the middle of its work."""
    epoch, leader = world.lease()[0], world.leader()
    if leader is None:
        return
    seconds = world.rng.choice((world.rng.uniform(0.3, 1.5), world.rng.uniform(3.0, 12.0)))
    strike.now = f"{leader.name} is stopped for {seconds:.1f} s"
    leader.stop()
    try:
        await asyncio.sleep(seconds)
    finally:
        leader.resume()
    strike.proof["stops"] += 1
    strike.proof["takeovers"] += world.lease()[0] - epoch


@fault("servers")
async def stop_standby(world: World, strike: Strike) -> None:
    standby = world.standby()
    if standby is None:
        return
    seconds = world.rng.uniform(1.0, 8.0)
    strike.now = f"{standby.name}, the standby, is stopped for {seconds:.1f} s"
    standby.stop()
    try:
        await asyncio.sleep(seconds)
    finally:
        standby.resume()
    strike.proof["stops"] += 1


@fault("servers")
async def end_leader(world: World, strike: Strike) -> None:
    """An orderly stop (SIGTERM), as in an upgrade."""
    epoch, leader = world.lease()[0], world.leader()
    if leader is None:
        return
    strike.now = f"{leader.name} is terminated"
    try:
        status = await leader.end(signal.SIGTERM)
        if status != 0:
            strike.problems.append(f"{leader.life.name} ended with status {status} after SIGTERM")
        await wait_for_takeover(world, strike, epoch)
    finally:
        await restart(world, leader, world.rng.uniform(0.0, 2.0))


@fault("servers")
async def spoil_cache(world: World, strike: Strike) -> None:
    """A server that restarts finds garbage instead of its database."""
    child = world.rng.choice(list(world.servers.values()))
    strike.now = f"{child.name} is killed and its cache spoiled"
    await child.end()
    try:
        for path in (world.dir / f"cache-{child.name}").rglob("*.db"):
            path.write_bytes(world.rng.randbytes(20_000))
            strike.proof["databases spoiled"] += 1
    finally:
        await restart(world, child, 0.5)


@fault("servers", "agents")
async def full_disk(world: World, strike: Strike) -> None:
    """The leader can write to no file, neither its cache nor the directory of a VM; meanwhile a VM dies."""
    leader = world.leader()
    if leader is None or not leader.answers:
        return
    life, before = leader.life, leader.life.log.stat().st_size
    strike.now = f"the disk of {leader.name} is full"
    leader.fill_disk()
    try:
        kill_some(world, strike, 1)
        await asyncio.sleep(world.rng.uniform(6.0, 12.0))
    finally:
        leader.free_disk()
        world.vms.free_disks()
    with life.log.open("rb") as log:
        log.seek(before)
        text = log.read().decode(errors="replace")
    strike.proof["cache left the disk"] += text.count("continuing in memory")
    strike.proof["creates failed"] += text.count('"reason": "create-failed"') + text.count("File too large")
