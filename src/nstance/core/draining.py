"""How a drain ends: acknowledged (an event), past its deadline, because the VM is gone, or cancelled.

A drain for an unresponsive agent is cancelled when the agent reconnects, a drain for size when the group grows again. An
instance that is kept must have a place, or the next step would remove it again.
"""

from dataclasses import replace

from nstance.core import health, leaving, replacing
from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.instance import Cause, Drain, Instance, State

# The unresponsive instance, and the replacement of one that reconnected and may be unresponsive again.
_FOR_SILENCE = (Cause.UNHEALTHY, Cause.SUPERSEDED)


def advance_drains(draft: Draft) -> None:
    for instance in draft.needs_attention():
        if instance.state is State.DRAINING and instance.drain is not None:
            _advance_drain(draft, instance, instance.drain)


def _advance_drain(draft: Draft, instance: Instance, drain: Drain) -> None:
    if draft.is_stopped(instance):
        leaving.delete_instance(draft, instance, drain.cause, f"{instance.message}; VM is gone")
        return
    if not drain.waits:  # acknowledged while its group was paused
        leaving.delete_instance(draft, instance, drain.cause, "drained")
        return
    if (
        drain.cause is Cause.UNHEALTHY
        and draft.is_responsive(instance.id)
        and replacing.is_worth_keeping(draft, instance)
        and _has_place(draft, instance)
    ):
        _cancel_drain(draft, instance, "drain cancelled: agent reconnected")
        return
    if draft.view.mass_silence and drain.cause in _FOR_SILENCE and draft.now >= drain.deadline:
        draft.wake(draft.now + health.CHECK_INTERVAL_SECONDS)  # probably our fault: nothing is deleted for silence
        return
    if not draft.is_due(drain.deadline):
        return
    draft.add_reason(ReasonCode.DRAIN_DEADLINE, "drain was not acknowledged before its deadline", instance.id)
    leaving.delete_instance(draft, instance, drain.cause, f"{instance.message}; drain deadline passed")


def _has_place(draft: Draft, instance: Instance) -> bool:
    """Whether a place is free, or becomes free: of its own replacement, or of an instance that never registered."""
    return (
        instance.on_demand
        or draft.count_places() < draft.size
        or (draft.size > 0 and any(m.replaces == instance.id or _can_yield(m) for m in draft.capacity()))
    )


def _can_yield(member: Instance) -> bool:
    return member.state is not State.RUNNING and member.replaces is None


def cancel_for_size(draft: Draft, missing: int) -> int:
    """Keep instances that drain only because the group shrank instead of creating new ones, newest first."""
    cancelled = 0
    for instance in sorted(draft.needs_attention(), key=lambda m: m.id, reverse=True):
        if cancelled == missing:
            break
        drain = instance.drain
        if (
            instance.state is State.DRAINING
            and not instance.on_demand
            and drain is not None
            and drain.cause is Cause.SCALE_DOWN
            and not draft.is_stopped(instance)
            and draft.now < health.silence_deadlines(draft, draft.observation(instance.id).agent)[0]
            and replacing.is_worth_keeping(draft, instance)
        ):
            _cancel_drain(draft, instance, "drain cancelled: group size increased again")
            cancelled += 1
    return cancelled


def _cancel_drain(draft: Draft, instance: Instance, message: str) -> None:
    draft.add_reason(ReasonCode.DRAIN_CANCELLED, message, instance.id)
    draft.put(replace(instance, state=State.RUNNING, drain=None, cause=None, message="", suspect=False, vacant=False))
