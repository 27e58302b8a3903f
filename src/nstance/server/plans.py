"""What would happen, from the decision that would be taken: the same code as for the act, with its reasons."""

from collections.abc import Iterable

from nstance.core.draft import drifted
from nstance.model.decision import Code, Reason
from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import CAPACITY, Instance, Put, State
from nstance.server.shard import Shard
from nstance.v1 import operator_pb2

LATER = "its configuration will be out of date; it leaves when its turn has come and its replacement is there"
PUSHED = "its files change; it goes on running"


def plan(shard: Shard, key: GroupKey, wish: Group | None) -> list[operator_pb2.PlannedAction]:
    """What would be done if the group's wish were this one."""
    decision = shard.plan(key, wish)
    members = shard.members(key)
    reasons: dict[InstanceId, Reason] = {}
    for reason in decision.reasons:
        if reason.instance is not None:
            reasons.setdefault(reason.instance, reason)
    actions = []
    handled: set[InstanceId] = set()
    for change in decision.changes:
        if not isinstance(change, Put):
            continue
        instance, before = change.instance, members.get(change.instance.id)
        action = _action(before, instance)
        if action is None:
            continue
        handled.add(instance.id)
        why = reasons.get(instance.id)
        actions.append(
            operator_pb2.PlannedAction(
                action=action,
                instance_id="" if before is None else instance.id,
                reason=why.code.value if why is not None else instance.cause.value if instance.cause else "",
                message=why.message if why is not None else instance.message,
            )
        )
    if wish is not None and not wish.paused:
        actions += _rotations(members.values(), wish, handled)
        actions += _pushes(members.values(), shard.wishes.get(key), wish, handled)
    return actions


def _action(before: Instance | None, after: Instance) -> str | None:
    if before is None:
        return "create"
    if before.state is after.state:
        return None
    match after.state:
        case State.DRAINING:
            return "drain"
        case State.DELETING:
            return "delete"
        case State.RUNNING if before.state is State.DRAINING:
            return "cancel-drain"
        case _:
            return None


def _rotations(members: Iterable[Instance], wish: Group, handled: set[InstanceId]) -> list[operator_pb2.PlannedAction]:
    """A rotation takes one after the other; the decision shows only its first step."""
    return [
        operator_pb2.PlannedAction(action="drain", instance_id=m.id, reason=Code.DRIFT.value, message=LATER)
        for m in sorted(members, key=lambda m: m.id)
        if m.state in CAPACITY and not m.on_demand and m.id not in handled and drifted(m, wish)
    ]


def _pushes(
    members: Iterable[Instance], now: Group | None, wish: Group, handled: set[InstanceId]
) -> list[operator_pb2.PlannedAction]:
    if now is None or now.runtime_hash == wish.runtime_hash:
        return []
    return [
        operator_pb2.PlannedAction(action="push-files", instance_id=m.id, reason=Code.CONFIG.value, message=PUSHED)
        for m in sorted(members, key=lambda m: m.id)
        if m.state is State.RUNNING and m.id not in handled and not drifted(m, wish)
    ]
