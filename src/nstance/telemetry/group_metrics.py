"""Numbers of groups, read at each scrape, so that a removed group leaves no stale value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nstance.model.ids import GroupKey
from nstance.model.instance import State
from nstance.model.rollout import Outcome


@dataclass(frozen=True, slots=True)
class Load:
    """Of one machine, as its agent last reported it. Ratios are between 0 and 1."""

    cpu: float
    memory: float
    disk: float
    load1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """Of the VMs that exist, per hour."""

    currency: str
    by_market: Mapping[str, float]
    unpriced: int  # VMs without a price


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCount:
    """A group as it is now."""

    key: GroupKey
    size: int
    states: Mapping[State, int]
    paused: bool = False
    cloned: int = 0  # instances whose identity two agents use
    ready: int = 0
    blocked: bool = False  # instances cannot be created, or their files not rendered
    overrides: int = 0  # values of the file that the API overrides
    outdated: int = 0  # instances of an earlier revision
    current_files: int = 0  # instances that have the newest file set
    rollout: Outcome | None = None  # of the current revision
    rollout_failures: int = 0  # its instances that did not become ready
    loads: tuple[Load, ...] = ()
    cost: GroupCost | None = None  # None: the shard has no prices


_GAUGES = (  # field of GroupCount, name, description
    ("size", "nstance_group_size", "Desired size."),
    ("paused", "nstance_group_paused", "1 if the group is paused."),
    ("cloned", "nstance_cloned_instances", "Instances whose identity two agents use."),
    ("ready", "nstance_instances_ready", "Instances that are ready."),
    ("blocked", "nstance_group_blocked", "1 if instances cannot be created or their files cannot be rendered."),
    ("overrides", "nstance_group_overrides", "Values of the configuration file that the API overrides."),
    ("outdated", "nstance_instances_outdated", "Instances of an earlier revision than the group has now."),
    ("current_files", "nstance_instances_files_current", "Instances that have installed the newest file set."),
    ("rollout_failures", "nstance_rollout_failures", "Instances of the current revision that did not become ready."),
)
_LOADS = (  # field of Load, name, description
    ("cpu", "nstance_group_cpu_ratio", "Processor use that agents report, 0 to 1."),
    ("memory", "nstance_group_memory_ratio", "Memory use that agents report, 0 to 1."),
    ("disk", "nstance_group_disk_ratio", "Disk use that agents report, 0 to 1."),
    ("load1", "nstance_group_load1", "Load average of one minute that agents report."),
)
_STATS: Mapping[str, Callable[[list[float]], float]] = {"mean": lambda values: sum(values) / len(values), "max": max}


class GroupCollector(Collector):
    def __init__(self, groups: Callable[[], Iterable[GroupCount]]) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        def family(name: str, about: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, about, labels=["tenant", "group", *more])

        instances = family("nstance_instances", "Instances by state.", "state")
        prices = family("nstance_group_cost_per_hour", "What its VMs cost per hour.", "market", "currency")
        unpriced = family("nstance_instances_unpriced", "VMs whose market and type have no price.")
        rollouts = family("nstance_rollout", "1 for the outcome that the current revision has.", "outcome")
        gauges = {field: family(name, about) for field, name, about in _GAUGES}
        loads = {field: family(name, about, "stat") for field, name, about in _LOADS}
        for group in self._groups():
            labels = [group.key.tenant, group.key.name]
            for field, gauge in gauges.items():
                gauge.add_metric(labels, getattr(group, field))
            # Zeros too: a missing series looks like one that was never scraped.
            for state in State:
                instances.add_metric([*labels, state.value], group.states.get(state, 0))
            if group.cost is not None:
                unpriced.add_metric(labels, group.cost.unpriced)
                for market, amount in group.cost.by_market.items():
                    prices.add_metric([*labels, market, group.cost.currency], amount)
            for outcome in Outcome:
                rollouts.add_metric([*labels, outcome.value], group.rollout is outcome)
            for field, load in loads.items():
                if values := [getattr(each, field) for each in group.loads]:
                    for stat, combine in _STATS.items():
                        load.add_metric([*labels, stat], combine(values))
        yield from (instances, rollouts, *gauges.values(), *loads.values())
        if unpriced.samples:  # without prices there is nothing to say about costs
            yield from (prices, unpriced)
