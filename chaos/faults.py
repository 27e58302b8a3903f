"""What is done to the shard. Each fault is a function that breaks something, waits, and cures it again, whatever happens.

It writes down what shows that it mattered (`strike.proof`): a fault that nobody noticed proves nothing. `touches` says what
it breaks, so that two faults at a time never work on the same thing. How long each lasts comes from the seed.
"""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos import hostile, proxies
from chaos.children import Child
from chaos.world import DEAD_AFTER, SUSPECT_AFTER, Harm, World

TAKEN_OVER_WITHIN = 30.0  # with a lease of 15 s, if the leader was alone
SHARE_KILLED = 0.15


@dataclass
class Strike:
    """One fault, from its beginning to its cure."""

    name: str
    began: float = field(default_factory=time.time)
    ended: float = float("inf")
    now: str = ""  # in words, for whoever watches
    proof: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


Act = Callable[[World, Strike], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Act
    touches: frozenset[str]


FAULTS: dict[str, Fault] = {}


def fault(*touches: str) -> Callable[[Act], Act]:
    def note(act: Act) -> Act:
        name = act.__name__
        FAULTS[name] = Fault(name, act, frozenset(touches))
        return act

    return note


async def _taken_over(world: World, strike: Strike, epoch: int) -> None:
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: world.lease()[0] > epoch, TAKEN_OVER_WITHIN, "another epoch")
        strike.proof["takeovers"] += world.lease()[0] - epoch


async def _restart(world: World, child: Child, wait: float) -> None:
    await asyncio.sleep(wait)
    if not child.runs:
        child.start()


# ---- servers


@fault("servers")
async def kill_leader(world: World, strike: Strike) -> None:
    """F14."""
    epoch, leader = world.lease()[0], world.leader()
    if leader is None:
        return
    strike.now = f"{leader.name} is killed"
    await leader.end()
    try:
        await _taken_over(world, strike, epoch)
    finally:
        await _restart(world, leader, world.chance.uniform(0.0, 2.0))


@fault("servers")
async def kill_standby(world: World, strike: Strike) -> None:
    standby = world.standby()
    if standby is None:
        return
    strike.now = f"{standby.name}, the standby, is killed"
    await standby.end()
    strike.proof["kills"] += 1
    await _restart(world, standby, world.chance.uniform(0.5, 5.0))


@fault("servers")
async def kill_both(world: World, strike: Strike) -> None:
    """F27 in small: nobody is there; whoever starts first leads."""
    epoch = world.lease()[0]
    strike.now = "both servers are killed"
    try:
        for child in world.servers.values():
            await child.end()
            strike.proof["kills"] += 1
        await asyncio.sleep(world.chance.uniform(0.5, 4.0))
    finally:
        for child in world.servers.values():
            await _restart(world, child, 0.0)
    await _taken_over(world, strike, epoch)


@fault("servers")
async def stop_leader(world: World, strike: Strike) -> None:
    """F15: SIGSTOP, for shorter or longer than a lease; then it wakes up in the middle of what it was doing."""
    epoch, leader = world.lease()[0], world.leader()
    if leader is None:
        return
    seconds = world.chance.choice((world.chance.uniform(0.3, 1.5), world.chance.uniform(3.0, 12.0)))
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
    seconds = world.chance.uniform(1.0, 8.0)
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
    strike.now = f"{leader.name} is asked to end"
    try:
        status = await leader.end(signal.SIGTERM)
        if status != 0:
            strike.problems.append(f"{leader.life.name} ended with status {status} when asked to end")
        await _taken_over(world, strike, epoch)
    finally:
        await _restart(world, leader, world.chance.uniform(0.0, 2.0))


@fault("servers")
async def spoil_cache(world: World, strike: Strike) -> None:
    """F42: a server that comes back finds garbage in the place of its database."""
    child = world.chance.choice(list(world.servers.values()))
    strike.now = f"{child.name} is killed and its cache spoiled"
    await child.end()
    try:
        for path in (world.home / f"cache-{child.name}").rglob("*.db"):
            path.write_bytes(world.chance.randbytes(20_000))
            strike.proof["databases spoiled"] += 1
    finally:
        await _restart(world, child, 0.5)


