"""The faults a run can have, and what each seed draws of them.

A seed has only some of the faults: two faults that hide each other when both are on occur alone in some runs.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nstance.sim.desired_groups import COLLECT_EVERY, FORCED_AGE, UNHEALTHY_AFTER, DesiredGroup, DesiredGroups
from nstance.sim.setup import Aim, Setup

# Weight of each fault where it is on. The names are methods of `nemesis.Nemesis`.
# fmt: off
FAULTS: Mapping[str, int] = {
    "kill": 6, "stop": 8, "freeze": 3, "cut_storage": 5, "brown_storage": 4, "cut_peers": 4, "jump_clock": 3,
    "resign": 4, "cut_agent": 5, "cut_most_agents": 4, "shut_agents_out": 3, "restart_agent": 3, "forget_agent": 2,
    "replay_nonce": 2, "clone_agent": 3, "notice": 5, "destroy_vm": 4, "stop_vm": 3, "strip_tags": 2,
    "plant_orphan": 2, "restore_backup": 2, "decide_unknown": 2, "plant_stranger": 2, "plant_double": 2,
    "throttle": 4, "brown_provider": 4, "lose_capacity": 3, "lie_in_listing": 3, "scale": 8, "change_template": 4,
    "spoil_template": 4, "change_files": 3, "change_limits": 2, "roll_back": 4, "resume_rollout": 3, "fail_checks": 4,
    "lose_secret": 3, "break_config": 2, "pester": 4, "reject_peers": 3, "slow_storage": 2, "exhaust_offers": 8,
    "change_offers": 4,
}
# fmt: on

# Moments after which a fault is most likely to hurt: something has just changed, and not every server knows it yet.
# fmt: off
MOMENTS = (
    "create", "delete", "listing", "term", "registration", "drain", "replacement", "end of a vm", "loss of an agent",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Theme:
    """What a seed concentrates on. Faults that must meet within seconds to do harm rarely meet among all the others."""

    faults: tuple[str, ...]
    moments: tuple[str, ...] = MOMENTS
    lag: tuple[float, ...] = (0.0, 0.0, 1.0, 4.0)
    collect: tuple[float, ...] = (COLLECT_EVERY,)
    # Faults in quick succession after one moment: one of each of these, in any order. Empty: one to three of `faults`.
    burst: tuple[tuple[str, ...], ...] = ()


# fmt: off
_LEADERS = (
    "kill", "stop", "freeze", "cut_storage", "brown_storage", "cut_peers", "jump_clock", "resign", "reject_peers",
    "slow_storage",
)
_AGENTS = (
    "clone_agent", "cut_agent", "cut_most_agents", "shut_agents_out", "restart_agent", "forget_agent", "replay_nonce",
    "notice",
)
# fmt: on
_CLOUD = ("destroy_vm", "stop_vm", "strip_tags", "throttle", "brown_provider", "lose_capacity", "lie_in_listing")
OFFER_FAULTS = ("exhaust_offers", "change_offers")  # drawn by `_draw_offers`
_PEOPLE = ("scale", "change_template", "break_config", "pester")
THEMES: Mapping[str, Theme] = {
    "everything": Theme(tuple(name for name in FAULTS if name not in OFFER_FAULTS)),
    # A new leader, which knows only the records, meets answers that lag.
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
OFFERS_SHARE, CHECKS_SHARE, EXPIRY_SHARE = 0.3, 0.3, 0.2  # of all seeds
_EVERYTHING_WEIGHT = 4  # how many times more often than one of the others


def draw(seed: int, *, servers: int | None = None) -> Setup:
    """The setup of a seed."""
    setup = _draw(seed, servers)
    # Random numbers of their own: seeds without these keep their schedules.
    r = random.Random(f"offers-{seed}")
    setup = _draw_offers(r, setup) if r.random() < OFFERS_SHARE else setup
    r = random.Random(f"checks-{seed}")
    setup = _draw_checks(r, setup) if r.random() < CHECKS_SHARE else setup
    r = random.Random(f"expiry-{seed}")
    return _draw_expiry(r, setup) if r.random() < EXPIRY_SHARE else setup


def _draw_checks(r: random.Random, setup: Setup) -> Setup:
    """All groups have checks, so that they keep them for the whole run."""
    unhealthy_after = r.choice((0.0, 0.0, UNHEALTHY_AFTER))
    groups = {
        name: replace(group, checks=1.0, unhealthy_after=unhealthy_after)
        for name, group in setup.desired_groups.groups.items()
    }
    return replace(setup, desired_groups=replace(setup.desired_groups, groups=groups))


def _draw_expiry(r: random.Random, setup: Setup) -> Setup:
    """Instances become too old while other things happen to them."""
    eligible, forced = r.choice(((None, 15.0), (None, 25.0), (8.0, FORCED_AGE), (12.0, 25.0)))
    return replace(setup, desired_groups=replace(setup.desired_groups, eligible_age=eligible, forced_age=forced))


def _draw_offers(r: random.Random, setup: Setup) -> Setup:
    """Groups with several markets and instance types, in a cloud that runs out of them."""
    groups = {
        name: replace(
            group,
            instance_types=r.choice((("small", "large"), ("small",))),
            markets=("spot", "on-demand"),
            prefer=r.choice(("loose", "strict")),
        )
        for name, group in setup.desired_groups.groups.items()
    }
    desired = replace(setup.desired_groups, groups=groups, capacity_retry=r.choice((2.0, 8.0)))
    aims = Aim(r.choice(MOMENTS), ("exhaust_offers",)), Aim(r.choice(MOMENTS), ("change_offers", "exhaust_offers"))
    number = r.choice((1, 2))  # of faults and aims: half of these seeds keep their instance types
    faults = (*setup.faults, *OFFER_FAULTS[:number])
    return replace(setup, desired_groups=desired, faults=faults, aims=(*setup.aims, *aims[:number]))


def _draw(seed: int, servers: int | None) -> Setup:
    r = random.Random(f"setup-{seed}")
    name = r.choice((*("everything",) * _EVERYTHING_WEIGHT, *THEMES, "lagging answers"))
    theme = THEMES[name]
    on = r.choice((0.15, 0.35, 0.6)) if name == "everything" else r.choice((0.3, 0.7))
    faults = tuple(fault for fault in theme.faults if r.random() < on)
    size = r.choice((1, 2, 3, 3, 4, 5))
    groups = {"web": _draw_group(r, size)}
    if r.random() < 0.4:
        groups["db"] = _draw_group(r, r.choice((1, 2)))
    return Setup(
        servers=servers or r.choice((2, 2, 3)),
        seconds=r.uniform(25.0, 50.0),
        every=r.choice((1.5, 2.5, 5.0)),
        faults=faults,
        theme=name,
        # Faults spread evenly over time rarely hit the few seconds after a change.
        aims=tuple(_draw_aim(r, theme) for _ in range(r.randint(0 if name == "everything" else 1, 2))),
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


def _draw_aim(r: random.Random, theme: Theme) -> Aim:
    burst = [r.choice(choices) for choices in theme.burst] or r.choices(theme.faults, k=r.randint(1, 3))
    r.shuffle(burst)
    return Aim(r.choice(theme.moments), tuple(burst))


def _draw_group(r: random.Random, size: int) -> DesiredGroup:
    return DesiredGroup(size=size, drain=r.choice((0.0, 6.0, 12.0)), balanced=r.random() < 0.5, **draw_limits(r))


def draw_limits(r: random.Random) -> dict[str, Any]:
    """The update settings of a group."""
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
