"""What the VMs of a group cost, now and after a change.

Amounts come from counts and prices only, so that equal fleets give equal numbers. The trap: a VM without a price must not
look like one that is free. It is counted apart, and a plan that depends on it has no number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nstance.core import offers
from nstance.core.draft import drifted
from nstance.core.rotation import max_surge
from nstance.model.group import Group
from nstance.model.instance import CAPACITY, ENDED, Instance, State
from nstance.model.prices import MARKETS, ON_DEMAND, Pair, Prices

HOUR_SECONDS = 3600.0
DIGITS = 6  # of an amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of the VMs that exist, per hour."""

    by_market: Mapping[str, float]
    unpriced: int  # VMs without a price

    @property
    def hourly(self) -> float:
        return round(sum(self.by_market.values()), DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """None: something that it depends on has no price, or was not measured."""

    before: float | None  # per hour
    after: float | None  # per hour
    once: float | None  # for VMs above the size while a rollout lasts


def cost_of(prices: Prices, members: Iterable[Instance]) -> Cost:
    return _cost(prices, Counter((m.market, m.instance_type) for m in members if _exists(m)))


def instance_price(prices: Prices, group: Group) -> float | None:
    """Of one more instance, in the preferred market and type."""
    market, instance_type = offers.list_pairs(group)[0]
    return prices.of(market, instance_type)


def plan_cost(prices: Prices, desired: Group, members: Iterable[Instance], *, step_seconds: float | None) -> CostPlan:
    """When the group is as desired. `step_seconds`: how long one replacement takes; None if that was not measured."""
    members = list(members)
    before = cost_of(prices, members)
    counted = [m for m in members if m.counts]
    outdated = sum(drifted(m, desired) for m in counted)
    stays = [m for m in counted if not drifted(m, desired)][: desired.size]
    pairs = Counter((m.market, m.instance_type) for m in stays)
    pairs.update((m.market, m.instance_type) for m in members if m.on_demand and m.state in CAPACITY)
    pairs[offers.list_pairs(desired)[0]] += desired.size - len(stays)
    after = _cost(prices, pairs)
    return CostPlan(
        before=None if before.unpriced else before.hourly,
        after=None if after.unpriced else after.hourly,
        once=_surge_cost(prices, desired, min(outdated, desired.size - len(stays)), step_seconds),
    )


def _surge_cost(prices: Prices, desired: Group, replaced: int, step_seconds: float | None) -> float | None:
    """Of the replacements that are created before the old instance goes; the others exist in its place."""
    if not replaced:
        return 0.0
    price, surge = instance_price(prices, desired), max_surge(desired)
    if price is None or step_seconds is None:
        return None
    share = surge / (surge + desired.max_unavailable)
    return round(replaced * share * step_seconds / HOUR_SECONDS * price, DIGITS)


def _exists(instance: Instance) -> bool:
    """As far as is known: an intent is not a VM yet, and one that is being deleted still is."""
    return instance.state not in ENDED and instance.state is not State.PENDING


def _cost(prices: Prices, pairs: Counter[Pair]) -> Cost:
    amounts = dict.fromkeys(MARKETS, 0.0)
    unpriced = 0
    for (market, instance_type), count in sorted(pairs.items()):
        price = prices.of(market, instance_type)
        if price is None:
            unpriced += count
        else:
            market = market or ON_DEMAND
            amounts[market] = amounts.get(market, 0.0) + count * price
    return Cost(by_market={market: round(amount, DIGITS) for market, amount in amounts.items()}, unpriced=unpriced)
