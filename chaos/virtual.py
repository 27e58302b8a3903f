"""The same failovers in the simulator: the product's leadership code in virtual time, with the latencies of loopback.

Nothing costs processor time there, so what is compared is the protocol: heartbeats, promises, lease, fence.
"""

import random
from collections.abc import Callable

from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.server import SimServer
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

MEDIAN_LATENCY_SECONDS = 0.028  # of the simulator's storage
HEARTBEAT_SECONDS = 0.1  # the default of servers
ELECTION_SECONDS = 60.0
SETTLE_SECONDS = 5.0
STEP_SECONDS = 0.001
TAKEOVER_SECONDS = 30.0

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
    return [_measure_one(breaks, seed, storage) for seed in range(count)]


def _measure_one(breaks: Break, seed: int, storage: float) -> float:
    setup = Setup(
        servers=2,
        operator=False,
        audited=False,
        latency=storage / MEDIAN_LATENCY_SECONDS,
        desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=0)}, heartbeat=HEARTBEAT_SECONDS),
    )
    with world(seed, setup) as w:
        w.begin()
        while w.leader() is None:
            if w.now > ELECTION_SECONDS:
                raise TimeoutError(f"no leader after {ELECTION_SECONDS:.0f} virtual seconds with seed {seed}")
            w.advance(0.1)
        # Each time at another moment between two heartbeats.
        w.advance(SETTLE_SECONDS + random.Random(seed).uniform(0.0, 1.0))
        leader = w.leader()
        assert leader is not None
        (standby,) = (server for server in w.servers if server is not leader)
        began = w.now
        w.do(breaks, w, leader)
        while standby.agent_port is None:
            if w.now - began > TAKEOVER_SECONDS:
                raise TimeoutError(f"no takeover within {TAKEOVER_SECONDS:.0f} virtual seconds with seed {seed}")
            w.advance(STEP_SECONDS)
        return w.now - began