@fault("servers", "agents")
async def full_disk(world: World, strike: Strike) -> None:
    """F41: the leader can write to no file, neither its cache nor a new VM's directory; meanwhile a VM dies."""
    leader = world.leader()
    if leader is None or not leader.answers:
        return
    life, before = leader.life, leader.life.log.stat().st_size
    strike.now = f"the disk of {leader.name} is full"
    leader.fill_disk()
    try:
        _kill_some(world, strike, 1)
        await asyncio.sleep(world.chance.uniform(6.0, 12.0))
    finally:
        leader.free_disk()
        world.vms.free_disks()
    with life.log.open("rb") as log:
        log.seek(before)
        said = log.read().decode(errors="replace")
    strike.proof["cache left the disk"] += said.count("goes on in memory")
    strike.proof["creates failed"] += said.count('"reason": "create-failed"') + said.count("File too large")


# ---- storage


async def _storage(world: World, strike: Strike, seconds: float, *names: str) -> None:
    """Let a VM die, so that there is something to write; wait; and count what the proxies of these servers did."""
    _kill_some(world, strike, 1)
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
    strike.proof += Counter({what: count for what, count in after.items() if count > 0 and what != "requests"})


@fault("storage")
async def cut_storage(world: World, strike: Strike) -> None:
    """F17: the leader's requests get no answer; its writes happen later, when it does not expect them any more (F31)."""
    _, name = world.lease()
    seconds = world.chance.choice((world.chance.uniform(0.5, 2.0), world.chance.uniform(4.0, 15.0)))
    strike.now = f"{name} has no storage for {seconds:.1f} s"
    world.storage[name].hold()
    await _storage(world, strike, seconds, name)


@fault("storage")
async def slow_storage(world: World, strike: Strike) -> None:
    """F29: everybody's requests take long."""
    low = world.chance.uniform(0.05, 0.4)
    strike.now = f"storage takes {low:.1f} to {low * 4:.1f} s"
    for proxy in world.storage.values():
        proxy.weather = proxies.Weather(delay=(low, low * 4))
    await _storage(world, strike, world.chance.uniform(5.0, 12.0), *world.storage)


@fault("storage")
async def failing_storage(world: World, strike: Strike) -> None:
    """F28, F30: some requests are refused, others happen and nobody is told."""
    strike.now = "storage fails every other time"
    for proxy in world.storage.values():
        proxy.weather = proxies.Weather(refused=0.2, lost=0.15, denied=0.15)
    await _storage(world, strike, world.chance.uniform(4.0, 10.0), *world.storage)


@fault("storage")
async def kill_storage(world: World, strike: Strike) -> None:
    """The S3 server is gone for a while."""
    strike.now = "the S3 server is killed"
    await world.s3.end()
    strike.proof["outages"] += 1
    _kill_some(world, strike, 1)
    await _restart(world, world.s3, world.chance.uniform(1.0, 8.0))


@fault("storage")
async def stop_storage(world: World, strike: Strike) -> None:
    """The S3 server accepts connections and says nothing."""
    seconds = world.chance.uniform(1.0, 8.0)
    strike.now = f"the S3 server is stopped for {seconds:.1f} s"
    world.s3.stop()
    try:
        _kill_some(world, strike, 1)
        await asyncio.sleep(seconds)
    finally:
        world.s3.resume()
    strike.proof["outages"] += 1


# ---- network


@fault("peers")
async def cut_peers(world: World, strike: Strike) -> None:
    """F18: leader and standby do not hear each other; storage decides."""
    seconds = world.chance.uniform(1.0, 12.0)
    strike.now = f"a and b are cut off from each other for {seconds:.1f} s"
    await _hold_wires(list(world.peers.values()), strike, seconds)


@fault("peers", "storage")
async def cut_leader(world: World, strike: Strike) -> None:
    """The leader is cut off from storage and peers, without a reset; its agents still hear it."""
    epoch, name = world.lease()
    seconds = world.chance.uniform(3.0, 15.0)
    strike.now = f"{name} is cut off from everything but its agents for {seconds:.1f} s"
    storage = world.storage[name]
    held = storage.counts["requests held"]
    storage.hold()
    try:
        await _hold_wires(list(world.peers.values()), strike, seconds)
    finally:
        storage.pass_on()
    strike.proof["requests held"] += storage.counts["requests held"] - held
    strike.proof["takeovers"] += world.lease()[0] - epoch


