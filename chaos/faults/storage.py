"""Storage is cut off, slow, failing or down."""

import asyncio
from collections import Counter

from chaos.faults.strike import Strike, fault, kill_some, restart
from chaos.storage import FaultModel
from chaos.world import World


async def _wait_and_count(world: World, strike: Strike, seconds: float, *names: str) -> None:
    """Kill a VM, so that there is something to write; wait; count what the proxies of these servers did."""
    kill_some(world, strike, 1)
    before = Counter[str]()
    for name in names:
        before += world.storage[name].counts
    try:
        await asyncio.sleep(seconds)
    finally:
        for name in names:
            world.storage[name].pass_on()
    await asyncio.sleep(0.2)
    after = sum((world.storage[name].counts for name in names), Counter[str]())
    after.subtract(before)
    strike.proof += Counter({name: count for name, count in after.items() if count > 0 and name != "requests"})


@fault("storage")
async def cut_storage(world: World, strike: Strike) -> None:
    """The leader's requests get no answer; its writes are applied when it has given them up."""
    _, name = world.lease()
    seconds = world.rng.choice((world.rng.uniform(0.5, 2.0), world.rng.uniform(4.0, 15.0)))
    strike.now = f"{name} has no storage for {seconds:.1f} s"
    world.storage[name].hold()
    await _wait_and_count(world, strike, seconds, name)


@fault("storage")
async def slow_storage(world: World, strike: Strike) -> None:
    """All requests are slow."""
    low = world.rng.uniform(0.05, 0.4)
    strike.now = f"storage takes {low:.1f} to {low * 4:.1f} s"
    for proxy in world.storage.values():
        proxy.fault_model = FaultModel(delay=(low, low * 4))
    await _wait_and_count(world, strike, world.rng.uniform(5.0, 12.0), *world.storage)


@fault("storage")
async def failing_storage(world: World, strike: Strike) -> None:
    """Some requests are refused, others are applied and their answers are lost."""
    strike.now = "half of all storage requests fail"
    for proxy in world.storage.values():
        proxy.fault_model = FaultModel(refused=0.2, lost=0.15, denied=0.15)
    await _wait_and_count(world, strike, world.rng.uniform(4.0, 10.0), *world.storage)


@fault("storage")
async def kill_storage(world: World, strike: Strike) -> None:
    """The S3 server is gone for a while."""
    strike.now = "the S3 server is killed"
    await world.s3.end()
    strike.proof["outages"] += 1
    kill_some(world, strike, 1)
    await restart(world, world.s3, world.rng.uniform(1.0, 8.0))


@fault("storage")
async def stop_storage(world: World, strike: Strike) -> None:
    """The S3 server accepts connections and does not answer."""
    seconds = world.rng.uniform(1.0, 8.0)
    strike.now = f"the S3 server is stopped for {seconds:.1f} s"
    world.s3.stop()
    try:
        kill_some(world, strike, 1)
        await asyncio.sleep(seconds)
    finally:
        world.s3.resume()
    strike.proof["outages"] += 1
