"""What may happen to a shard on a day that lasts so many seconds. Each scenario says when, and for how long it goes on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.sim.desired_groups import DesiredGroups
from nstance.sim.world import World

SPOT_WARNING = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given(DesiredGroups):
    """A configuration that somebody else wrote."""

    document: dict[str, Any] = field(default_factory=dict)
    all_spot: bool = False  # as if every VM were one

    def _document(self) -> dict[str, object]:
        return self.document


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    lasts: float
    name: str
    act: Callable[[], object]


Scenario = Callable[[World, float], list[Happening]]


def is_spot(args: object) -> bool:
    """Whether a VM with these arguments is one that the provider may take back: on AWS InstanceMarketOptions.MarketType
    says so, on Google scheduling.provisioningModel or scheduling.preemptible."""
    if isinstance(args, Mapping):
        return args.get("preemptible") is True or any(map(is_spot, args.values()))
    if isinstance(args, list | tuple):
        return any(map(is_spot, args))
    return isinstance(args, str) and args.lower() == "spot"


def spot_storm(w: World, seconds: float) -> list[Happening]:
    """The provider takes half of all spot VMs back, with two minutes of warning each."""

    def storm() -> None:
        everything = isinstance(w.desired_groups, Given) and w.desired_groups.all_spot
        victims = [a for a in w.agents() if a.alive and (everything or is_spot(a.request.args))]
        for agent in w.random.sample(victims, len(victims) // 2):
            warned = w.random.uniform(0.0, 60.0)
            w.later(warned, agent.tell, "SPOT_TERMINATION", SPOT_WARNING)
            w.later(warned + SPOT_WARNING, w.cloud.destroy, agent.id)

    return [Happening(seconds * 0.3, 60.0 + SPOT_WARNING, "half of all spot VMs are taken back", storm)]


def zone_brown_out(w: World, seconds: float) -> list[Happening]:
    """For a tenth of the time the provider is slow and half of the calls to it end badly, and a tenth of the VMs die at its
    beginning."""

    def begin() -> None:
        w.provider_faults.brown = 0.1
        w.provider_faults.brown_until = w.now + seconds * 0.1
        victims = [a for a in w.agents() if a.alive]
        for agent in w.random.sample(victims, min(len(victims), max(1, len(victims) // 10))):
            w.cloud.destroy(agent.id)

    return [Happening(seconds * 0.3, seconds * 0.1, "brown-out, and a tenth of the VMs die", begin)]


def bad_image(w: World, seconds: float) -> list[Happening]:
    """A new template whose VMs never register, taken back after a while."""
    old = w.desired_groups

    def change(spoiled: bool, desired_groups: DesiredGroups) -> None:
        w.spoil_boots(spoiled)
        w.tell(desired_groups)

    return [
        Happening(seconds * 0.3, 0.0, "a bad image", lambda: change(True, _changed(old, "bad"))),
        Happening(seconds * 0.6, 0.0, "the old one again", lambda: change(False, old)),
    ]


def slow_storage(w: World, seconds: float) -> list[Happening]:
    """Object storage takes ten times as long and fails now and then, for a third of the time."""

    def begin() -> None:
        w.storage_faults.brown_until = w.now + seconds * 0.3

    return [Happening(seconds * 0.3, seconds * 0.3, "storage is slow", begin)]


def failover_hourly(w: World, seconds: float) -> list[Happening]:
    """The leader is killed every hour, and once in less."""

    def strike() -> None:
        leader = w.leader()
        if leader is not None:
            w.kill(leader)

    times = [hour * 3600.0 - 1800.0 for hour in range(1, int(seconds // 3600) + 1)] or [seconds / 2]
    return [Happening(at, 0.0, "the leader is killed", strike) for at in times]


def new_template(w: World, seconds: float) -> list[Happening]:
    """Every template changes: all instances are rotated."""
    return [Happening(seconds * 0.2, 0.0, "a new template", lambda: w.tell(_changed(w.desired_groups, "new")))]


def _changed(desired_groups: DesiredGroups, mark: str) -> DesiredGroups:
    assert isinstance(desired_groups, Given)
    document = copy.deepcopy(desired_groups.document)
    own = (group for groups in document["groups"].values() for group in groups.values() if "instance_type" in group)
    for part in (*document["templates"].values(), *own):
        part["instance_type"] = f"{part.get('instance_type', 'vm')}-{mark}"
    return replace(desired_groups, document=document)


SCENARIOS: Mapping[str, Scenario] = {
    "spot-storm": spot_storm,
    "zone-brown-out": zone_brown_out,
    "bad-image": bad_image,
    "slow-storage": slow_storage,
    "failover-hourly": failover_hourly,
    "new-template": new_template,
}
