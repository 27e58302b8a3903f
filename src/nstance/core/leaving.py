"""How an instance goes: with a drain where there is something to drain, straight away where there is not.

Whether a drain is waited for is decided once, here, and kept in the record with its deadline. A group's drain timeout is
kept with its instances, because deleting the group is a reason to drain them. The tombstone (state `deleting`) is what
allows the provider to be told; nothing is ever deleted without it.
"""

from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.instance import Cause, Drain, Instance, State

_NEVER_MADE = frozenset({Cause.REFUSED, Cause.SUPERSEDED})
_VACATES = frozenset(Cause) - _NEVER_MADE - {Cause.SCALE_DOWN, Cause.ONDEMAND_EXPIRY, Cause.ORPHAN}


def leave(draft: Draft, instance: Instance, cause: Cause, message: str, *, deadline: float | None = None) -> None:
    """Let an instance go. `deadline`: when the provider takes the VM anyway."""
    if instance.state is not State.RUNNING or draft.not_running(instance):
        delete(draft, instance, cause, message)
        return
    if not is_waited_for(draft, instance):
        why = "drain timeout is 0" if _timeout(draft, instance) <= 0 else "no operator drains it"
        delete(draft, instance, cause, f"{message}; {why}")
        return
    until = draft.now + _timeout(draft, instance)
    if deadline is not None:
        until = min(until, max(deadline, draft.now))
    _hand_on_place(draft, instance)
    draft.change(
        instance,
        state=State.DRAINING,
        drain=Drain(started=draft.now, cause=cause, deadline=until, waits=True),
        cause=cause,
        message=message,
        vacant=leaves_vacancy(draft, instance, cause),
    )
    draft.reason(ReasonCode.DRAIN_STARTED, f"{message}; drains for at most {until - draft.now:.0f} s", instance.id)


def is_waited_for(draft: Draft, instance: Instance) -> bool:
    """Whether a drain that starts now has somebody to carry it out."""
    seen = draft.view.operator_seen
    return _timeout(draft, instance) > 0 and seen is not None and draft.now - seen <= draft.policy.operator_recent


def _timeout(draft: Draft, instance: Instance) -> float:
    if draft.desired is not None:
        return draft.desired.drain_timeout
    return draft.policy.default_drain_timeout if instance.drain_timeout is None else instance.drain_timeout


def keep_timeout(draft: Draft) -> None:
    """The group's drain timeout changed: its instances remember it."""
    if draft.desired is None:
        return
    kept = draft.drain_timeout
    for instance in draft.needs_attention():
        if instance.state is State.RUNNING and instance.drain_timeout != kept:
            draft.change(instance, drain_timeout=kept)


def delete(draft: Draft, instance: Instance, cause: Cause, message: str) -> None:
    """Write the tombstone."""
    _hand_on_place(draft, instance)
    vacant = leaves_vacancy(draft, instance, cause) if instance.counts else instance.vacant
    draft.change(instance, state=State.DELETING, cause=cause, message=message, vacant=vacant)
    draft.learn(instance.id, delete_due=draft.now, deletion_begun=None)


def leaves_vacancy(draft: Draft, instance: Instance, cause: Cause) -> bool:
    """Whether the next instance of the group replaces this one: nobody wanted its place to go, nobody else is in it, and no
    replacement is there yet. Of one that was never made, only if it was itself to replace another."""
    if not instance.counts or draft.replacements().get(instance.id):
        return False
    old = draft.members.get(instance.replaces) if instance.replaces is not None else None
    if old is not None and old.counts:
        return False
    return cause in _VACATES or (cause in _NEVER_MADE and (instance.replaces or instance.predecessor) is not None)


def _hand_on_place(draft: Draft, instance: Instance) -> None:
    """In a chain of newcomers all share one place: when one of them goes, the next replaces whom it was to replace."""
    old = draft.members.get(instance.replaces) if instance.replaces is not None else None
    if old is not None and old.counts:
        for replacement in draft.replacements().get(instance.id, ()):
            draft.change(replacement, replaces=old.id, replaces_for=instance.replaces_for)
