"""Apply events to records and observations. Nothing is planned here.

Outcomes arrive late and out of order: a create may be answered after the instance was abandoned, a check may answer for a
VM that is being deleted. So each case looks at the record's state first.
"""

from dataclasses import replace

from nstance.core import adopting, creating, leaving, readiness, requests, rollout
from nstance.core.draft import ABSENCE_CERTAIN_AFTER_SECONDS, Draft
from nstance.core.triage import is_ended
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.instance import Instance, State
from nstance.model.observation import AgentObservation, VmObservation

CONSISTENCY_LAG_SECONDS = 5.0  # for so long after a create or delete the provider may answer as if it had not happened
_REGISTERED = (State.RUNNING, State.DRAINING)
_NOTICE_WEIGHT = {ev.NoticeKind.REBALANCE: 0, ev.NoticeKind.SHUTDOWN: 1, ev.NoticeKind.SPOT: 2}


def apply_event(draft: Draft, event: ev.Event, position: int) -> None:
    match event:
        case ev.GroupChanged() | ev.TimerFired():
            pass
        case ev.OrphanFound():
            adopting.delete_orphan(draft, event)
        case ev.AdoptionRequested():
            adopting.adopt_requested(draft, event, position)
        case ev.ReleaseRequested():
            adopting.release_requested(draft, event, position)
        case ev.GroupDeleted():
            if (
                draft.desired is None and draft.record is not None
            ):  # its absence from the configuration counts from now on
                draft.record = replace(draft.record, dynamic=False, revisions=())
        case ev.RolloutResumed():
            if not rollout.resume_rollout(draft, by=event.by):
                draft.reject(position, Rejection.NOT_HELD)
        case ev.InstanceRequested():
            requests.request_instance(draft, event, position)
        case ev.RemovalOrdered():
            requests.order_removal(draft, event)
        case _:
            instance = draft.members.get(event.id)
            if instance is None:
                draft.reject(position, Rejection.UNKNOWN)
            else:
                _apply_to_member(draft, instance, event, position)


def _apply_to_member(draft: Draft, instance: Instance, event: ev.MemberEvent, position: int) -> None:
    match event:
        case ev.VmCreated():
            _on_created(draft, instance, event)
        case ev.VmCreateFailed():
            _on_create_failed(draft, instance, event)
        case ev.VmDeleted():
            _on_deleted(draft, instance, event)
        case ev.VmDeleteFailed():
            _on_delete_failed(draft, instance, event)
        case ev.VmChecked():
            _on_checked(draft, instance, event)
        case ev.VmMissingFromListing():
            if instance.state is not State.PENDING:
                _check_again(draft, instance, draft.now)  # looked up on its own before anything is concluded
        case ev.DuplicateVmFound():
            _on_duplicate_found(draft, instance, event)
        case ev.AgentSeenOnVm():
            _on_agent_seen_on_vm(draft, instance, event)
        case ev.DuplicateVmDeleted():
            if instance.duplicate_vm == event.provider_id:
                draft.put(replace(instance, duplicate_vm=None))
        case ev.Registered():
            _on_registered(draft, instance, event, position)
        case ev.Renewed():
            _on_renewed(draft, instance, event, position)
        case ev.AgentConnected():
            _on_connected(draft, instance)
        case ev.AgentLost():
            observed = draft.observation(instance.id)
            agent = replace(_disconnected(observed.agent), lost_at=draft.now)
            draft.observe(instance.id, agent=agent, calls=replace(observed.calls, checks=0, check_due=draft.now))
        case ev.AgentRestarting():
            agent = _disconnected(draft.observation(instance.id).agent)
            draft.observe(instance.id, agent=replace(agent, restarting=True, last_seen=draft.now))
        case ev.ReadinessReported():
            _on_readiness(draft, instance, event)
        case ev.ReadinessUnknown():
            agent = draft.observation(instance.id).agent
            draft.observe(instance.id, agent=replace(agent, blocked="its revision could not be read yet"))
        case ev.CloneDetected():
            _on_clone(draft, instance)
        case ev.NoticeReceived():
            _on_notice(draft, instance, event)
        case ev.DrainAcknowledged():
            requests.acknowledge_drain(draft, instance, event, position)
        case ev.DeletionRequested():
            requests.request_deletion(draft, instance, event, position)
        case ev.ReplacementRequested():
            requests.request_replacement(draft, instance, event, position)


