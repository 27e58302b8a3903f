"""How an instance is removed: drained first if possible, otherwise deleted at once.

Whether a drain is awaited is decided once and stored in the record with its deadline. Instances store their group's drain
timeout, because deleting the group is a reason to drain them. Only the tombstone (state `deleting`) allows the provider
to be told; nothing is deleted without it.
"""

from dataclasses import replace

from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.instance import Cause, Drain, Instance, State

_NEVER_CREATED = frozenset({Cause.REFUSED, Cause.SUPERSEDED})
_VACATES = frozenset(Cause) - _NEVER_CREATED - {Cause.SCALE_DOWN, Cause.ONDEMAND_EXPIRY, Cause.ORPHAN}


def remove_instance(
    draft: Draft, instance: Instance, cause: Cause, message: str, *, deadline: float | None = None
) -> None:
    """Drain the instance, or delete it if nothing can be drained. `deadline`: when the provider takes the VM anyway."""
    draft.add_reason(ReasonCode(cause.value), message, instance.id)  # every cause is a reason too
    if instance.state is not State.RUNNING or draft.is_stopped(instance):
        delete_instance(draft, instance, cause, message)
        return
    if not can_drain(draft, instance):
        why = "drain timeout is 0" if _drain_timeout(draft, instance) <= 0 else "no operator drains instances"
        delete_instance(draft, instance, cause, f"{message}; not drained: {why}")
        return
    until = draft.now + _drain_timeout(draft, instance)
    if deadline is not None:
        until = min(until, max(deadline, draft.now))
    _pass_on_place(draft, instance)
    draining = replace(
        instance,
        state=State.DRAINING,
        drain=Drain(started=draft.now, cause=cause, deadline=until, waits=True),
        cause=cause,
        message=message,
        vacant=leaves_vacancy(draft, instance, cause),
    )
    draft.put(draining)
    draft.add_reason(
        ReasonCode.DRAIN_STARTED, f"{message}; draining for at most {until - draft.now:.0f} s", instance.id
    )


def can_drain(draft: Draft, instance: Instance) -> bool:
    """Whether a drain that starts now has an operator that carries it out."""
    seen = draft.view.operator_seen
    return _drain_timeout(draft, instance) > 0 and seen is not None and draft.now - seen <= draft.policy.operator_recent


def _drain_timeout(draft: Draft, instance: Instance) -> float:
    if draft.desired is not None:
        return draft.desired.drain_timeout
    return draft.policy.default_drain_timeout if instance.drain_timeout is None else instance.drain_timeout


def store_drain_timeout(draft: Draft) -> None:
    """Store the group's drain timeout in its instances when it has changed."""
    if draft.desired is None:
        return
    for instance in draft.needs_attention():
        if instance.state is State.RUNNING and instance.drain_timeout != draft.drain_timeout:
            draft.put(replace(instance, drain_timeout=draft.drain_timeout))


def delete_instance(draft: Draft, instance: Instance, cause: Cause, message: str) -> None:
    """Write the tombstone."""
    _pass_on_place(draft, instance)
    vacant = leaves_vacancy(draft, instance, cause) if instance.counts else instance.vacant
    draft.put(replace(instance, state=State.DELETING, cause=cause, message=message, vacant=vacant))
    schedule_delete(draft, instance)


def schedule_delete(draft: Draft, instance: Instance) -> None:
    calls = draft.observation(instance.id).calls
    draft.observe(instance.id, calls=replace(calls, delete_due=draft.now, delete_accepted_at=None))


def leaves_vacancy(draft: Draft, instance: Instance, cause: Cause) -> bool:
    """Whether the group's next instance replaces this one: the place is still wanted, nothing shares it, and no replacement
    exists. An instance that was never created leaves a vacancy only if it was to replace another."""
    if not instance.counts or draft.replacements().get(instance.id) or draft.replaced_by(instance) is not None:
        return False
    return cause in _VACATES or (cause in _NEVER_CREATED and (instance.replaces or instance.predecessor) is not None)


def _pass_on_place(draft: Draft, instance: Instance) -> None:
    """A chain of replacements shares one place: when one of them goes, its replacement inherits what it replaces."""
    old = draft.replaced_by(instance)
    if old is not None:
        for replacement in draft.replacements().get(instance.id, ()):
            draft.put(replace(replacement, replaces=old.id, replaces_for=instance.replaces_for))
