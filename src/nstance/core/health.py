"""Find instances whose VM is gone, about to end, or whose agent is unresponsive.

An unresponsive agent alone proves nothing: the provider is asked, and a failed answer is never read as "gone". If the VM
runs, the instance first becomes suspect (its replacement starts) and later counts as dead (it is removed); if its agent
reconnects in between, it is kept. After a change of leaders the time counts from when this leader began to listen.
"""

from collections.abc import Sequence
from dataclasses import replace

from nstance.core import creating, leaving
from nstance.core.draft import Draft
from nstance.model.decision import ReasonCode
from nstance.model.events import NoticeKind, VmState
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import AgentObservation, VmObservation

CHECK_DELAYS_SECONDS = (0.0, 1.0, 2.0, 4.0)  # after a lost connection or a notice
# After an announced shutdown: the VM is off a moment later, at a time that nobody announces.
SHUTDOWN_CHECK_DELAYS_SECONDS = (0.0, 0.4, 0.8, 1.4, 2.0, 4.0)
CHECK_INTERVAL_SECONDS = 10.0
CONNECT_SECONDS = 1.0  # how long a healthy agent takes at most from its registration to its connection
ADOPTED_RECONNECT_SECONDS = 60.0  # twice the longest back-off of an agent that was rejected
SPOT_NOTICE_SECONDS = 30.0  # the shortest warning of any cloud, for a notice without a deadline


def check_health(draft: Draft) -> None:
    needs_attention = draft.needs_attention()
    draft.wake(draft.triage.healthy_until)
    for instance in needs_attention:
        state = instance.state
        if state is State.RUNNING or state is State.STARTING or state is State.PENDING:
            _check_instance(draft, draft.members[instance.id])  # an earlier one may have passed its place on to it
        elif state is State.DRAINING:
            _schedule_checks_after(draft, instance, draft.observation(instance.id).agent.lost_at)


def _check_instance(draft: Draft, instance: Instance) -> None:
    observed = draft.observation(instance.id)
    agent, vm = observed.agent, observed.vm
    if vm.state is not VmState.RUNNING:
        if draft.is_stopped(instance):
            if draft.view.listed:  # every term begins with a listing, which comes first
                _remove_gone(draft, instance, vm.state)
            return
        if vm.state is VmState.ABSENT and instance.state is not State.PENDING:
            _schedule_check(draft, instance, draft.now + CHECK_INTERVAL_SECONDS)
    if instance.state is not State.RUNNING:
        return
    if agent.notice is None or not _act_on_notice(draft, instance, agent):
        _check_silence(draft, instance, agent, vm)


def _remove_gone(draft: Draft, instance: Instance, state: VmState) -> None:
    message = f"provider reports that the VM is {state.value}"
    leaving.remove_instance(draft, instance, Cause.GONE, message)
    if instance.ready_at is None:
        creating.count_startup_failure(draft, instance, f"VM ended before it was ready: {state.value}")


def imminent_end(draft: Draft, instance: Instance) -> Cause | None:
    """Why the VM will end soon, whatever we do."""
    agent = draft.observation(instance.id).agent
    if agent.notice is NoticeKind.SPOT:
        return Cause.SPOT
    if agent.notice is NoticeKind.SHUTDOWN and draft.now >= agent.notice_at + draft.policy.shutdown_grace:
        return Cause.SHUTDOWN
    return None


def _act_on_notice(draft: Draft, instance: Instance, agent: AgentObservation) -> bool:
    """Returns whether the instance is removed."""
    if agent.notice is NoticeKind.REBALANCE:
        return False  # a hint: voluntary work handles it
    is_shutdown = agent.notice is NoticeKind.SHUTDOWN
    delays = SHUTDOWN_CHECK_DELAYS_SECONDS if is_shutdown else CHECK_DELAYS_SECONDS
    _schedule_checks_after(draft, instance, agent.notice_at, delays)
    cause = imminent_end(draft, instance)
    if cause is None:
        draft.wake(agent.notice_at + draft.policy.shutdown_grace)
        return False
    deadline = agent.notice_deadline if agent.notice_deadline is not None else agent.notice_at + SPOT_NOTICE_SECONDS
    if (
        leaving.can_drain(draft, instance)
        or not instance.counts
        or has_replacement_vm(draft, instance)
        or draft.now >= deadline
    ):
        spot = cause is Cause.SPOT
        message = "provider is about to reclaim the VM" if spot else "VM announced its shutdown"
        leaving.remove_instance(draft, instance, cause, message, deadline=deadline if spot else None)
        return True
    # No operator will drain it, so it serves until its replacement VM exists.
    draft.wake(deadline)
    return False


