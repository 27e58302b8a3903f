"""What one run is made of. Each seed draws a setup of its own, with only some of the faults: two faults that hide each other
when both are on meet alone in some runs."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nstance.sim.desired_groups import COLLECT_EVERY, DesiredGroup, DesiredGroups

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
    "clone_agent": 3,
    "notice": 5,
    "destroy_vm": 4,
    "stop_vm": 3,
    "strip_tags": 2,
    "plant_orphan": 2,
    "restore_backup": 2,
    "decide_unknown": 2,
    "plant_stranger": 2,
    "plant_double": 2,
    "throttle": 4,
    "brown_provider": 4,
    "lose_capacity": 3,
    "lie_in_listing": 3,
    "scale": 8,
    "change_template": 4,
    "spoil_template": 4,
    "change_files": 3,
    "change_limits": 2,
    "roll_back": 4,
    "resume_rollout": 3,
    "fail_checks": 4,
    "lose_secret": 3,
    "break_config": 2,
    "pester": 4,
    "reject_peers": 3,
    "slow_storage": 2,
}

# Moments after which a fault is most likely to hurt: something has just changed, and not everybody knows it yet. Told to
# `World.on_moment`.
MOMENTS = (
    "create",
    "delete",
    "listing",
    "term",
    "registration",
    "drain",
    "replacement",
    "end of a vm",
    "loss of an agent",
)


@dataclass(frozen=True, slots=True)
class Aim:
    """Faults that strike in quick succession, shortly after a moment of this kind."""

    moment: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Theme:
    """What a seed concentrates on. Faults that must meet within seconds to hurt are rare among all the others; where only
    a few kinds are drawn, and aimed at few moments, they meet."""

    faults: tuple[str, ...]
    moments: tuple[str, ...] = MOMENTS
    lag: tuple[float, ...] = (0.0, 0.0, 1.0, 4.0)
    collect: tuple[float, ...] = (COLLECT_EVERY,)
    # Faults in quick succession after one moment: one of each of these, in any order. Left out: one to three of `faults`.
    burst: tuple[tuple[str, ...], ...] = ()


_LEADERS = (
    "kill",
    "stop",
    "freeze",
    "cut_storage",
    "brown_storage",
    "cut_peers",
    "jump_clock",
    "resign",
    "reject_peers",
    "slow_storage",
)
_AGENTS = (
    "clone_agent",
    "cut_agent",
    "cut_most_agents",
    "shut_agents_out",
    "restart_agent",
    "forget_agent",
    "replay_nonce",
    "notice",
)
_CLOUD = ("destroy_vm", "stop_vm", "strip_tags", "throttle", "brown_provider", "lose_capacity", "lie_in_listing")
_PEOPLE = ("scale", "change_template", "break_config", "pester")
THEMES: Mapping[str, Theme] = {
    "everything": Theme(tuple(FAULTS)),
    # Somebody new looks, and what it sees is not all: a leader that knows only the records meets answers that lag.
    "lagging answers": Theme(
        ("resign", "strip_tags", "lie_in_listing", "throttle", "destroy_vm", "scale", "pester"),
        ("create", "delete", "listing", "registration"),
        lag=(4.0,),
        collect=(2.0, 2.0, COLLECT_EVERY),
        burst=(("strip_tags", "lie_in_listing", "throttle"), ("resign", "resign", "destroy_vm", "scale")),
    ),
    "leaders": Theme((*_LEADERS, "scale", "destroy_vm"), ("create", "delete", "term", "drain", "replacement")),
    "agents": Theme((*_AGENTS, "resign", "stop"), ("registration", "loss of an agent", "replacement", "term")),
    "restored backups": Theme(
        (
            "restore_backup",
            "scale",
            "destroy_vm",
            "resign",
            "pester",
            "plant_orphan",
            "decide_unknown",
            "change_template",
        ),
        ("create", "registration", "term", "replacement", "delete"),
    ),
    "cloud": Theme((*_CLOUD, "plant_orphan", "plant_double", "plant_stranger", "resign", "scale")),
    "people": Theme((*_PEOPLE, "resign", "stop", "brown_storage"), ("create", "drain", "replacement", "registration")),
}
_ALL_FAULTS = 4  # how many times more often than one of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    servers: int = 2
    seconds: float = 40.0  # of faults
    every: float = 2.0  # seconds between two faults, on average
    faults: tuple[str, ...] = ()
    theme: str = "everything"
    aims: tuple[Aim, ...] = ()
    crash: float = 0.0  # likelihood of a crash at each named point
    pause: float = 0.0  # likelihood of a pause there
    storage: float = 0.0  # likelihood of each bad ending of a storage call
    provider: float = 0.0  # likelihood of each bad ending of a provider call
    bad_boots: float = 0.0  # VMs whose agent never speaks
    broken_boots: float = 0.0  # VMs that never become ready
    drift: float = 0.0  # how far a clock's rate may be off
    apart: float = 2.0  # seconds that the servers' wall clocks may be off
    lag: float = 0.0  # of what the provider shows
    contradicts: bool = False  # single answers lag, listings do not
    boot: tuple[float, float] = (0.5, 4.0)  # how long VMs take to start
    dying: float = 2.0  # how long VMs run on after a delete
    stale_lists: float = 0.0  # likelihood that a listing of storage is out of date
    acknowledges: float = 0.7  # how likely the operator drains a node in time
    operator: bool = True
    snapshots: bool = False  # often, and with compaction
    latency: float = 1.0  # of storage, as a multiple of a cloud's (28 ms in the middle)
    audited: bool = True  # each step is judged; that takes too long for thousands of instances
    desired_groups: DesiredGroups = field(default_factory=DesiredGroups)

    @property
    def freezes(self) -> bool:
        return "freeze" in self.faults or any("freeze" in aim.faults for aim in self.aims)


def draw(seed: int, *, servers: int | None = None) -> Setup:
    r = random.Random(f"setup-{seed}")
    name = r.choice((*("everything",) * _ALL_FAULTS, *THEMES, "lagging answers"))
    theme = THEMES[name]
    on = r.choice((0.15, 0.35, 0.6)) if name == "everything" else r.choice((0.3, 0.7))
    faults = tuple(fault for fault in theme.faults if r.random() < on)
    size = r.choice((1, 2, 3, 3, 4, 5))
    groups = {"web": _group(r, size)}
    if r.random() < 0.4:
        groups["db"] = _group(r, r.choice((1, 2)))
    return Setup(
        servers=servers or r.choice((2, 2, 3)),
        seconds=r.uniform(25.0, 50.0),
        every=r.choice((1.5, 2.5, 5.0)),
        faults=faults,
        theme=name,
        # Faults spread evenly over time rarely hit the few seconds after a change.
        aims=tuple(_aim(r, theme) for _ in range(r.randint(0 if name == "everything" else 1, 2))),
        crash=r.choice((0.0, 0.0, 0.004, 0.015)),
        pause=r.choice((0.0, 0.0, 0.004, 0.01)),
        storage=r.choice((0.0, 0.002, 0.02)),
        provider=r.choice((0.0, 0.01, 0.05)),
        bad_boots=r.choice((0.0, 0.0, 0.1)),
        broken_boots=r.choice((0.0, 0.0, 0.1)),
        drift=r.choice((0.0, 0.001, 0.02)),
        apart=r.choice((2.0, 3600.0)),
        lag=r.choice(theme.lag),
        contradicts=r.random() < 0.5,
        dying=r.choice((0.0, 2.0)),
        stale_lists=r.choice((0.0, 0.0, 0.1)),
        acknowledges=r.choice((0.0, 0.7, 1.0)),
        operator=r.random() < 0.7,
        snapshots=r.random() < 0.3,
        desired_groups=DesiredGroups(
            groups=groups,
            heartbeat=r.choice((0.3, 0.6, 0.6, 0.6)),
            collect=r.choice(theme.collect),
            unknown=r.choice(("hold", "hold", "hold", "delete")),
            on_clone=r.choice(("alarm", "replace")),
        ),
    )


def _aim(r: random.Random, theme: Theme) -> Aim:
    burst = [r.choice(some) for some in theme.burst] or r.choices(theme.faults, k=r.randint(1, 3))
    r.shuffle(burst)
    return Aim(r.choice(theme.moments), tuple(burst))


def _group(r: random.Random, size: int) -> DesiredGroup:
    return DesiredGroup(size=size, drain=r.choice((0.0, 6.0, 12.0)), balanced=r.random() < 0.5, **limits(r))


def limits(r: random.Random) -> dict[str, Any]:
    """How a group is updated."""
    surge = r.choice((0, 1, 1, 2))
    return {
        "max_surge": surge,
        "max_unavailable": r.choice((0, 0, 1)) if surge else 1,
        "order": r.choice(("parallel", "parallel", "serial")),
        "settle": r.choice((0.0, 4.0)),
        "canary": r.choice((0, 0, 0, 1)),
        "pause": r.choice(("wait", "5s", "stop")),
        "max_failures": r.choice((1, 2, 2)),
        "on_failure": r.choice(("halt", "halt", "rollback")),
    }
