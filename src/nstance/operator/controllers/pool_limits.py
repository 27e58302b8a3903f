"""Beyond how many instances a pool does not grow, and why. Pure.

A limit never deletes instances. The trap: a limit of costs needs the price of one more instance, which each shard tells about
a group that it has. So a new pool starts with no instances, or it would order all of them before its price is known. A shard
that cannot be reached holds up no other one: its price counts when it is known.
"""

import math
from dataclasses import dataclass
from typing import TypeGuard

from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.shards.ports import Shards

ROUNDING = 1e-9  # 0.3 / 0.1 is 2.9999999999999996


@dataclass(frozen=True, slots=True)
class Limit:
    instances: int
    reason: str  # for people; empty: a shard has to answer first


def find_problem(pool: Object) -> str:
    """Why a limit cannot be used; empty if all can. The CRD's schema rejects it where it is installed."""
    count, cost = _limits(pool)
    if count is not None and not resources.is_size(count):
        return f"spec.limits.instances: expected a number, 0 or more, found {count!r}"
    if cost is not None and not _is_cost(cost):
        return f"spec.limits.hourlyCost: expected a number, 0 or more, found {cost!r}"
    return ""


def limit_of(pool: Object, shards: Shards) -> Limit | None:
    """The lowest of its limits; None if it has none that can be used."""
    count, cost = _limits(pool)
    found = []
    if resources.is_size(count):
        found.append(Limit(count, f"spec.limits.instances allows {count}"))
    if _is_cost(cost) and (by_cost := _cost_limit(cost, pool, shards)) is not None:
        found.append(by_cost)
    return min(found, key=lambda each: each.instances, default=None)


def _limits(pool: Object) -> tuple[object, object]:
    limits = resources.as_object(resources.spec(pool).get("limits"))
    return limits.get("instances"), limits.get("hourlyCost")


def _is_cost(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _cost_limit(cost: float, pool: Object, shards: Shards) -> Limit | None:
    """All instances count with the highest price, so it does not matter in which shard they are."""
    spec, costs = resources.spec(pool), {}
    for name in spec.get("shards") or ():
        shard = shards.get(name)
        if shard is not None and (group := shard.groups.get(spec["group"])) is not None:
            costs[name] = group.cost
        elif shard is not None and shard.synced:
            return Limit(0, "")  # it will have the group in a moment
    if not costs:
        return Limit(0, "")
    if unpriced := [name for name, each in costs.items() if not each.HasField("instance_hourly")]:
        return Limit(0, f"spec.limits.hourlyCost needs prices, and these shards have none: {', '.join(unpriced)}")
    if len(currencies := sorted({each.currency for each in costs.values()})) > 1:
        return Limit(0, f"spec.limits.hourlyCost needs one currency, the shards have {', '.join(currencies)}")
    price = max(each.instance_hourly for each in costs.values())
    if not price:
        return None
    count = math.floor(cost / price * (1 + ROUNDING))
    return Limit(count, f"spec.limits.hourlyCost allows {count}, at {price:g} {currencies[0]} each")