# ---- the agent


def _on_registered(draft: Draft, instance: Instance, event: ev.Registered, position: int) -> None:
    if instance.public_key:
        # A nonce belongs to one key: a repetition with the same key is answered, with another key never.
        if instance.public_key != event.public_key:
            message = "registration rejected: the nonce was presented again with another key"
            draft.add_reason(ReasonCode.SECURITY, message, instance.id)
            draft.reject(position, Rejection.KEY_BOUND)
        elif instance.state in _REGISTERED:
            agent = draft.observation(instance.id).agent
            draft.observe(instance.id, agent=replace(agent, last_seen=draft.now, seen_this_term=True))
        else:
            draft.reject(position, Rejection.ENDING)
        return
    if instance.state not in (State.PENDING, State.STARTING):
        draft.reject(position, Rejection.ENDING)
        return
    registered = replace(
        instance,
        state=State.RUNNING,
        registered=draft.now,
        **event.as_fields(),
        # What the provider knows takes precedence over what the agent claims.
        ip4=instance.ip4 or event.ip4,
        ip6=instance.ip6 or event.ip6,
        hostname=instance.hostname or event.hostname,
    )
    draft.put(registered)
    observed = draft.observation(instance.id)
    agent = replace(observed.agent, last_seen=draft.now, seen_this_term=True, awaiting_connection=True)
    draft.observe(instance.id, agent=agent, calls=replace(observed.calls, checks=0))
    draft.add_reason(ReasonCode.REGISTERED, "agent registered", instance.id)


def _on_renewed(draft: Draft, instance: Instance, event: ev.Renewed, position: int) -> None:
    if instance.state not in _REGISTERED:
        draft.reject(position, Rejection.ENDING)
        return
    draft.put(replace(instance, **event.as_fields()))


def _on_connected(draft: Draft, instance: Instance) -> None:
    observed = draft.observation(instance.id)
    agent = replace(
        observed.agent,
        connected=True,
        connected_since=draft.now,
        last_seen=draft.now,
        seen_this_term=True,
        awaiting_connection=False,
        restarting=False,
        adopted=False,
        lost_at=None,
        unready_since=None,
    )
    draft.observe(instance.id, agent=agent, calls=replace(observed.calls, checks=0, check_due=None))


def _disconnected(agent: AgentObservation) -> AgentObservation:
    return replace(agent, connected=False, ready=False, not_ready="", failing_since=None, blocked="", serving=False)


def _on_readiness(draft: Draft, instance: Instance, event: ev.ReadinessReported) -> None:
    agent = draft.observation(instance.id).agent
    failing_since = draft.now if agent.failing_since is None else agent.failing_since
    agent = replace(
        agent,
        ready=event.ready,
        ready_since=agent.ready_since if agent.ready else draft.now,
        not_ready=readiness.explain(event),
        unready_since=None if event.ready else draft.now if agent.unready_since is None else agent.unready_since,
        failing_since=failing_since if event.failing else None,
        blocked=event.blocked,
        serving=event.serving,
        unblocked_at=draft.now if agent.blocked and not event.blocked else agent.unblocked_at,
    )
    draft.observe(instance.id, agent=agent)
    if event.ready and instance.ready_at is None and instance.state in _REGISTERED:
        draft.put(replace(instance, ready_at=draft.now))
        draft.add_reason(ReasonCode.READY, "instance is ready", instance.id)
        creating.reset_backoff(draft, instance)


def _on_notice(draft: Draft, instance: Instance, event: ev.NoticeReceived) -> None:
    observed = draft.observation(instance.id)
    agent, calls = observed.agent, observed.calls
    if agent.notice is not None and _NOTICE_WEIGHT[event.kind] <= _NOTICE_WEIGHT[agent.notice]:
        return  # a repeated notice changes nothing, and a hint does not replace a certain end
    agent = replace(agent, notice=event.kind, notice_at=draft.now, notice_deadline=event.deadline)
    if event.kind is not ev.NoticeKind.REBALANCE:
        calls = replace(calls, checks=0)
    draft.observe(instance.id, agent=agent, calls=calls)


