"""What a group costs now and after a change. A VM without a price is never taken for one that is free."""

from typing import Any

import pytest

from nstance.core import costs
from nstance.model.instance import Cause, Instance, State
from nstance.model.prices import Prices
from unit.core.core_situation import desired, member, replacement

PRICES = Prices(
    currency="EUR",
    hourly={("on-demand", "small"): 0.1, ("spot", "small"): 0.03, ("on-demand", "large"): 0.2, ("spot", "*"): 0.5},
)
SMALL = {"instance_type": "small", "market": "on-demand"}
GROUP = {"instance_types": ("small",), "markets": ("on-demand",)}


def vm(letter: str, state: State = State.RUNNING, **fields: Any) -> Instance:
    return member(letter, state, **{**SMALL, **fields})


@pytest.mark.parametrize(
    ("market", "kind", "price"),
    [
        ("on-demand", "small", 0.1),
        ("spot", "small", 0.03),
        ("", "small", 0.1),  # as the arguments say
        ("spot", "huge", 0.5),  # of all other types
        ("on-demand", "huge", None),
        ("", "", None),
    ],
)
def test_a_price_is_of_a_market_and_a_type(market: str, kind: str, price: float | None) -> None:
    assert PRICES.of(market, kind) == price


def test_vms_cost_from_their_creation_to_their_end() -> None:
    states = [State.PENDING, State.STARTING, State.RUNNING, State.DRAINING, State.DELETING, State.DELETED, State.FAILED]
    members = [vm(letter, state) for letter, state in zip("abcdefg", states, strict=True)]
    members.append(vm("h", market="spot", on_demand=True))
    found = costs.cost_of(PRICES, members)
    assert (found.by_market, found.unpriced) == ({"on-demand": 0.4, "spot": 0.03}, 0)
    assert found.hourly == 0.43


def test_vms_without_a_price_are_counted_apart() -> None:
    found = costs.cost_of(PRICES, [vm("a"), vm("b", instance_type="huge")])
    assert (found.hourly, found.unpriced) == (0.1, 1)


def test_equal_fleets_have_equal_costs_in_any_order() -> None:
    members = [
        vm(letter, market=market) for letter, market in zip("abcdefghi", ["spot", "on-demand", ""] * 3, strict=True)
    ]
    assert costs.cost_of(PRICES, members) == costs.cost_of(PRICES, members[::-1])


def test_a_plan_to_scale() -> None:
    members = [vm("a"), vm("b"), vm("c", State.DRAINING, cause=Cause.SCALE_DOWN)]
    plan = costs.plan_cost(PRICES, desired(4, **GROUP), members, step_seconds=None)
    assert (plan.before, plan.after, plan.once) == (0.3, 0.4, 0.0)
    plan = costs.plan_cost(PRICES, desired(1, **GROUP), members, step_seconds=60.0)
    assert (plan.before, plan.after, plan.once) == (0.3, 0.1, 0.0)


def test_a_plan_of_a_rollout_counts_what_exists_above_the_size() -> None:
    members = [vm(letter) for letter in "abcd"]
    larger = {**GROUP, "instance_types": ("large",), "infra_hash": "new"}
    plan = costs.plan_cost(PRICES, desired(4, **larger), members, step_seconds=90.0)
    assert (plan.before, plan.after, plan.once) == (0.4, 0.8, round(4 * 90 / 3600 * 0.2, 6))
    half = desired(4, **larger, max_surge=1, max_unavailable=1)  # every second one takes the place of one that is gone
    assert costs.plan_cost(PRICES, half, members, step_seconds=90.0).once == round(2 * 90 / 3600 * 0.2, 6)
    none = desired(4, **larger, max_surge=0, max_unavailable=1)
    assert costs.plan_cost(PRICES, none, members, step_seconds=90.0).once == 0.0
    assert costs.plan_cost(PRICES, desired(4, **larger), members, step_seconds=None).once is None


def test_a_rollout_to_fewer_replaces_only_as_many_as_stay() -> None:
    members = [vm(letter) for letter in "abcd"]
    plan = costs.plan_cost(PRICES, desired(1, **GROUP, infra_hash="new"), members, step_seconds=3600.0)
    assert (plan.before, plan.after, plan.once) == (0.4, 0.1, 0.1)


def test_a_replacement_shares_the_place_of_the_one_that_it_replaces() -> None:
    members = [vm("a", infra_hash="old"), replacement("b", "a", Cause.DRIFT, **SMALL)]
    plan = costs.plan_cost(PRICES, desired(1, **GROUP), members, step_seconds=3600.0)
    assert (plan.before, plan.after, plan.once) == (0.2, 0.1, 0.0)


def test_a_plan_has_no_number_that_depends_on_a_missing_price() -> None:
    plan = costs.plan_cost(PRICES, desired(1, **GROUP), [vm("a", instance_type="huge")], step_seconds=60.0)
    assert (plan.before, plan.after) == (None, None)
    plan = costs.plan_cost(
        PRICES,
        desired(1, markets=("on-demand",), instance_types=("huge",), infra_hash="new"),
        [vm("a")],
        step_seconds=60.0,
    )
    assert (plan.before, plan.after, plan.once) == (0.1, None, None)


def test_instances_that_were_requested_by_name_stay() -> None:
    members = [vm("a"), vm("b", on_demand=True), vm("c", State.DRAINING, on_demand=True)]
    assert costs.plan_cost(PRICES, desired(1, **GROUP), members, step_seconds=None).after == 0.2
