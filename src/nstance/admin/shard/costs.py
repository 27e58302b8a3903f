"""Costs of groups and plans: as records for programs, in words for people. Shards may have different currencies."""

from collections.abc import Iterable
from typing import Any

from nstance.admin.shard.shapes import NUMBER, PRESENT_REAL, REAL, TEXT, Shape
from nstance.model.counts import count

Record = dict[str, Any]

COST = Shape(("currency", TEXT), ("hourly", REAL), ("instance_hourly", PRESENT_REAL), ("unpriced", NUMBER))
COST_PLAN = Shape(("shard currency", TEXT), ("hourly_before hourly_after once", PRESENT_REAL))


def amount(value: float, currency: str) -> str:
    """`1,234.50 USD`, and `0.0816 USD`: small ones keep four digits."""
    text = f"{value:,.2f}" if value >= 1 or not value else f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{text} {currency}"


def hourly(cost: Record) -> str:
    """`0.3264 USD/h`; more than that if VMs without a price are left out."""
    return ("≥ " if cost["unpriced"] else "") + f"{amount(cost['hourly'], cost['currency'])}/h"


def total(costs: Iterable[Record | None]) -> str:
    """Of several groups; empty if none has prices."""
    sums: dict[str, Record] = {}
    for each in costs:
        if each is not None:
            known = sums.setdefault(each["currency"], {"currency": each["currency"], "hourly": 0.0, "unpriced": 0})
            known["hourly"] += each["hourly"]
            known["unpriced"] += each["unpriced"]
    return " + ".join(hourly(each) for _, each in sorted(sums.items()))


def group_line(cost: Record) -> str:
    """`0.3264 USD per hour; one more instance 0.0816 USD`."""
    more = cost["instance_hourly"]
    parts = [f"{amount(cost['hourly'], cost['currency'])} per hour"]
    parts += [f"one more instance {amount(more, cost['currency'])}"] if more is not None else []
    parts += [f"without {count(cost['unpriced'], 'VM')} that has no price"] if cost["unpriced"] == 1 else []
    parts += [f"without {count(cost['unpriced'], 'VM')} that have no price"] if cost["unpriced"] > 1 else []
    return "; ".join(parts)


def plan_line(plan: Record) -> str:
    """`0.25 USD per hour now, 0.33 USD afterwards; about 0.02 USD once for the rollout`."""
    before, after, once = plan["hourly_before"], plan["hourly_after"], plan["once"]
    if before == after and before is not None:
        text = f"{amount(before, plan['currency'])} per hour, as now"
    else:
        now = amount(before, plan["currency"]) if before is not None else "unknown"
        then = amount(after, plan["currency"]) if after is not None else "unknown (no price)"
        text = f"{now} per hour now, {then} afterwards"
    return text + (f"; about {amount(once, plan['currency'])} once for the rollout" if once else "")