def _on_clone(draft: Draft, instance: Instance) -> None:
    """Replaced if the configuration says so. An on-demand instance has no place that a replacement could take."""
    active = draft.desired is not None and not draft.paused
    if draft.policy.replace_clones and instance.state is State.RUNNING and not instance.on_demand and active:
        if not instance.replace_wanted:
            message = "two agents use its identity: instance will be replaced"
            draft.add_reason(ReasonCode.SECURITY, message, instance.id)
        draft.put(replace(instance, replace_wanted=True))


# ---- the VM


def _on_created(draft: Draft, instance: Instance, event: ev.VmCreated) -> None:
    creating.on_created(draft, instance)
    # An earlier "not found" came too early, or from a provider that is eventually consistent.
    observed = draft.observation(instance.id)
    vm = replace(observed.vm, state=ev.VmState.UNKNOWN, absent_since=None)
    draft.observe(instance.id, vm=vm, calls=replace(observed.calls, creating=False))
    seen = instance.seen or event.seen
    created = replace(
        instance,
        # A record that had ended gets its tombstone back, so that the VM does not leak.
        state=State.DELETING if is_ended(instance) else _with_vm(instance.state),
        ended=None,
        # The first VM that was found is kept: another one with this ID is a duplicate.
        provider_id=instance.provider_id or event.provider_id,
        ip4=event.ip4 or instance.ip4,
        ip6=event.ip6 or instance.ip6,
        hostname=event.hostname or instance.hostname,
        seen=seen,
        made=draft.now if instance.made is None and not seen else instance.made,
    )
    draft.put(created)
    if is_ended(instance):
        leaving.schedule_delete(draft, instance)
    elif instance.state is State.PENDING:
        draft.add_reason(ReasonCode.CREATED, f"provider created VM {event.provider_id}", instance.id)


def _on_create_failed(draft: Draft, instance: Instance, event: ev.VmCreateFailed) -> None:
    calls = replace(draft.observation(instance.id).calls, creating=False)
    draft.observe(instance.id, calls=calls)
    creating.mark_refused(draft, instance, event)
    if instance.state is State.PENDING:
        creating.on_create_failed(draft, instance, event)
    elif event.failure is ev.Failure.UNSENT and creating.was_never_requested(instance, calls):
        draft.add_reason(ReasonCode.DELETED, "provider was never asked to create the VM", instance.id)
        draft.put(replace(instance, state=State.DELETED, ended=draft.now))
    elif instance.provider_id is None:
        _check_again(draft, instance, draft.now)  # its agent registered before the provider answered


def _on_checked(draft: Draft, instance: Instance, event: ev.VmChecked) -> None:
    observed = draft.observation(instance.id)
    vm, calls = observed.vm, replace(observed.calls, checking=False)
    draft.observe(instance.id, calls=calls)
    if event.state is ev.VmState.UNKNOWN and event.provider_id is None:
        _check_again(draft, instance, draft.now + creating.RETRY.delay(calls.checks + 1))
        return
    absent = event.state is ev.VmState.ABSENT
    asked = draft.now if event.asked is None else event.asked
    if instance.ended is not None and asked < instance.ended + CONSISTENCY_LAG_SECONDS:
        return  # an answer from before its end; if the VM exists, later listings will show it
    if absent and instance.made is not None and asked < instance.made + CONSISTENCY_LAG_SECONDS:
        # One answer may show a new VM and the next one come from a replica that lags, also for a new leader.
        _check_again(draft, instance, max(draft.now + creating.RETRY.first, instance.made + CONSISTENCY_LAG_SECONDS))
        return
    if absent and draft.is_responsive(instance.id):
        _check_again(draft, instance, draft.now + creating.RETRY.most)  # its agent is better evidence than the provider
        return
    if absent and vm.state is not ev.VmState.ABSENT and _was_shown_since(instance, vm, draft.now, event.asked):
        _check_again(draft, instance, draft.now + creating.RETRY.first)
        return
    absent_since = (draft.now if vm.absent_since is None else vm.absent_since) if absent else None
    draft.observe(instance.id, vm=VmObservation(event.state, draft.now, absent_since))
    if not absent:
        _update_found(draft, instance, event)


