"""Voluntary work: rotating drifted instances, renewing old ones, replacing on request, within the group's limits.

It begins only while nothing involuntary is going on, makes the replacement first, and lets the old one go when the new
one has registered. `max_unavailable` allows to let some go first instead.
"""

from nstance.core import creating, leaving
from nstance.core.draft import Draft, drifted
from nstance.core.scaling import places
from nstance.model.decision import Code
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance, State

_CODES = {
    Cause.DRIFT: Code.DRIFT,
    Cause.ELIGIBLE_EXPIRY: Code.ELIGIBLE_EXPIRY,
    Cause.REQUESTED: Code.REQUESTED,
    Cause.UNHEALTHY: Code.DRIFT,  # it recovered, but was drifted: the replacement made for its silence serves the drift
}


def rotate(draft: Draft) -> None:
    if draft.wish is None or not draft.view.listed:
        return
    _finish(draft)
    _begin(draft, draft.wish)


def _finish(draft: Draft) -> None:
    """The replacement has registered: the old one may go."""
    for newcomer in draft.capacity():
        old = draft.members.get(newcomer.replaces) if newcomer.replaces is not None else None
        if old is None or not old.counts or newcomer.state is not State.RUNNING or newcomer.suspect:
            continue
        cause = newcomer.replaces_for
        if cause is None or cause not in _CODES or old.suspect:
            continue
        message = f"{newcomer.id} has taken its place"
        draft.reason(_CODES[cause], message, old.id)
        leaving.leave(draft, old, Cause.DRIFT if cause is Cause.UNHEALTHY else cause, message)


def _begin(draft: Draft, wish: Group) -> None:
    able = draft.capacity()
    replaced = {m.replaces for m in able}
    present = {m.id for m in able}
    surge = sum(m.replaces in present for m in able)
    ready = sum(m.state is State.RUNNING and not m.suspect for m in able)
    if places(able) != wish.size or any(m.suspect for m in able):
        return
    stale = [m for m in able if m.state is State.RUNNING and m.id not in replaced and drifted(m, wish)]
    for instance in stale:
        # The new ones of this very rotation are not ready yet, and need not be: the old ones still are.
        if surge < wish.max_surge:
            if creating.create(draft, Cause.DRIFT, f"replaces {instance.id} (config-drift)", replaces=instance) is None:
                return
            surge += 1
        elif wish.size - ready < wish.max_unavailable:
            draft.reason(Code.DRIFT, "its configuration is out of date", instance.id)
            leaving.leave(draft, instance, Cause.DRIFT, "its configuration is out of date")
            ready -= 1
        else:
            return
    if not stale and surge == 0 and ready == wish.size:
        _renew_oldest(draft, able)


def _renew_oldest(draft: Draft, able: list[Instance]) -> None:
    """Past the eligible age, one at a time, only while the group is whole."""
    age = draft.policy.eligible_age
    if age is None or not able:
        return
    oldest = min(able, key=lambda m: m.created)
    if draft.now < oldest.created + age:
        draft.wake(oldest.created + age)
        return
    creating.create(draft, Cause.ELIGIBLE_EXPIRY, f"replaces {oldest.id} (eligible-expiry)", replaces=oldest)


def expire_on_demand(draft: Draft) -> None:
    age = draft.policy.ondemand_age
    if age is None or not draft.view.listed:
        return
    for instance in list(draft.members.values()):
        if not instance.on_demand or instance.state is not State.RUNNING:
            continue
        if draft.now < instance.created + age:
            draft.wake(instance.created + age)
            continue
        message = "it is past the age of on-demand instances"
        draft.reason(Code.ONDEMAND_EXPIRY, message, instance.id)
        leaving.leave(draft, instance, Cause.ONDEMAND_EXPIRY, message)
