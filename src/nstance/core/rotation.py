"""Voluntary work: rotating drifted instances, heeding hints, renewing old ones, within the group's limits.

It begins only while every place is filled and nobody is suspect, and makes the replacement first. `max_unavailable`
allows to let some go first instead; of those, the ones that are not ready for other reasons are taken off.
"""

from nstance.core import creating, leaving, replacing
from nstance.core.draft import Draft
from nstance.model.decision import Code
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance, State

_WHY = {
    Cause.DRIFT: (Code.DRIFT, "its configuration is out of date"),
    Cause.SPOT: (Code.SPOT, "the provider hints that it wants it back"),
    Cause.ELIGIBLE_EXPIRY: (Code.ELIGIBLE_EXPIRY, "it is past the age at which it may be renewed"),
}


def rotate(draft: Draft) -> None:
    wish = draft.wish
    if wish is None or not draft.may_delete or draft.places() != wish.size:
        return
    noteworthy = [m for m in draft.noteworthy() if m.counts]
    if any(m.suspect for m in noteworthy):
        return
    surge = len(draft.capacity()) - wish.size
    newcomers = draft.newcomers()
    # Places whose instance is registered: of those that are not, newcomers share a place with another one.
    coming = len(draft.waiting()) + sum(m.state is not State.RUNNING for m in noteworthy)
    sharing = sum(m.state is not State.RUNNING for group in newcomers.values() for m in group)
    ready = wish.size - (coming - sharing)
    aged: list[Instance] = []
    # It may be the whole group: no further than the limits allow.
    for member in draft.noteworthy_or_outdated():
        if member.state is not State.RUNNING or member.on_demand or member.id in newcomers:
            continue
        cause = replacing.voluntary(draft, member)
        if cause is Cause.ELIGIBLE_EXPIRY:
            aged.append(member)
        elif cause is not None:
            if not _begin(draft, wish, cause, member, surge=surge, unavailable=wish.size - ready):
                return
            if surge < _max_surge(wish):
                surge += 1
            else:
                ready -= 1
    if aged and surge == 0 and ready == wish.size:
        # Past the eligible age: one at a time, only while the group is whole.
        oldest = min(aged, key=lambda m: (m.created, m.id))
        _begin(draft, wish, Cause.ELIGIBLE_EXPIRY, oldest, surge=surge, unavailable=0)


def _begin(draft: Draft, wish: Group, cause: Cause, instance: Instance, *, surge: int, unavailable: int) -> bool:
    """Replace one; says whether that was possible."""
    if surge < _max_surge(wish):
        message = f"replaces {instance.id} ({cause.value})"
        return creating.create(draft, cause, message, replaces=instance) is not None
    if unavailable >= wish.max_unavailable or not creating.may_create(draft):
        return False
    code, message = _WHY[cause]
    draft.reason(code, message, instance.id)
    leaving.leave(draft, instance, cause, message)
    return True


def _max_surge(wish: Group) -> int:
    """Both limits at zero would mean never."""
    return wish.max_surge or (0 if wish.max_unavailable else 1)


def expire_on_demand(draft: Draft) -> None:
    age = draft.policy.ondemand_age
    if age is None or not draft.may_delete:
        return
    for instance in draft.noteworthy():
        if not instance.on_demand or instance.state is not State.RUNNING:
            continue
        if draft.now < instance.created + age:
            draft.wake(instance.created + age)
            continue
        message = "it is past the age of on-demand instances"
        draft.reason(Code.ONDEMAND_EXPIRY, message, instance.id)
        leaving.leave(draft, instance, Cause.ONDEMAND_EXPIRY, message)
