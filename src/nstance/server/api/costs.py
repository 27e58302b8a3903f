"""What groups and changes cost, as messages for operators. Without prices in the configuration there is nothing to say."""

from collections.abc import Iterable

from nstance.core import costs
from nstance.model.group import Group
from nstance.model.ids import GroupKey
from nstance.model.instance import Instance
from nstance.model.prices import Prices
from nstance.server.config.configuration import Configuration
from nstance.server.leader.step_times import StepTimes
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2


def group_cost(prices: Prices | None, group: Group, members: Iterable[Instance]) -> operator_pb2.Cost | None:
    if prices is None:
        return None
    found = costs.cost_of(prices, members)
    return operator_pb2.Cost(
        currency=prices.currency,
        hourly=found.hourly,
        instance_hourly=costs.instance_price(prices, group),
        unpriced=found.unpriced,
    )


def plan(
    shard: Shard, step_times: StepTimes, configuration: Configuration, key: GroupKey
) -> operator_pb2.CostPlan | None:
    """Of the group with this configuration."""
    prices = configuration.prices
    if prices is None:
        return None
    desired, members = configuration.groups[key].group, shard.members(key).values()
    found = costs.plan_cost(prices, desired, members, step_seconds=step_times.step_seconds(key, members))
    return operator_pb2.CostPlan(
        currency=prices.currency, hourly_before=found.before, hourly_after=found.after, once=found.once
    )
