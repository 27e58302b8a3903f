"""The scenarios of a forecast: what happens to a shard, when, and for how long."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.model.offer import Offer
from nstance.providers.memory_offers import ANY
from nstance.providers.port import CreateRequest
from nstance.sim.agent import SimAgent
from nstance.sim.desired_groups import DesiredGroups
from nstance.sim.world import World

SPOT_WARNING_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig(DesiredGroups):
    """The configuration of a user."""

    document: dict[str, Any] = field(default_factory=dict)
    all_spot: bool = False  # treat every VM as a spot VM

    def _document(self) -> dict[str, object]:
        return self.document


@dataclass(frozen=True, slots=True)
class Event:
    at: float  # seconds from the beginning
    lasts: float
    name: str
    act: Callable[[], object]


Scenario = Callable[[World, float], list[Event]]


def is_spot(args: object) -> bool:
    """Whether these arguments ask for a spot VM: on AWS InstanceMarketOptions.MarketType, on Google
    scheduling.provisioningModel or scheduling.preemptible."""
    if isinstance(args, Mapping):
        return args.get("preemptible") is True or any(map(is_spot, args.values()))
    if isinstance(args, list | tuple):
        return any(map(is_spot, args))
    return isinstance(args, str) and args.lower() == "spot"


def spot_storm(w: World, seconds: float) -> list[Event]:
    """The provider takes half of all spot VMs back, with two minutes of warning each."""

    def storm() -> None:
        all_spot = isinstance(w.desired_groups, UserConfig) and w.desired_groups.all_spot
        victims = [a for a in w.agents() if a.alive and (all_spot or _runs_on_spot(a.request))]
        for agent in w.random.sample(victims, len(victims) // 2):
            delay = w.random.uniform(0.0, 60.0)
            w.later(delay, agent.deliver_notice, "SPOT_TERMINATION", SPOT_WARNING_SECONDS)
            w.later(delay + SPOT_WARNING_SECONDS, w.cloud.destroy, agent.id)

    return [Event(seconds * 0.3, 60.0 + SPOT_WARNING_SECONDS, "half of all spot VMs are taken back", storm)]


def _runs_on_spot(request: CreateRequest) -> bool:
    return request.market == "spot" or (not request.market and is_spot(request.args))


def capacity(w: World, seconds: float) -> list[Event]:
    """A zone runs dry: half of the VMs in the busiest subnet end, and for a fifth of the time no new one fits there. Before
    that, the market and type that most VMs have run out everywhere."""
    lasts = seconds * 0.2

    def exhaust(pattern: Offer) -> None:
        w.provider_faults.exhausted[pattern] = w.now + lasts

    def alive() -> list[SimAgent]:
        return [agent for agent in w.agents() if agent.alive]

    def end_half(agents: list[SimAgent]) -> None:
        for agent in w.random.sample(agents, math.ceil(len(agents) / 2)):
            w.later(w.random.uniform(0.0, 60.0), w.cloud.destroy, agent.id)

    def exhaust_zone() -> None:
        by_subnet = Counter(agent.request.subnet for agent in alive())
        if by_subnet:
            subnet = by_subnet.most_common(1)[0][0]
            exhaust(Offer(ANY, ANY, subnet))
            end_half([agent for agent in alive() if agent.request.subnet == subnet])

    def exhaust_type() -> None:
        pairs = Counter((agent.request.market, agent.request.instance_type) for agent in alive())
        if pairs:
            market, instance_type = pairs.most_common(1)[0][0]
            exhaust(Offer(market, instance_type, ANY))
            end_half([a for a in alive() if (a.request.market, a.request.instance_type) == (market, instance_type)])

    return [
        Event(seconds * 0.1, 60.0, "the most used market and type run out, half of these VMs end", exhaust_type),
        Event(seconds * 0.5, 60.0, "the busiest zone runs dry, half of its VMs end", exhaust_zone),
    ]


def zone_brown_out(w: World, seconds: float) -> list[Event]:
    """A tenth of the VMs die, and for a tenth of the time the provider is slow and half of the calls to it fail."""

    def begin() -> None:
        w.provider_faults.brown = 0.1
        w.provider_faults.brown_until = w.now + seconds * 0.1
        victims = [a for a in w.agents() if a.alive]
        for agent in w.random.sample(victims, min(len(victims), max(1, len(victims) // 10))):
            w.cloud.destroy(agent.id)

    return [Event(seconds * 0.3, seconds * 0.1, "brown-out, and a tenth of the VMs die", begin)]


def bad_image(w: World, seconds: float) -> list[Event]:
    """A new template whose VMs never register, reverted after a while."""
    old = w.desired_groups

    def change(spoiled: bool, desired_groups: DesiredGroups) -> None:
        w.spoils_boots = spoiled
        w.configure(desired_groups)

    return [
        Event(seconds * 0.3, 0.0, "a bad image", lambda: change(True, _changed(old, "bad"))),
        Event(seconds * 0.6, 0.0, "the old one again", lambda: change(False, old)),
    ]


def slow_storage(w: World, seconds: float) -> list[Event]:
    """Object storage takes ten times as long and sometimes fails, for a third of the time."""

    def begin() -> None:
        w.storage_faults.brown_until = w.now + seconds * 0.3

    return [Event(seconds * 0.3, seconds * 0.3, "storage is slow", begin)]


def failover_hourly(w: World, seconds: float) -> list[Event]:
    """The leader is killed every hour; once if the forecast is shorter."""

    def kill_leader() -> None:
        leader = w.leader()
        if leader is not None:
            w.kill(leader)

    times = [hour * 3600.0 - 1800.0 for hour in range(1, int(seconds // 3600) + 1)] or [seconds / 2]
    return [Event(at, 0.0, "the leader is killed", kill_leader) for at in times]


def new_template(w: World, seconds: float) -> list[Event]:
    """Every template changes, so that all instances are replaced."""
    return [Event(seconds * 0.2, 0.0, "a new template", lambda: w.configure(_changed(w.desired_groups, "new")))]


def _changed(desired_groups: DesiredGroups, mark: str) -> DesiredGroups:
    assert isinstance(desired_groups, UserConfig)
    document = copy.deepcopy(desired_groups.document)
    own = [
        group
        for groups in document["groups"].values()
        for group in groups.values()
        if "instance_type" in group or "instance_types" in group
    ]
    for part in (*document["templates"].values(), *own):
        if "instance_types" in part:
            part["instance_types"] = [f"{name}-{mark}" for name in part["instance_types"]]
        else:
            part["instance_type"] = f"{part.get('instance_type', 'vm')}-{mark}"
    return replace(desired_groups, document=document)


SCENARIOS: Mapping[str, Scenario] = {
    "spot-storm": spot_storm,
    "zone-brown-out": zone_brown_out,
    "capacity": capacity,
    "bad-image": bad_image,
    "slow-storage": slow_storage,
    "failover-hourly": failover_hourly,
    "new-template": new_template,
}
