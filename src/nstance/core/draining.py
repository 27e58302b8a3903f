"""How a drain ends: by acknowledgement (an event), by its deadline, because the VM is gone, or by being cancelled.

A drain for silence is cancelled when the agent comes back, a drain for size when the group grows again. The trap: an
instance that is taken back must have a place, or the next step would send it away again.
"""

from nstance.core import health, leaving, replacing
from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.instance import Cause, Drain, Instance, State

# For whoever fell silent, and for the newcomer of one that came back and may be among the silent again.
_FOR_SILENCE = (Cause.UNHEALTHY, Cause.SUPERSEDED)


def proceed(draft: Draft) -> None:
    for instance in draft.needs_attention():
        if instance.state is State.DRAINING and instance.drain is not None:
            _proceed(draft, instance, instance.drain)


def _proceed(draft: Draft, instance: Instance, drain: Drain) -> None:
    if draft.not_running(instance):
        leaving.delete(draft, instance, drain.cause, f"{instance.message}; its VM is gone")
        return
    if not drain.waits:  # acknowledged while its group was paused
        leaving.delete(draft, instance, drain.cause, "drained")
        return
    if (
        drain.cause is Cause.UNHEALTHY
        and draft.audible(instance.id)
        and replacing.is_fit(draft, instance)
        and _has_place(draft, instance)
    ):
        cancel(draft, instance, "its agent came back while it was draining")
        return
    if draft.view.mass_silence and drain.cause in _FOR_SILENCE and draft.now >= drain.deadline:
        draft.wake(draft.now + health.CHECK_AGAIN)  # the fault is probably here: nothing is deleted for silence
        return
    if draft.now < drain.deadline:
        draft.wake(drain.deadline)
        return
    draft.reason(ReasonCode.DRAIN_DEADLINE, "its drain was not acknowledged before the deadline", instance.id)
    leaving.delete(draft, instance, drain.cause, f"{instance.message}; drain deadline passed")


def _has_place(draft: Draft, instance: Instance) -> bool:
    """Something is missing, or something would give way: its own replacement, or one that never registered."""
    return (
        instance.on_demand
        or draft.places() < draft.size
        or (draft.size > 0 and any(m.replaces == instance.id or _gives_way(m) for m in draft.capacity()))
    )


def _gives_way(member: Instance) -> bool:
    return member.state is not State.RUNNING and member.replaces is None


def cancel_for_size(draft: Draft, lack: int) -> int:
    """Instances that drain only because the group shrank are kept instead of making new ones, newest first."""
    cancelled = 0
    for instance in sorted(draft.needs_attention(), key=lambda m: m.id, reverse=True):
        if cancelled == lack:
            break
        drain = instance.drain
        if (
            instance.state is State.DRAINING
            and not instance.on_demand
            and drain is not None
            and drain.cause is Cause.SCALE_DOWN
            and not draft.not_running(instance)
            and draft.now < health.limits(draft, draft.facts(instance.id))[0]
            and replacing.is_fit(draft, instance)
        ):
            cancel(draft, instance, "the group grew again before it was gone")
            cancelled += 1
    return cancelled


def cancel(draft: Draft, instance: Instance, message: str) -> None:
    """Keep a draining instance after all."""
    draft.reason(ReasonCode.DRAIN_CANCELLED, message, instance.id)
    draft.change(instance, state=State.RUNNING, drain=None, cause=None, message="", suspect=False, vacant=False)
