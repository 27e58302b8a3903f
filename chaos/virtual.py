"""The same fail-overs in the simulator: the product's leadership code in virtual time, over a loopback's latencies.

Nothing costs processor time there, so what is compared is the protocol: heartbeats, promises, lease, fence.
"""

import random
from collections.abc import Callable

from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.server import SimServer
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

CLOUD = 0.028  # seconds, the simulator's middle latency of storage
HEARTBEAT = 0.1  # as servers have it by default
LEADS_WITHIN = 60.0
SETTLING = 5.0
STEP = 0.001
ACTS_WITHIN = 30.0

Break = Callable[[World, SimServer], None]


def kill(w: World, leader: SimServer) -> None:
    w.kill(leader, back=3600.0)


def pause(w: World, leader: SimServer) -> None:
    w.stop(leader, 3600.0)


def resign(w: World, leader: SimServer) -> None:
    w.resign(leader)


def cut(w: World, leader: SimServer) -> None:
    w.storage_faults.cut[leader.name] = 1
    w.network.cut.add(frozenset(server.name for server in w.servers))


def measure(breaks: Break, *, count: int, storage: float) -> list[float]:
    """Seconds from the fault to the standby's open ports, `count` times, each with a seed of its own."""
    return [_one(breaks, seed, storage) for seed in range(count)]


def _one(breaks: Break, seed: int, storage: float) -> float:
    setup = Setup(
        servers=2,
        operator=False,
        audited=False,
        latency=storage / CLOUD,
        desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=0)}, heartbeat=HEARTBEAT),
    )
    with world(seed, setup) as w:
        w.begin()
        while w.leader() is None:
            if w.now > LEADS_WITHIN:
                raise TimeoutError(f"nobody leads after {LEADS_WITHIN:.0f} virtual seconds with seed {seed}")
            w.advance(0.1)
        # Not at the same beat of the heart each time.
        w.advance(SETTLING + random.Random(seed).uniform(0.0, 1.0))
        leader = w.leader()
        assert leader is not None
        (standby,) = (server for server in w.servers if server is not leader)
        began = w.now
        w.do(breaks, w, leader)
        while standby.door is None:
            if w.now - began > ACTS_WITHIN:
                raise TimeoutError(f"nobody took over within {ACTS_WITHIN:.0f} virtual seconds with seed {seed}")
            w.advance(STEP)
        return w.now - began
