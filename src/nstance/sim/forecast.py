"""What would happen to my groups if: a user's own configuration, a scenario, and hours of virtual time.

The product decides, over a cloud and agents in memory. Timings are the configuration's own; its provider is not called.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nstance.config import jsonc
from nstance.config.dynamic import DynamicGroups
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.model.instance import State
from nstance.server import configuration
from nstance.sim.setup import Setup
from nstance.sim.wishes import CLUSTER, Wishes
from nstance.sim.world import World, world

SAMPLES = 240
# Dollars, as a large cloud asks for them: per request to object storage.
WRITE_PRICE, READ_PRICE = 5e-6, 4e-7
WRITES = ("create", "replace", "list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given(Wishes):
    """A configuration that somebody else wrote."""

    document: dict[str, Any] = field(default_factory=dict)

    def _document(self) -> dict[str, object]:
        return self.document


@dataclass(slots=True)
class Forecast:
    hours: list[float] = field(default_factory=list)
    wished: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    coming: list[float] = field(default_factory=list)
    leaving: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> dict[str, list[float]]:
        return {"wished": self.wished, "ready": self.ready, "coming": self.coming, "leaving": self.leaving}

    def price(self) -> float:
        return sum(
            number * (WRITE_PRICE if verb in WRITES else READ_PRICE)
            for what, number in self.counts.items()
            if what.startswith("request ") and (verb := what.removeprefix("request "))
        )


def adapt(text: str, *, source: str, agents: int | None) -> dict[str, Any]:
    """The configuration for a simulated shard, its groups grown or shrunk to so many instances in all. Raises
    NoConfiguration."""
    settings = configuration.parse(text.encode(), shard=None, source=source)
    document: Any = copy.deepcopy(jsonc.read(text, source=source).value)
    block = document["shard"] if "shard" in document else document["server"]
    block.pop("id", None)
    block.setdefault("leader_election", {})["heartbeat"] = "600ms"  # a third of the work, and nothing else changes
    if "cluster" in document:
        document["cluster"]["id"] = CLUSTER
    else:
        block["cluster_id"] = CLUSTER
    resolved = configuration.resolve(settings, DynamicGroups())
    total: int = sum(r.group.size for r in resolved.values())
    if agents is not None and total:
        for tenant, groups in document["groups"].items():
            for name, group in groups.items():
                size = resolved[GroupKey(TenantId(tenant), GroupName(name))].group.size
                group["size"] = round(size * agents / total)
    for part in (document.get("defaults", {}), *document.get("templates", {}).values()):
        if part.get("userdata", {}).get("source") == "url":
            part["userdata"] = {"source": "inline", "content": ""}
    return dict(document)


# ---- scenarios: what happens, on a day that lasts `seconds`


def spot_storm(w: World, seconds: float) -> None:
    """The provider takes half of all VMs back, with two minutes of warning each."""

    def storm() -> None:
        victims = [a for a in w.agents() if a.alive]
        for agent in w.random.sample(victims, len(victims) // 2):
            w.later(w.random.uniform(0.0, 60.0), agent.tell, "SPOT_TERMINATION", 120.0)
            w.later(180.0, w.cloud.destroy, agent.id)

    w.later(seconds * 0.3, storm)


def zone_brown_out(w: World, seconds: float) -> None:
    """For a tenth of the time the provider is slow and fails, and a tenth of the VMs die."""

    def begin() -> None:
        w.provider_weather.brown_until = w.now + seconds * 0.1
        victims = [a for a in w.agents() if a.alive]
        for agent in w.random.sample(victims, max(1, len(victims) // 10)):
            w.cloud.destroy(agent.id)

    w.later(seconds * 0.3, begin)


def bad_image(w: World, seconds: float) -> None:
    """A new template whose VMs never register, taken back after a while."""
    old = w.wishes
    for share, spoiled, wishes in ((0.3, True, _changed(old, "bad")), (0.6, False, old)):
        w.later(seconds * share, w.spoil_boots, spoiled)
        w.later(seconds * share, w.tell, wishes)


def slow_storage(w: World, seconds: float) -> None:
    """Object storage takes ten times as long and fails now and then, for a third of the time."""
    w.later(seconds * 0.3, lambda: setattr(w.storage_weather, "brown_until", w.now + seconds * 0.3))


def failover_hourly(w: World, seconds: float) -> None:
    """The leader is killed every hour."""

    def strike() -> None:
        leader = w.leader()
        if leader is not None:
            w.kill(leader)

    for hour in range(1, int(seconds // 3600) + 1):
        w.later(hour * 3600.0 - 1800.0, strike)


def new_template(w: World, seconds: float) -> None:
    """Every template changes: all instances are rotated."""
    w.later(seconds * 0.2, lambda: w.tell(_changed(w.wishes, "new")))


def _changed(wishes: Wishes, mark: str) -> Wishes:
    assert isinstance(wishes, Given)
    document = copy.deepcopy(wishes.document)
    for template in document["templates"].values():
        template["instance_type"] = f"{template.get('instance_type', 'vm')}-{mark}"
    for group in (g for groups in document["groups"].values() for g in groups.values()):
        if "instance_type" in group:
            group["instance_type"] = f"{group['instance_type']}-{mark}"
    return Given(document=document)


SCENARIOS: Mapping[str, Callable[[World, float], None]] = {
    "spot-storm": spot_storm,
    "zone-brown-out": zone_brown_out,
    "bad-image": bad_image,
    "slow-storage": slow_storage,
    "failover-hourly": failover_hourly,
    "new-template": new_template,
}


def forecast(document: dict[str, Any], *, scenario: str, hours: float, seed: int = 0) -> Forecast:
    seconds = hours * 3600.0
    setup = Setup(
        servers=2 if scenario == "failover-hourly" else 1,
        audited=False,
        acknowledges=1.0,
        wishes=Given(document=document),
    )
    with world(seed, setup) as w:
        w.random = random.Random(f"forecast-{seed}")
        w.begin()
        w.advance(600.0)  # the groups come up first
        result = Forecast()
        began, requests = w.now, _requests(w)
        SCENARIOS[scenario](w, seconds)
        w.run(_sample(w, result, seconds, began, requests))
        result.counts = dict(w.counts)
        return result


async def _sample(w: World, result: Forecast, seconds: float, began: float, requests: int) -> None:
    for _ in range(SAMPLES + 1):
        states = [r.state for r in w.auditor.fold.values()]
        server = w.leader()
        if server is not None and server.lead is not None:
            wished = sum(group.size for group in server.lead.shard.wishes.values())
        else:
            wished = int(result.wished[-1]) if result.wished else 0
        result.hours.append((w.now - began) / 3600.0)
        result.wished.append(wished)
        result.ready.append(states.count(State.RUNNING))
        result.coming.append(states.count(State.PENDING) + states.count(State.STARTING))
        result.leaving.append(states.count(State.DRAINING) + states.count(State.DELETING))
        result.requests.append(_requests(w) - requests)
        await asyncio.sleep(seconds / SAMPLES)


def _requests(w: World) -> int:
    return sum(number for what, number in w.counts.items() if what.startswith("request "))