def _was_shown_since(instance: Instance, vm: VmObservation, now: float, asked: float | None) -> bool:
    """Whether a listing that showed the VM is newer than the question that found nothing. For a young VM of a provider whose
    answers lag also if it was shown a moment before: of two contradicting answers, the later one may be of an old replica."""
    young = instance.made is not None and now < instance.created + ABSENCE_CERTAIN_AFTER_SECONDS
    lag = CONSISTENCY_LAG_SECONDS if young else 0.0
    return asked is not None and vm.checked_at is not None and vm.checked_at + lag >= asked


def _update_found(draft: Draft, instance: Instance, event: ev.VmChecked) -> None:
    """Store what a check or a listing shows of an existing VM."""
    found = instance
    if not instance.seen:
        found = replace(found, seen=True, made=draft.now if instance.made is None else instance.made)
    if event.provider_id is not None and instance.provider_id is None:
        found = replace(
            found,
            state=_with_vm(instance.state),
            provider_id=event.provider_id,
            ip4=event.ip4 or instance.ip4,
            ip6=event.ip6 or instance.ip6,
            hostname=event.hostname or instance.hostname,
        )
    if is_ended(instance) and event.state is not ev.VmState.DELETED:
        provider_id = event.provider_id or instance.provider_id
        found = replace(found, state=State.DELETING, ended=None, provider_id=provider_id)
        leaving.schedule_delete(draft, instance)
        draft.add_reason(ReasonCode.ORPHAN, "VM appeared after its record had ended", instance.id)
    draft.put(found)


def _with_vm(state: State) -> State:
    return State.STARTING if state is State.PENDING else state


def _check_again(draft: Draft, instance: Instance, at: float) -> None:
    draft.observe(instance.id, calls=replace(draft.observation(instance.id).calls, check_due=at))


def _on_deleted(draft: Draft, instance: Instance, event: ev.VmDeleted) -> None:
    observed = draft.observation(instance.id)
    vm, calls = observed.vm, replace(observed.calls, deleting=False)
    if event.final:
        vm = replace(vm, state=ev.VmState.DELETED, checked_at=draft.now)
    else:
        # Accepted is not finished: the VM is checked until the provider says that it is gone.
        calls = replace(calls, delete_accepted_at=draft.now, check_due=draft.now + creating.RETRY.first, checks=0)
    draft.observe(instance.id, vm=vm, calls=calls)


def _on_delete_failed(draft: Draft, instance: Instance, event: ev.VmDeleteFailed) -> None:
    calls = draft.observation(instance.id).calls
    attempts = calls.delete_attempts + 1
    due = draft.now + creating.RETRY.delay(attempts)
    draft.observe(instance.id, calls=replace(calls, deleting=False, delete_attempts=attempts, delete_due=due))
    if attempts in (1, 10):
        draft.add_reason(ReasonCode.DELETE_FAILED, f"failed to delete VM, retrying: {event.message}", instance.id)


# ---- duplicate VMs


def _on_duplicate_found(draft: Draft, instance: Instance, event: ev.DuplicateVmFound) -> None:
    if instance.duplicate_vm is None and instance.provider_id not in (None, event.provider_id):
        draft.put(replace(instance, duplicate_vm=event.provider_id))
        message = f"VM {event.provider_id} has the same instance ID and will be deleted, keeping {instance.provider_id}"
        draft.add_reason(ReasonCode.ORPHAN, message, instance.id)


def _on_agent_seen_on_vm(draft: Draft, instance: Instance, event: ev.AgentSeenOnVm) -> None:
    """The VM without the agent is deleted: from the next listing on, the one that the record named is the duplicate."""
    if instance.duplicate_vm == event.provider_id or instance.state not in _REGISTERED:
        return
    draft.put(replace(instance, provider_id=event.provider_id, ip4=event.ip4, ip6=event.ip6, hostname=event.hostname))
    message = f"agent runs on VM {event.provider_id}, not on {instance.provider_id}"
    draft.add_reason(ReasonCode.ORPHAN, message, instance.id)
