"""How an instance goes: with a drain where there is something to drain, straight away where there is not.

Whether a drain is waited for is decided once, here, and kept in the record with its deadline. The tombstone (state
`deleting`) is what allows the provider to be told; nothing is ever deleted without it.
"""

from nstance.core.draft import Draft
from nstance.model.decision import Code
from nstance.model.instance import Cause, Drain, Instance, State


def leave(draft: Draft, instance: Instance, cause: Cause, message: str, *, deadline: float | None = None) -> None:
    """Let a running instance go. `deadline`: when the provider takes the VM anyway."""
    timeout = draft.wish.drain_timeout if draft.wish is not None else 0.0
    if instance.state is not State.RUNNING or draft.not_running(instance):
        delete(draft, instance, cause, message)
        return
    seen = draft.view.operator_seen
    if timeout <= 0 or seen is None or draft.now - seen > draft.policy.operator_recent:
        why = "drain timeout is 0" if timeout <= 0 else "no operator is there to drain it"
        delete(draft, instance, cause, f"{message}; {why}")
        return
    until = draft.now + timeout
    if deadline is not None:
        until = min(until, max(deadline, draft.now))
    draft.change(
        instance,
        state=State.DRAINING,
        drain=Drain(started=draft.now, cause=cause, deadline=until, waits=True),
        cause=cause,
        message=message,
    )
    draft.reason(Code.DRAIN_STARTED, f"{message}; drains for at most {until - draft.now:.0f} s", instance.id)


def delete(draft: Draft, instance: Instance, cause: Cause, message: str) -> None:
    """Write the tombstone."""
    draft.change(instance, state=State.DELETING, cause=cause, message=message)
    draft.learn(instance.id, delete_due=draft.now, deletion_begun=None)


def cancel(draft: Draft, instance: Instance, message: str) -> Instance:
    """Keep a draining instance after all."""
    draft.reason(Code.DRAIN_CANCELLED, message, instance.id)
    return draft.change(instance, state=State.RUNNING, drain=None, cause=None, message="", suspect=False)


def proceed(draft: Draft) -> None:
    """Drains end by acknowledgement (an event), by their deadline, because the VM is gone, or by being cancelled."""
    for instance in list(draft.members.values()):
        drain = instance.drain
        if instance.state is not State.DRAINING or drain is None:
            continue
        if draft.not_running(instance):
            delete(draft, instance, drain.cause, f"{instance.message}; its VM is gone")
        elif drain.cause is Cause.UNHEALTHY and draft.facts(instance.id).connected:
            cancel(draft, instance, "its agent came back while it was draining")
        elif draft.now >= drain.deadline or not drain.waits:
            draft.reason(Code.DRAIN_DEADLINE, "its drain was not acknowledged before the deadline", instance.id)
            delete(draft, instance, drain.cause, f"{instance.message}; drain deadline passed")
        else:
            draft.wake(drain.deadline)