def _check_silence(draft: Draft, instance: Instance, agent: AgentObservation, vm: VmObservation) -> None:
    if agent.connected and draft.now < agent.last_seen + draft.policy.suspect_after:
        if instance.suspect:
            draft.put(replace(instance, suspect=False))
            draft.add_reason(ReasonCode.RECOVERED, "agent is responsive again", instance.id)
        draft.wake(agent.last_seen + draft.policy.suspect_after)
        return
    # An agent that was killed between its registration and its connection has no connection to lose.
    expected = agent.last_seen + CONNECT_SECONDS if agent.awaiting_connection else agent.lost_at
    _schedule_checks_after(draft, instance, expected)
    suspect_at, dead_at = silence_deadlines(draft, agent)
    if not draft.is_due(suspect_at):
        return
    if vm.state is not VmState.RUNNING or vm.checked_at is None or vm.checked_at < agent.last_seen:
        # Only if the provider says after the last sign of life that the VM runs does the instance become suspect.
        checks = draft.observation(instance.id).calls.checks
        _schedule_check(draft, instance, draft.now + (CHECK_INTERVAL_SECONDS if checks else 0.0))
        return
    if draft.view.mass_silence:
        draft.wake(draft.now + CHECK_INTERVAL_SECONDS)
        return
    seconds = draft.now - agent.last_seen
    message = f"agent unresponsive for {seconds:.0f} s, VM is running"
    if not instance.suspect:
        instance = draft.put(replace(instance, suspect=True))
        draft.add_reason(ReasonCode.SUSPECT, message, instance.id)
        if agent.awaiting_connection:  # as bad as one that never registers, and likely to happen to the next one too
            failure = f"agent registered and did not connect for {seconds:.0f} s"
            creating.count_startup_failure(draft, instance, failure)
    if not draft.is_due(dead_at):
        return
    if vm.checked_at < dead_at:
        _schedule_check(draft, instance, draft.now)  # no deletion because of an old answer
    elif draft.can_delete and (instance.on_demand or has_replacement_vm(draft, instance)):
        leaving.remove_instance(draft, instance, Cause.UNHEALTHY, message)


def silence_deadlines(draft: Draft, agent: AgentObservation) -> tuple[float, float]:
    """When an unresponsive agent makes its instance suspect, and when dead."""
    policy, since = draft.policy, draft.view.listening_since
    last_seen = max(agent.last_seen, since)
    if not agent.seen_this_term or agent.last_seen < since:
        # It has not connected since this leader took over or was suspended: it gets the time that a fleet needs to reconnect.
        grace = max(policy.suspect_after, draft.view.reconnect_grace)
        return last_seen + grace, last_seen + max(policy.dead_after, grace)
    if agent.adopted:
        grace = max(policy.dead_after, ADOPTED_RECONNECT_SECONDS)
        return last_seen + grace, last_seen + grace
    if agent.restarting:
        return last_seen + policy.dead_after, last_seen + policy.dead_after
    return last_seen + policy.suspect_after, last_seen + policy.dead_after


def has_replacement_vm(draft: Draft, instance: Instance) -> bool:
    """A VM that still runs is removed only after its replacement VM exists."""
    return any(m.state is not State.PENDING for m in draft.replacements().get(instance.id, ()))


def _schedule_checks_after(
    draft: Draft, instance: Instance, since: float | None, delays: Sequence[float] = CHECK_DELAYS_SECONDS
) -> None:
    """Check at once and a few times more: clouds notice a dead VM only after some seconds."""
    checks = draft.observation(instance.id).calls.checks
    if since is not None and checks < len(delays):
        _schedule_check(draft, instance, since + delays[checks])


def _schedule_check(draft: Draft, instance: Instance, at: float) -> None:
    calls = draft.observation(instance.id).calls
    if not calls.checking and (calls.check_due is None or at < calls.check_due):
        draft.observe(instance.id, calls=replace(calls, check_due=at))