async def _hold_wires(wires: list[proxies.Wire], strike: Strike, seconds: float) -> None:
    before = sum(wire.counts["connections held"] for wire in wires)
    try:
        for wire in wires:
            wire.hold()
        await asyncio.sleep(seconds)
    finally:
        for wire in wires:
            wire.pass_on()
        strike.proof["connections held"] += sum(wire.counts["connections held"] for wire in wires) - before


def _fronts(world: World) -> list[proxies.Wire]:
    return [wire for wires in world.fronts.values() for wire in wires]


@fault("network")
async def cut_agents(world: World, strike: Strike) -> None:
    """F59: nobody hears any agent. The fault is here and not there, so nothing may be replaced."""
    seconds = world.chance.uniform(SUSPECT_AFTER + 2.0, DEAD_AFTER - 6.0)
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
        strike.problems.append(f"F59: {made} VMs were made while all agents were cut off")


@fault("network")
async def cut_some_agents(world: World, strike: Strike) -> None:
    """Connections that are dead without a reset; new ones work."""
    share = world.chance.uniform(0.1, 0.6)
    strike.now = f"{share:.0%} of the agents' connections are dead"
    cut = Harm("cut", time.time())
    world.cuts.append(cut)
    try:
        for wire in _fronts(world):
            strike.proof["connections held"] += wire.hold_some(share, world.chance)
        await asyncio.sleep(world.chance.uniform(5.0, 15.0))
    finally:
        for wire in _fronts(world):
            wire.pass_on()
        cut.ended = time.time()


# ---- agents and their VMs


def _healthy(world: World) -> list[str]:
    """Registered, running, and never harmed."""
    ids = [id for id in world.vms.running() if id not in world.harm]
    return [id for id in ids if (world.vms.root / id / "recv" / "motd").exists()]


def _some(world: World, count: int) -> list[str]:
    healthy = _healthy(world)
    return world.chance.sample(healthy, min(count, len(healthy)))


def _kill_some(world: World, strike: Strike, count: int) -> None:
    strike.proof["VMs killed"] += sum(world.kill(id) for id in _some(world, count))


@fault("agents")
async def kill_vms(world: World, strike: Strike) -> None:
    """F13: a few VMs end."""
    strike.now = "a few VMs die"
    _kill_some(world, strike, world.chance.randint(1, 3))
    await asyncio.sleep(2.0)


@fault("agents")
async def kill_many_vms(world: World, strike: Strike) -> None:
    """A zone loses many VMs at once."""
    count = max(2, round(SHARE_KILLED * world.agents))
    strike.now = f"{count} VMs die at once"
    _kill_some(world, strike, count)
    await asyncio.sleep(5.0)


@fault("agents")
async def silence_vms(world: World, strike: Strike) -> None:
    """F60: agents stand still, longer than it takes to become suspect, and come back: they stay."""
    chosen = _some(world, world.chance.randint(1, 3))
    seconds = world.chance.uniform(SUSPECT_AFTER + 2.0, DEAD_AFTER - 12.0)
    strike.now = f"{len(chosen)} agents stand still for {seconds:.0f} s"
    try:
        strike.proof["agents silenced"] += sum(world.silence(id) for id in chosen)
        await asyncio.sleep(seconds)
    finally:
        for id in chosen:
            world.release(id)


@fault("agents")
async def silence_vms_for_good(world: World, strike: Strike) -> None:
    """Agents stand still for so long that they are given up."""
    chosen = _some(world, 1)
    strike.now = f"{len(chosen)} agents stand still for good"
    try:
        strike.proof["agents silenced"] += sum(world.silence(id) for id in chosen)
        with contextlib.suppress(TimeoutError):
            buried = world.vms.buried
            seconds = DEAD_AFTER + 20.0
            await world.until(lambda: all(id in buried() for id in chosen), seconds, "their deletion")
            strike.proof["given up"] += len(chosen)
    finally:
        for id in chosen:
            world.release(id)


# ---- hostile clients


def _hostile(act: hostile.Attack) -> Act:
    async def strike_with(world: World, strike: Strike) -> None:
        strike.now = (act.__doc__ or "").partition("\n")[0].rstrip(".").lower()
        said = await act(world)
        strike.proof += said.counts
        strike.problems += said.problems

    strike_with.__name__ = act.__name__
    return fault("hostile")(strike_with)


for _each in hostile.ATTACKS:
    _hostile(_each)
