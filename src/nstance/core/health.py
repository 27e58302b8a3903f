"""Noticing trouble: what silence, notices and the provider's word mean for an instance.

Silence alone proves nothing: the provider is asked, and a failed answer is never read as "gone". A silent instance whose
VM runs is suspect first (its replacement starts), dead later (it goes), and forgiven if it comes back in between. After
a change of leaders silence counts from the moment this leader began to listen.
"""

from nstance.core import creating, leaving
from nstance.core.draft import Draft
from nstance.model.decision import Observation, ReasonCode
from nstance.model.events import NoticeKind, VmState
from nstance.model.instance import Cause, Instance, State

CHECK_TIMES = (0.0, 1.0, 2.0, 4.0)  # seconds after a loss or a notice at which the provider is asked
CHECK_AGAIN = 10.0
CONNECT_WITHIN = 1.0  # seconds that an agent takes at most from its registration to its connection, if all is well
SPOT_NOTICE = 30.0  # the shortest warning that a cloud gives, where a notice names no deadline


def judge(draft: Draft) -> None:
    needs_attention = draft.needs_attention()
    draft.wake(draft.healthy_until)
    for instance in needs_attention:
        state = instance.state
        if state is State.RUNNING or state is State.STARTING or state is State.PENDING:
            _judge(draft, draft.members[instance.id])  # who left before may have handed its place on to it
        elif state is State.DRAINING:
            _ask_after(draft, instance, draft.facts(instance.id).lost)


def _judge(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.vm is not VmState.RUNNING:
        if draft.not_running(instance):
            if draft.view.listed:  # the listing that every term begins with comes first
                _gone(draft, instance, facts)
            return
        if facts.vm is VmState.ABSENT and instance.state is not State.PENDING:
            _ask_at(draft, instance, draft.now + CHECK_AGAIN)
    if instance.state is not State.RUNNING:
        return
    if facts.notice is not None and _heed(draft, instance, facts):
        return
    _silence(draft, instance, facts)


def _gone(draft: Draft, instance: Instance, facts: Observation) -> None:
    message = f"the provider says that its VM is {facts.vm.value}"
    draft.reason(ReasonCode.GONE, message, instance.id)
    leaving.delete(draft, instance, Cause.GONE, message)
    if instance.ready_at is None:
        creating.did_not_come_up(draft, instance, f"its VM ended before it was ready: {facts.vm.value}")


def going(draft: Draft, instance: Instance) -> Cause | None:
    """Its VM will end soon, whatever we do."""
    facts = draft.facts(instance.id)
    if facts.notice is NoticeKind.SPOT:
        return Cause.SPOT
    if facts.notice is NoticeKind.SHUTDOWN and draft.now >= facts.notice_at + draft.policy.shutdown_grace:
        return Cause.SHUTDOWN
    return None


def _heed(draft: Draft, instance: Instance, facts: Observation) -> bool:
    """Act on a notice; says whether the instance leaves."""
    if facts.notice is NoticeKind.REBALANCE:
        return False  # a hint: voluntary work sees to it
    _ask_after(draft, instance, facts.notice_at)
    cause = going(draft, instance)
    if cause is None:
        draft.wake(facts.notice_at + draft.policy.shutdown_grace)
        return False
    deadline = facts.notice_deadline if facts.notice_deadline is not None else facts.notice_at + SPOT_NOTICE
    if (
        leaving.is_waited_for(draft, instance)
        or not instance.counts
        or is_replaced(draft, instance)
        or draft.now >= deadline
    ):
        spot = cause is Cause.SPOT
        message = "the provider is about to take its VM back" if spot else "its VM announced a shutdown"
        draft.reason(ReasonCode.SPOT if spot else ReasonCode.SHUTDOWN, message, instance.id)
        leaving.leave(draft, instance, cause, message, deadline=deadline if spot else None)
        return True
    # Nobody will drain it, so there is no haste: it serves until its replacement was made.
    draft.wake(deadline)
    return False


def _silence(draft: Draft, instance: Instance, facts: Observation) -> None:
    if facts.connected and draft.now < facts.last_seen + draft.policy.suspect_after:
        if instance.suspect:
            draft.change(instance, suspect=False)
            draft.reason(ReasonCode.RECOVERED, "its agent is back", instance.id)
        draft.wake(facts.last_seen + draft.policy.suspect_after)
        return
    # One that was killed between its registration and its connection has no connection to lose.
    _ask_after(draft, instance, facts.last_seen + CONNECT_WITHIN if facts.awaited else facts.lost)
    suspect_at, dead_at = limits(draft, facts)
    if draft.now < suspect_at:
        draft.wake(suspect_at)
        return
    if facts.vm is not VmState.RUNNING or facts.vm_at is None or facts.vm_at < facts.last_seen:
        # Only the provider's word "it runs", given after the last sign of life, makes an instance suspect.
        _ask_at(draft, instance, draft.now if not facts.checks else draft.now + CHECK_AGAIN)
        return
    if draft.view.mass_silence:
        draft.wake(draft.now + CHECK_AGAIN)
        return
    if not instance.suspect:
        silent = draft.now - facts.last_seen
        instance = draft.change(instance, suspect=True)
        draft.reason(ReasonCode.SUSPECT, f"silent for {silent:.0f} s although its VM runs", instance.id)
        if facts.awaited:  # as bad as one that never registers, and likely to happen to the next one too
            creating.did_not_come_up(draft, instance, f"its agent registered and did not connect for {silent:.0f} s")
    if draft.now < dead_at:
        draft.wake(dead_at)
    elif facts.vm_at < dead_at:
        _ask_at(draft, instance, draft.now)  # no deletion on an old answer
    elif draft.may_delete and (instance.on_demand or is_replaced(draft, instance)):
        message = f"silent for {draft.now - facts.last_seen:.0f} s although its VM runs"
        draft.reason(ReasonCode.UNHEALTHY, message, instance.id)
        leaving.leave(draft, instance, Cause.UNHEALTHY, message)


def limits(draft: Draft, facts: Observation) -> tuple[float, float]:
    """When silence makes suspect, and when dead."""
    policy, since = draft.policy, draft.view.listening_since
    last_seen = max(facts.last_seen, since)
    if not facts.met or facts.last_seen < since:
        # It has not connected since this leader took over, or stood still: it gets the time that a whole fleet needs to
        # reconnect.
        patience = max(policy.suspect_after, draft.view.reconnect_grace)
        return last_seen + patience, last_seen + max(policy.dead_after, patience)
    if facts.restarting:
        return last_seen + policy.dead_after, last_seen + policy.dead_after
    return last_seen + policy.suspect_after, last_seen + policy.dead_after


def is_replaced(draft: Draft, instance: Instance) -> bool:
    """A VM that still runs goes only after its replacement was made."""
    return any(m.state is not State.PENDING for m in draft.replacements().get(instance.id, ()))


def _ask_after(draft: Draft, instance: Instance, since: float | None) -> None:
    """At once, and a few times more: clouds notice a dying VM some seconds after it is dead."""
    checks = draft.facts(instance.id).checks
    if since is not None and checks < len(CHECK_TIMES):
        _ask_at(draft, instance, since + CHECK_TIMES[checks])


def _ask_at(draft: Draft, instance: Instance, at: float) -> None:
    facts = draft.facts(instance.id)
    if not facts.checking and (facts.check_due is None or at < facts.check_due):
        draft.learn(instance.id, check_due=at)
