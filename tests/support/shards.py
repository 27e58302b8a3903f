"""A shard without a server around it."""

from collections.abc import Callable, Mapping
from typing import Any

from nstance.clock import Clock
from nstance.model import decision as dec
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
    start_effect: Callable[[dec.Effect, Instance, float], None] = lambda effect, instance, posted: None,
    last_seen: Callable[[InstanceId], float | None] | None = None,
) -> Shard:
    term: Any = OpenTerm()
    return Shard(
        ShardParts.make(term, writer, ShardState(instances, {}, desired_groups), clock=clock, ids=ids),
        ShardHooks(
            complete_intent=lambda instance: instance,
            start_effect=start_effect,
            last_seen=last_seen or (lambda id: clock.monotonic()),
        ),
        policy=Policy(),
    )
