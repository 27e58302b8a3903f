"""The numbers of groups for metrics, as the leader knows them."""

from collections import Counter
from collections.abc import Iterable, Iterator

from nstance.config.overrides import list_overrides
from nstance.core import costs
from nstance.core.draft import drifted
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import ENDED, Instance
from nstance.server.leader.context import TermContext
from nstance.server.liveness.connected_agents import Presence
from nstance.telemetry.group_metrics import GroupCost, GroupCount, Load


def count_groups(context: TermContext, now: float) -> Iterator[GroupCount]:
    """`now` is monotonic time."""
    shard, clones, readiness = context.shard, context.agents.clones, context.readiness
    for key in sorted(shard.keys()):
        desired = shard.desired_groups.get(key)
        members = shard.members(key)
        present = list(_present(context, members))
        record = shard.group_records.get(key)
        revision = record.current if record is not None else None
        yield GroupCount(
            key=key,
            size=desired.size if desired is not None else 0,
            states=Counter(member.state for member in members.values()),
            paused=desired is not None and desired.paused,
            cloned=sum(clones.is_seen(id, now) for id in members),
            ready=sum(readiness.is_ready(member) for member in members.values()),
            blocked=bool(
                context.blocked_groups.failure(key) or readiness.blocked(key) or shard.no_capacity_reason(key)
            ),
            overrides=_overrides(context, key),
            outdated=sum(
                not member.on_demand and member.state not in ENDED and drifted(member, desired)
                for member in members.values()
            ),
            current_files=sum(_has_current_files(each) for each in present),
            rollout=revision.outcome if revision is not None else None,
            rollout_failures=revision.failures if revision is not None else 0,
            loads=tuple(_load(each) for each in present),
            cost=_cost(context, members.values()),
        )


def _present(context: TermContext, ids: Iterable[InstanceId]) -> Iterator[Presence]:
    """Connected agents that have reported."""
    for id in ids:
        presence = context.agents.get(id)
        if presence is not None and presence.healthy and presence.report is not None:
            yield presence


def _overrides(context: TermContext, key: GroupKey) -> int:
    resolved = context.configuration.groups.get(key)
    if resolved is None or not resolved.group.static:
        return 0
    return sum(1 for _ in list_overrides(context.configuration.dynamic.groups.get(key), resolved.file))


def _cost(context: TermContext, members: Iterable[Instance]) -> GroupCost | None:
    prices = context.configuration.prices
    if prices is None:
        return None
    found = costs.cost_of(prices, members)
    return GroupCost(currency=prices.currency, by_market=found.by_market, unpriced=found.unpriced)


def _has_current_files(presence: Presence) -> bool:
    assert presence.report is not None
    return bool(presence.wanted_hash) and presence.report.config_hash == presence.wanted_hash and not presence.blocked


def _load(presence: Presence) -> Load:
    report = presence.report
    assert report is not None
    return Load(report.cpu_percent / 100, report.memory_percent / 100, report.disk_percent / 100, report.load1)
