"""Plans for dry runs: the actions of the decision that would be taken, with its reasons."""

from collections.abc import Iterable
from dataclasses import replace

from nstance.core import rollout
from nstance.core.draft import drifted
from nstance.model.decision import Decision, Reason, ReasonCode
from nstance.model.group import Group, Policy
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import CAPACITY, Cause, Instance, Put, State
from nstance.model.rollout import GroupRecord, Outcome
from nstance.server.state.shard import Shard
from nstance.v1 import operator_pb2

OUTDATED = "it is of another revision: it is replaced in its turn and drained when its replacement is ready"
REPLACED = "it is drained when its replacement is ready"
FILES_CHANGED = "its files change; it keeps running"


def plan(
    shard: Shard, key: GroupKey, desired: Group | None, *, policy: Policy | None = None
) -> list[operator_pb2.PlannedAction]:
    """The actions if the group were desired like this; for a paused group, the actions after it is resumed."""
    desired = replace(desired, paused=False) if desired is not None else None
    return actions(shard, key, desired, shard.plan(key, desired, policy=policy))


def actions(shard: Shard, key: GroupKey, desired: Group | None, decision: Decision) -> list[operator_pb2.PlannedAction]:
    """The actions of a decision, and those that follow from it later."""
    members = shard.members(key)
    reasons: dict[InstanceId, Reason] = {}
    for reason in decision.reasons:
        if reason.instance is not None:
            reasons.setdefault(reason.instance, reason)
    found = []
    handled: set[InstanceId] = set()
    made = []
    for change in decision.changes:
        if not isinstance(change, Put):
            continue
        instance, before = change.instance, members.get(change.instance.id)
        action = _action(before, instance)
        if action is None:
            continue
        handled.add(instance.id)
        made += [instance] if action == "create" else []
        why = reasons.get(instance.id)
        found.append(
            _planned(
                action,
                key,
                "" if action == "create" else instance.id,
                why.code.value if why is not None else instance.cause.value if instance.cause else "",
                why.message if why is not None else instance.message,
            )
        )
    if desired is not None:
        drifting = [m for m in _sorted(members.values()) if _rotates(m, desired) and m.id not in handled]
        if drifting and (held := _held(shard, key, decision)) is not None:
            found.append(held)
            drifting = []
        replaced = {m.replaces: m.replaces_for for m in made if m.replaces is not None and m.replaces not in handled}
        found += [
            _planned("drain", key, id, cause.value if cause is not None else "", REPLACED)
            for id, cause in replaced.items()
            if cause is not Cause.DRIFT
        ]
        found += [
            _planned("drain", key, m.id, ReasonCode.DRIFT.value, OUTDATED)
            for m in drifting
            if replaced.get(m.id, Cause.DRIFT) is Cause.DRIFT
        ]
        now, record = shard.desired_groups.get(key), shard.group_records.get(key)
        found += [
            _planned("push-files", key, m.id, ReasonCode.CONFIG.value, FILES_CHANGED)
            for m in _sorted(members.values())
            if m.state is State.RUNNING and m.id not in handled and _gets_files(m, now, desired, record)
        ]
        found += _waiting(shard, key, desired, decision)
    return sorted(found, key=lambda action: action.action != "create")  # in the order of execution


def _held(shard: Shard, key: GroupKey, decision: Decision) -> operator_pb2.PlannedAction | None:
    """An action that says why the rollout does not continue by itself."""
    record = decision.record or shard.group_records.get(key)
    current = record.current if record is not None else None
    if current is None or current.outcome not in rollout.HELD:
        return None
    code = ReasonCode.ROLLOUT_HALTED if current.outcome is Outcome.HALTED else ReasonCode.ROLLOUT
    message = f"no further instance is replaced: the rollout is {current.outcome.value}: {current.message}"
    return _planned("hold", key, "", code.value, message)


def _waiting(shard: Shard, key: GroupKey, desired: Group, decision: Decision) -> list[operator_pb2.PlannedAction]:
    """Creations that wait, after failures or for something that is not there yet."""
    members = {**shard.members(key), **{c.instance.id: c.instance for c in decision.changes if isinstance(c, Put)}}
    counting = {m.id: m for m in members.values() if m.counts}
    lack = desired.size - sum(m.replaces not in counting for m in counting.values())  # a replacement adds nothing
    trend = decision.trend
    blocked = shard.blocked_reason(key) or shard.offers.explain_blocked(desired)
    if blocked:
        why = _planned("create", key, "", ReasonCode.BLOCKED.value, blocked)
    else:
        message = f"waits after {trend.failures} failed attempts in a row: {trend.last_error}"
        why = _planned("create", key, "", ReasonCode.BACK_OFF.value, message)
    return [why] * lack if blocked or trend.failures else []


def _planned(action: str, key: GroupKey, id: str, reason: str, message: str) -> operator_pb2.PlannedAction:
    return operator_pb2.PlannedAction(action=action, instance_id=id, reason=reason, message=message, group=key.name)


def _action(before: Instance | None, after: Instance) -> str | None:
    if before is None and after.state in (State.STARTING, State.RUNNING):
        return "adopt"  # its VM is there
    if before is None:
        return "delete" if after.state is State.DELETING else "create"
    if before.state is after.state:
        # A deletion was requested during the drain: the drain cannot be cancelled any more.
        return "drain" if after.drain is not None and before.drain != after.drain else None
    match after.state:
        case State.DRAINING:
            return "drain"
        case State.DELETING:
            return "delete"
        case State.RUNNING if before.state is State.DRAINING:
            return "cancel-drain"
        case _:
            return None


def _rotates(member: Instance, desired: Group) -> bool:
    """Whether a rollout will replace it. The decision itself shows only the first step."""
    return member.state in CAPACITY and not member.on_demand and drifted(member, desired)


def _sorted(members: Iterable[Instance]) -> list[Instance]:
    return sorted(members, key=lambda m: m.id)


def _gets_files(member: Instance, now: Group | None, desired: Group, record: GroupRecord | None) -> bool:
    """Whether the files that it has are not those that are desired. One of an earlier revision has the files of that."""
    if now is None or drifted(member, desired):
        return False
    if not drifted(member, now):
        return now.runtime_hash != desired.runtime_hash
    revisions = record.revisions if record is not None else ()
    parts = next((r.runtime_hash for r in reversed(revisions) if r.infra_hash == member.infra_hash), "")
    return parts != desired.parts_hash
