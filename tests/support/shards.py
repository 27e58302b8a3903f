"""A shard without a server around it."""

from collections.abc import Mapping
from typing import Any

from nstance.clock import Clock
from nstance.model.group import Group, Policy
from nstance.model.ids import GroupKey, IdMaker, InstanceId
from nstance.model.instance import Instance
from nstance.server.state.shard import Shard
from nstance.server.state.shard_parts import ShardHooks, ShardParts
from nstance.server.state.shard_state import ShardState


class OpenTerm:
    epoch = 1

    async def ready(self) -> None:
        return None


def make_shard(
    writer: Any,
    *,
    instances: Mapping[InstanceId, Instance],
    desired_groups: Mapping[GroupKey, Group],
    clock: Clock,
    ids: IdMaker,
    **hooks: Any,
) -> Shard:
    term: Any = OpenTerm()
    defaults: dict[str, Any] = {
        "complete_intent": lambda instance: instance,
        "start_effect": lambda effect, instance, posted: None,
        "last_seen": lambda id: clock.monotonic(),
    }
    return Shard(
        ShardParts.make(term, writer, ShardState(instances, {}, desired_groups), clock=clock, ids=ids),
        ShardHooks(**defaults | hooks),
        policy=Policy(),
    )
