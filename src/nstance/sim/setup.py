"""What one run is made of. Each seed draws a setup of its own, with only some of the faults: two faults that hide each other
when both are on meet alone in some runs."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from nstance.sim.wishes import GroupWish, Wishes

# Weight of each fault where it is on. The names are methods of `nemesis.Nemesis`.
FAULTS: Mapping[str, int] = {
    "kill": 6,
    "stop": 8,
    "freeze": 3,
    "cut_storage": 5,
    "brown_storage": 4,
    "cut_peers": 4,
    "jump_clock": 3,
    "resign": 4,
    "cut_agent": 5,
    "cut_most_agents": 4,
    "shut_agents_out": 3,
    "restart_agent": 3,
    "forget_agent": 2,
    "replay_nonce": 2,
    "notice": 5,
    "destroy_vm": 4,
    "stop_vm": 3,
    "strip_tags": 2,
    "plant_orphan": 2,
    "plant_stranger": 2,
    "plant_double": 2,
    "throttle": 4,
    "brown_provider": 4,
    "lose_capacity": 3,
    "lie_in_listing": 3,
    "scale": 8,
    "change_template": 4,
    "break_config": 2,
    "pester": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    servers: int = 2
    seconds: float = 40.0  # of faults
    every: float = 2.0  # seconds between two faults, on average
    faults: tuple[str, ...] = ()
    crash: float = 0.0  # likelihood of a crash at each named point
    pause: float = 0.0  # likelihood of a pause there
    storage: float = 0.0  # likelihood of each bad ending of a storage call
    provider: float = 0.0  # likelihood of each bad ending of a provider call
    bad_boots: float = 0.0  # VMs whose agent never speaks
    drift: float = 0.0  # how far a clock's rate may be off
    apart: float = 2.0  # seconds that the servers' wall clocks may be off
    lag: float = 0.0  # of what the provider shows
    boot: tuple[float, float] = (0.5, 4.0)  # how long VMs take to start
    dying: float = 2.0  # how long VMs run on after a delete
    stale_lists: float = 0.0  # likelihood that a listing of storage is out of date
    acknowledges: float = 0.7  # how likely the operator drains a node in time
    operator: bool = True
    snapshots: bool = False  # often, and with compaction
    latency: float = 1.0  # of storage, as a multiple of a cloud's (28 ms in the middle)
    audited: bool = True  # each step is judged; that takes too long for thousands of instances
    wishes: Wishes = field(default_factory=Wishes)

    @property
    def freezes(self) -> bool:
        return "freeze" in self.faults


def draw(seed: int, *, servers: int | None = None) -> Setup:
    r = random.Random(f"setup-{seed}")
    on = r.choice((0.15, 0.35, 0.6))
    faults = tuple(name for name in FAULTS if r.random() < on)
    size = r.choice((1, 2, 3, 3, 4, 5))
    groups = {"web": _group(r, size)}
    if r.random() < 0.4:
        groups["db"] = _group(r, r.choice((1, 2)))
    return Setup(
        servers=servers or r.choice((2, 2, 3)),
        seconds=r.uniform(25.0, 50.0),
        every=r.choice((1.5, 2.5, 5.0)),
        faults=faults,
        crash=r.choice((0.0, 0.0, 0.004, 0.015)),
        pause=r.choice((0.0, 0.0, 0.004, 0.01)),
        storage=r.choice((0.0, 0.002, 0.02)),
        provider=r.choice((0.0, 0.01, 0.05)),
        bad_boots=r.choice((0.0, 0.0, 0.1)),
        drift=r.choice((0.0, 0.001, 0.02)),
        apart=r.choice((2.0, 3600.0)),
        lag=r.choice((0.0, 0.0, 1.0, 4.0)),
        dying=r.choice((0.0, 2.0)),
        stale_lists=r.choice((0.0, 0.0, 0.1)),
        acknowledges=r.choice((0.0, 0.7, 1.0)),
        operator=r.random() < 0.7,
        snapshots=r.random() < 0.3,
        wishes=Wishes(groups=groups, heartbeat=r.choice((0.3, 0.6, 0.6, 0.6))),
    )


def _group(r: random.Random, size: int) -> GroupWish:
    surge = r.choice((0, 1, 1, 2))
    return GroupWish(
        size=size,
        max_surge=surge,
        max_unavailable=r.choice((0, 0, 1)) if surge else 1,
        drain=r.choice((0.0, 6.0, 12.0)),
    )
