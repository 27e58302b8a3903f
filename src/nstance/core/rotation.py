"""Voluntary work: rotating drifted instances, heeding hints, renewing old ones, within the group's limits.

It begins only while every place is filled and nobody is suspect, and makes the replacement first. The limits count every
VM that exists: `max_surge` is how many there may be above the size, also those that drain; `max_unavailable` allows to let
some go first instead, and how many ready ones may then be missing. The trap: one that leaves first keeps its place until
its VM is gone, or its replacement would be one VM too many.
"""

from collections.abc import Iterator

from nstance.core import creating, health, leaving, replacing, rollout
from nstance.core.draft import Draft, drifted
from nstance.model.decision import ReasonCode
from nstance.model.events import NoticeKind
from nstance.model.group import Group, UpdateOrder
from nstance.model.instance import Cause, Instance, State

_WHY = {
    Cause.DRIFT: (ReasonCode.DRIFT, "its configuration is out of date"),
    Cause.SPOT: (ReasonCode.SPOT, "the provider hints that it wants it back"),
    Cause.ELIGIBLE_EXPIRY: (ReasonCode.ELIGIBLE_EXPIRY, "it is past the age at which it may be renewed"),
}


def rotate(draft: Draft) -> None:
    desired = draft.desired
    if desired is None or not rollout.may_begin(draft, Cause.DRIFT) or draft.places() != desired.size:
        return
    if any(m.suspect for m in draft.needs_attention() if m.counts):
        return
    surge = max_surge(desired) - (draft.existing() - desired.size)
    unavailable, broken = desired.size - draft.ready(), draft.broken()
    if surge < 0 or (surge == 0 and unavailable - broken >= desired.max_unavailable):
        return
    if broken:
        broken = sum(1 for _ in _candidates(draft, broken=True))
    left, begun = len(draft.members), False
    # It may be the whole group: no further than the limits allow.
    for cause, member in _in_order(draft):
        if not begun:
            left, begun = _steps_left(draft, desired, member), True
        if left <= 0:
            return
        is_broken = draft.is_broken(member)
        # One that is not ready is no loss; but if the others of its kind recover, enough must be left.
        missing = unavailable - broken if is_broken else unavailable
        if surge > 0:
            if creating.create(draft, cause, f"replaces {member.id} ({cause.value})", replaces=member) is None:
                return
            surge -= 1
        elif missing < desired.max_unavailable and creating.may_create(draft):
            if is_broken:
                broken -= 1
            else:
                unavailable += 1
            _let_go(draft, cause, member)
        else:
            return
        left -= 1
    if not begun:
        _renew_oldest(draft, desired, surge)


def _renew_oldest(draft: Draft, desired: Group, surge: int) -> None:
    """Past the eligible age: one at a time, only while the group is whole."""
    aged = [m for c, m in _candidates(draft, aged=True) if c is Cause.ELIGIBLE_EXPIRY]
    if not aged or not draft.existing() == draft.ready() == desired.size:
        return
    oldest = min(aged, key=lambda m: (m.created, m.id))
    if _steps_left(draft, desired, oldest) <= 0:
        return
    if surge > 0:
        message = f"replaces {oldest.id} ({Cause.ELIGIBLE_EXPIRY.value})"
        creating.create(draft, Cause.ELIGIBLE_EXPIRY, message, replaces=oldest)
    elif desired.max_unavailable and creating.may_create(draft):
        _let_go(draft, Cause.ELIGIBLE_EXPIRY, oldest)


def _in_order(draft: Draft) -> Iterator[tuple[Cause, Instance]]:
    """Who is to be replaced, those first that are not ready."""
    if draft.broken():
        yield from _candidates(draft, broken=True)
        yield from _candidates(draft, broken=False)
    else:
        yield from _candidates(draft)


def _candidates(draft: Draft, *, broken: bool | None = None, aged: bool = False) -> Iterator[tuple[Cause, Instance]]:
    """`aged`: those too that are only old."""
    replacements = draft.replacements()
    for member in draft.needs_attention_or_outdated():
        if member.state is not State.RUNNING or member.on_demand or member.id in replacements:
            continue
        if broken is not None and draft.is_broken(member) is not broken:
            continue
        cause = replacing.voluntary(draft, member)
        if cause is not None and (aged or cause is not Cause.ELIGIBLE_EXPIRY) and rollout.may_begin(draft, cause):
            yield cause, member


def _steps_left(draft: Draft, desired: Group, first: Instance) -> int:
    """How many replacements may be begun now, whatever the limits allow; `first`: of whom."""
    canaries = rollout.canaries_left(draft)
    left = len(draft.members) if canaries is None else canaries
    if desired.order is UpdateOrder.PARALLEL:
        return left
    whole = draft.ready() == desired.size or draft.is_broken(first)
    return min(left, 1) if whole and not _step_under_way(draft, desired) else 0


def _step_under_way(draft: Draft, desired: Group) -> bool:
    """Of a serial rollout: an old instance is not gone yet, or a new one has not been ready for long enough."""
    if draft.replacements() or any(leaves_voluntarily(draft, m) for m in draft.needs_attention()):
        return True
    for member in draft.capacity():
        if drifted(member, desired):
            continue
        if not draft.is_ready(member):
            return True
        settled = draft.facts(member.id).ready_since + desired.settle
        if draft.now < settled:
            draft.wake(settled)
            return True
    return False


def _let_go(draft: Draft, cause: Cause, instance: Instance) -> None:
    code, message = _WHY[cause]
    draft.reason(code, message, instance.id)
    leaving.leave(draft, instance, cause, message)


def max_surge(desired: Group) -> int:
    """Both limits at zero would mean never."""
    return desired.max_surge or (0 if desired.max_unavailable else 1)


def leaves_voluntarily(draft: Draft, instance: Instance) -> bool:
    """It drains or is being deleted because of a rotation, an expiry or a hint."""
    if instance.on_demand or (instance.state is not State.DRAINING and instance.state is not State.DELETING):
        return False
    if instance.cause is Cause.SPOT:
        return draft.facts(instance.id).notice is NoticeKind.REBALANCE
    return instance.cause is Cause.DRIFT or instance.cause is Cause.ELIGIBLE_EXPIRY


def places_still_taken(draft: Draft) -> int:
    """Places that voluntary work has emptied and that may not be filled yet: the VM that left first is still there, and one
    more would exceed `max_surge`."""
    desired = draft.desired
    leaving = [m for m in draft.needs_attention() if leaves_voluntarily(draft, m)]
    if desired is None or not leaving:
        return 0
    replaced = {m.replaces for m in draft.capacity()}
    coming = sum(
        m.replaces_for in replacing.VOLUNTARY and health.going(draft, draft.members[old]) is None
        for old, group in draft.replacements().items()
        for m in group
    )
    left_first = sum(m.id not in replaced for m in leaving)
    return min(left_first, max(0, len(leaving) + coming - max_surge(desired)))


def expire_on_demand(draft: Draft) -> None:
    age = draft.policy.ondemand_age
    if age is None or not draft.may_delete:
        return
    for instance in draft.needs_attention():
        if not instance.on_demand or instance.state is not State.RUNNING:
            continue
        if draft.now < instance.created + age:
            draft.wake(instance.created + age)
            continue
        message = "it is past the age of on-demand instances"
        draft.reason(ReasonCode.ONDEMAND_EXPIRY, message, instance.id)
        leaving.leave(draft, instance, Cause.ONDEMAND_EXPIRY, message)
