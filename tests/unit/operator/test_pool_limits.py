"""Beyond how many instances a pool does not grow: a number, or what they cost."""

from types import SimpleNamespace
from typing import Any

import pytest

from nstance.kube.port import Object
from nstance.operator.controllers import pool_limits
from nstance.operator.controllers.pool_limits import Limit
from nstance.v1 import operator_pb2 as pb


def shard(price: float | None, *, currency: str = "EUR") -> Any:
    """Has the group, and tells the price of one more instance."""
    group = pb.GroupStatus(cost=pb.Cost(currency=currency, instance_hourly=price))
    return SimpleNamespace(groups={"web": group}, synced=True)


@pytest.mark.parametrize(
    ("limits", "prices", "instances", "reason"),
    [
        ({"hourlyCost": 0.3}, {"a": 0.1, "b": 0.05}, 3, "spec.limits.hourlyCost allows 3, at 0.1 EUR each"),
        ({"hourlyCost": 1}, {"a": 0.4}, 2, "spec.limits.hourlyCost allows 2, at 0.4 EUR each"),
        ({"hourlyCost": 1, "instances": 1}, {"a": 0.4}, 1, "spec.limits.instances allows 1"),
        ({"hourlyCost": 0.1, "instances": 9}, {"a": 0.4}, 0, "spec.limits.hourlyCost allows 0, at 0.4 EUR each"),
        (
            {"hourlyCost": 1},
            {"a": 0.4, "b": None},
            0,
            "spec.limits.hourlyCost needs prices, and these shards have none: b",
        ),
    ],
)
def test_a_limit_of_costs_counts_with_the_highest_price(
    limits: Object, prices: dict[str, float | None], instances: int, reason: str
) -> None:
    pool: Object = {"spec": {"group": "web", "shards": list(prices), "limits": limits}}
    shards: Any = {name: shard(price) for name, price in prices.items()}
    assert pool_limits.limit_of(pool, shards) == Limit(instances, reason)


def test_a_pool_waits_for_its_price_but_not_for_a_silent_shard() -> None:
    pool: Object = {"spec": {"group": "web", "shards": ["a", "b"], "limits": {"hourlyCost": 1}}}
    new = SimpleNamespace(groups={}, synced=True)
    silent = SimpleNamespace(groups={}, synced=False)
    known = Limit(2, "spec.limits.hourlyCost allows 2, at 0.5 EUR each")
    found: list[tuple[dict[str, Any], Limit | None]] = [
        ({"a": new, "b": new}, Limit(0, "")),
        ({"a": shard(0.5), "b": new}, Limit(0, "")),
        ({"a": silent, "b": silent}, Limit(0, "")),
        ({"a": shard(0.5), "b": silent}, known),
        ({"a": shard(0.5)}, known),
        ({"a": shard(0.0), "b": shard(0.0)}, None),
    ]
    for shards, limit in found:
        assert pool_limits.limit_of(pool, shards) == limit  # type: ignore[arg-type]
    mixed: Any = {"a": shard(0.5), "b": shard(0.5, currency="USD")}
    assert pool_limits.limit_of(pool, mixed) == Limit(
        0, "spec.limits.hourlyCost needs one currency, the shards have EUR, USD"
    )


@pytest.mark.parametrize("value", [-1, "1.5", True, []])
def test_a_limit_that_is_no_number_is_named(value: object) -> None:
    shards: Any = {"a": shard(1.0)}
    for name in ("instances", "hourlyCost"):
        pool: Object = {"spec": {"group": "web", "shards": ["a"], "limits": {name: value}}}
        assert name in pool_limits.find_problem(pool)
        assert pool_limits.limit_of(pool, shards) is None
