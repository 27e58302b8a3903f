"""What an event teaches: records and facts are brought up to date; nothing is planned here.

The trap: outcomes arrive late and out of order. A create may be answered after the instance was given up, a check may
answer for a VM that is being deleted. Each case below asks for the record's state first.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from nstance.core import adopting, creating, held_groups, leaving, readiness, rollout
from nstance.core.draft import ABSENCE_IS_TRUE_AFTER, Draft, is_ended
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.instance import Cause, Instance, State

RETRY_FIRST = 1.0
RETRY_MOST = 30.0
CONSISTENCY_LAG = 5.0  # for so long after a create or a delete the provider may answer as if it had not happened
_UNREADY: Mapping[str, Any] = {"ready": False, "not_ready": "", "failing_since": None, "blocked": ""}
_WEIGHT = {ev.NoticeKind.REBALANCE: 0, ev.NoticeKind.SHUTDOWN: 1, ev.NoticeKind.SPOT: 2}


def observe(draft: Draft, event: ev.Event, position: int) -> None:
    match event:
        case ev.GroupChanged() | ev.TimerFired():
            return
        case ev.OrphanFound():
            adopting.delete_orphan(draft, event)
            return
        case ev.AdoptionRequested():
            adopting.adopt_requested(draft, event, position)
            return
        case ev.ReleaseRequested():
            adopting.release_requested(draft, event, position)
            return
        case ev.GroupDeleted():
            held_groups.delete_group(draft)
            return
        case ev.RolloutResumed():
            if not rollout.resume(draft):
                draft.refuse(position, Rejection.NOT_HELD)
            return
        case ev.InstanceRequested():
            _wanted(draft, event, position)
            return
        case _:
            pass
    instance = draft.members.get(event.id)
    if instance is None:
        draft.refuse(position, Rejection.UNKNOWN)
        return
    match event:
        case ev.VmCreated():
            _created(draft, instance, event)
        case ev.VmCreateFailed():
            draft.learn(instance.id, creating=False)
            if instance.state is State.PENDING:
                creating.failed(draft, instance, event)
            elif event.failure is ev.Failure.UNSENT and creating.never_asked(draft, instance):
                draft.reason(ReasonCode.DELETED, "the provider was never asked for it", instance.id)
                draft.change(instance, state=State.DELETED, ended=draft.now)
            elif instance.provider_id is None:
                draft.learn(instance.id, check_due=draft.now)  # its agent was faster than the provider's answer
        case ev.VmDeleted():
            _deletion(draft, instance, event)
        case ev.VmDeleteFailed():
            _deletion_failed(draft, instance, event)
        case ev.VmChecked():
            _checked(draft, instance, event)
        case ev.VmMissingFromListing():
            if instance.state is not State.PENDING:
                draft.learn(instance.id, check_due=draft.now)  # asked for singly before anything is concluded
        case ev.DuplicateVmFound():
            _doubled(draft, instance, event)
        case ev.AgentSeenOnVm():
            _speaks(draft, instance, event)
        case ev.DuplicateVmDeleted():
            if instance.duplicate_vm == event.provider_id:
                draft.change(instance, duplicate_vm=None)
        case ev.Registered():
            _registered(draft, instance, event, position)
        case ev.Renewed():
            if instance.state in (State.RUNNING, State.DRAINING):
                draft.change(
                    instance,
                    public_key=event.public_key,
                    certificate_serial=event.certificate_serial,
                    certificate_expires=event.certificate_expires,
                )
            else:
                draft.refuse(position, Rejection.ENDING)
        case ev.AgentConnected():
            draft.learn(
                instance.id,
                connected=True,
                connected_since=draft.now,
                met=True,
                awaited=False,
                restarting=False,
                lost=None,
                last_seen=draft.now,
                checks=0,
                check_due=None,
            )
        case ev.ReadinessReported():
            _readiness(draft, instance, event)
        case ev.AgentLost():
            draft.learn(instance.id, connected=False, lost=draft.now, checks=0, check_due=draft.now, **_UNREADY)
        case ev.AgentRestarting():
            draft.learn(instance.id, connected=False, restarting=True, last_seen=draft.now, **_UNREADY)
        case ev.CloneDetected():
            _cloned(draft, instance)
        case ev.NoticeReceived():
            _notice(draft, instance, event)
        case ev.DrainAcknowledged():
            _acknowledged(draft, instance, event, position)
        case ev.DeletionRequested():
            _deletion_wanted(draft, instance, event, position)
        case ev.ReplacementRequested():
            _replacement_wanted(draft, instance, event, position)
        case _:
            assert_never(event)


def _readiness(draft: Draft, instance: Instance, event: ev.ReadinessReported) -> None:
    facts = draft.facts(instance.id)
    draft.learn(
        instance.id,
        ready=event.ready,
        ready_since=facts.ready_since if facts.ready else draft.now,
        not_ready=readiness.explain(event),
        failing_since=(draft.now if facts.failing_since is None else facts.failing_since) if event.failing else None,
        blocked=event.blocked,
        unblocked_at=draft.now if facts.blocked and not event.blocked else facts.unblocked_at,
    )
    if event.ready and instance.ready_at is None and instance.state in (State.RUNNING, State.DRAINING):
        draft.change(instance, ready_at=draft.now)
        draft.reason(ReasonCode.READY, "instance is ready", instance.id)
        creating.succeeded(draft, instance)


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _says(who: str) -> str:
    return f", says {who}" if who else ""


def _acknowledged(draft: Draft, instance: Instance, event: ev.DrainAcknowledged, position: int) -> None:
    if instance.state is not State.DRAINING or instance.drain is None:
        draft.refuse(position, Rejection.NOT_DRAINING)
    elif draft.desired is not None and draft.desired.paused:
        # Nothing is deleted while paused; that nobody needs to be waited for is not forgotten.
        draft.change(instance, drain=replace(instance.drain, waits=False))
        draft.reason(
            ReasonCode.DRAINED,
            f"its workloads have left{_says(event.by)}; it goes when its group is resumed",
            instance.id,
        )
    else:
        draft.reason(ReasonCode.DRAINED, f"its workloads have left{_says(event.by)}", instance.id)
        leaving.delete(draft, instance, instance.drain.cause, "drained")


def _deletion_wanted(draft: Draft, instance: Instance, event: ev.DeletionRequested, position: int) -> None:
    if instance.state in (State.DELETING, State.DELETED, State.FAILED):
        draft.refuse(position, Rejection.ENDING)
    elif draft.desired is not None and draft.desired.paused:
        draft.refuse(position, Rejection.PAUSED)
    elif instance.state is State.DRAINING and instance.drain is not None:
        # It goes anyway; but from now on nothing takes it back.
        if instance.drain.cause is not Cause.REQUESTED:
            draft.change(instance, drain=replace(instance.drain, cause=Cause.REQUESTED), cause=Cause.REQUESTED)
            draft.reason(
                ReasonCode.REQUESTED, f"its deletion was requested{_by(event.by)} while it drains", instance.id
            )
    else:
        draft.reason(ReasonCode.REQUESTED, f"its deletion was requested{_by(event.by)}", instance.id)
        leaving.leave(draft, instance, Cause.REQUESTED, "deletion requested")


def _replacement_wanted(draft: Draft, instance: Instance, event: ev.ReplacementRequested, position: int) -> None:
    if instance.on_demand:
        draft.refuse(position, Rejection.ON_DEMAND)
    elif not instance.counts:
        draft.refuse(position, Rejection.ENDING)
    elif draft.desired is None or draft.desired.paused:
        draft.refuse(position, Rejection.PAUSED if draft.desired is not None else Rejection.UNKNOWN)
    elif instance.state is State.RUNNING:
        draft.reason(ReasonCode.REQUESTED, f"its replacement was requested{_by(event.by)}", instance.id)
        draft.change(instance, replace_wanted=True)
    else:
        why = f"its replacement was requested{_by(event.by)} before it registered"
        draft.reason(ReasonCode.REQUESTED, why, instance.id)
        leaving.leave(draft, instance, Cause.REQUESTED, "replacement requested")


def _created(draft: Draft, instance: Instance, event: ev.VmCreated) -> None:
    # What was said of its absence was said too early, or by a provider that forgets.
    draft.learn(instance.id, creating=False, vm=ev.VmState.UNKNOWN, absent_since=None)
    known: dict[str, object] = {
        # The first VM that was found is the one: another one with this ID is a double.
        "provider_id": instance.provider_id or event.provider_id,
        "ip4": event.ip4 or instance.ip4,
        "ip6": event.ip6 or instance.ip6,
        "hostname": event.hostname or instance.hostname,
        "seen": instance.seen or event.seen,
    }
    if instance.made is None and not known["seen"]:
        known["made"] = draft.now
    match instance.state:
        case State.PENDING:
            draft.change(instance, state=State.STARTING, **known)
            draft.reason(ReasonCode.CREATED, f"the provider made {event.provider_id}", instance.id)
        case State.DELETED | State.FAILED:
            # Given up, and there it is: it must not leak.
            draft.change(instance, state=State.DELETING, ended=None, **known)
            draft.learn(instance.id, delete_due=draft.now, deletion_begun=None)
        case _:
            draft.change(instance, **known)


def _checked(draft: Draft, instance: Instance, event: ev.VmChecked) -> None:
    facts = draft.facts(instance.id)
    if event.state is ev.VmState.UNKNOWN and event.provider_id is None:
        draft.learn(instance.id, checking=False, check_due=draft.now + _backoff(facts.checks))
        return
    absent = event.state is ev.VmState.ABSENT
    asked = draft.now if event.asked is None else event.asked
    if instance.ended is not None and asked < instance.ended + CONSISTENCY_LAG:
        draft.learn(instance.id, checking=False)  # as it was before it went; if it is there, listings go on showing it
        return
    if absent and instance.made is not None and asked < instance.made + CONSISTENCY_LAG:
        # Unknown, also to a new leader: one answer may show a new VM, and the next one come from a replica that lags.
        draft.learn(
            instance.id, checking=False, check_due=max(draft.now + RETRY_FIRST, instance.made + CONSISTENCY_LAG)
        )
        return
    if absent and draft.audible(instance.id):
        # Its agent speaks: that is better evidence than a provider that finds nothing.
        draft.learn(instance.id, checking=False, check_due=draft.now + RETRY_MOST)
        return
    if absent and facts.vm is not ev.VmState.ABSENT and _was_shown_since(draft, instance, event.asked):
        draft.learn(instance.id, checking=False, check_due=draft.now + RETRY_FIRST)
        return
    draft.learn(
        instance.id,
        checking=False,
        vm=event.state,
        vm_at=draft.now,
        absent_since=(facts.absent_since if facts.absent_since is not None else draft.now) if absent else None,
    )
    if absent:
        return
    fields: dict[str, object] = {}
    if not instance.seen:
        fields |= {"seen": True, "made": draft.now if instance.made is None else instance.made}
    if event.provider_id is not None and instance.provider_id is None:
        fields |= {
            "provider_id": event.provider_id,
            "ip4": event.ip4 or instance.ip4,
            "ip6": event.ip6 or instance.ip6,
            "hostname": event.hostname or instance.hostname,
        }
        if instance.state is State.PENDING:
            fields["state"] = State.STARTING
    if is_ended(instance) and event.state is not ev.VmState.DELETED:
        fields |= {"state": State.DELETING, "ended": None, "provider_id": event.provider_id or instance.provider_id}
        draft.learn(instance.id, delete_due=draft.now, deletion_begun=None)
        draft.reason(ReasonCode.ORPHAN, "its VM turned up after it was given up", instance.id)
    if fields:
        draft.change(instance, **fields)


def _was_shown_since(draft: Draft, instance: Instance, asked: float | None) -> bool:
    """A listing overtook the question: what it showed is newer than "not found". While a VM is young, also when it was
    shown a moment before: of two answers that contradict each other, the later one may be of a replica that lags."""
    shown = draft.facts(instance.id).vm_at
    lag = CONSISTENCY_LAG if draft.now < instance.created + ABSENCE_IS_TRUE_AFTER else 0.0
    return asked is not None and shown is not None and shown + lag >= asked


def _deletion(draft: Draft, instance: Instance, event: ev.VmDeleted) -> None:
    if event.final:
        draft.learn(instance.id, deleting=False, vm=ev.VmState.DELETED, vm_at=draft.now)
    else:
        # Accepted is not done: it is looked at until the provider says that it is gone.
        draft.learn(instance.id, deleting=False, deletion_begun=draft.now, check_due=draft.now + RETRY_FIRST, checks=0)


def _deletion_failed(draft: Draft, instance: Instance, event: ev.VmDeleteFailed) -> None:
    attempts = draft.facts(instance.id).delete_attempts + 1
    draft.learn(instance.id, deleting=False, delete_attempts=attempts, delete_due=draft.now + _backoff(attempts - 1))
    if attempts in (1, 10):
        draft.reason(
            ReasonCode.DELETE_FAILED, f"the provider did not delete it, it is tried again: {event.message}", instance.id
        )


def _registered(draft: Draft, instance: Instance, event: ev.Registered, position: int) -> None:
    if instance.public_key:
        # One nonce, one key: repeating it with the same key is answered, with another key never.
        if instance.public_key != event.public_key:
            draft.reason(
                ReasonCode.SECURITY, "its nonce was presented again with another key, and refused", instance.id
            )
            draft.refuse(position, Rejection.KEY_BOUND)
        elif instance.state in (State.RUNNING, State.DRAINING):
            draft.learn(instance.id, last_seen=draft.now, met=True)
        else:
            draft.refuse(position, Rejection.ENDING)
        return
    if instance.state not in (State.PENDING, State.STARTING):
        draft.refuse(position, Rejection.ENDING)
        return
    draft.change(
        instance,
        state=State.RUNNING,
        registered=draft.now,
        public_key=event.public_key,
        certificate_serial=event.certificate_serial,
        certificate_expires=event.certificate_expires,
        # What the provider knows wins over what the agent claims.
        ip4=instance.ip4 or event.ip4,
        ip6=instance.ip6 or event.ip6,
        hostname=instance.hostname or event.hostname,
    )
    draft.learn(instance.id, last_seen=draft.now, met=True, awaited=True, checks=0)
    draft.reason(ReasonCode.REGISTERED, "its agent registered", instance.id)


def _notice(draft: Draft, instance: Instance, event: ev.NoticeReceived) -> None:
    facts = draft.facts(instance.id)
    if facts.notice is not None and _WEIGHT[event.kind] <= _WEIGHT[facts.notice]:
        return  # a repeated notice is no news, and a hint does not soften what is certain
    draft.learn(instance.id, notice=event.kind, notice_at=draft.now, notice_deadline=event.deadline)
    if event.kind is not ev.NoticeKind.REBALANCE:
        draft.learn(instance.id, checks=0)


def _cloned(draft: Draft, instance: Instance) -> None:
    """Replaced where the configuration says so. One that is on demand has no place that another could take."""
    paused = draft.desired is None or draft.desired.paused
    if draft.policy.replace_clones and instance.state is State.RUNNING and not instance.on_demand and not paused:
        if not instance.replace_wanted:
            draft.reason(ReasonCode.SECURITY, "two agents use its identity: it is replaced", instance.id)
        draft.change(instance, replace_wanted=True)


def _wanted(draft: Draft, event: ev.InstanceRequested, position: int) -> None:
    known = draft.members.get(event.id)
    if known is not None:
        if not known.on_demand:
            draft.refuse(position, Rejection.EXISTS)
        elif is_ended(known):
            draft.refuse(position, Rejection.ENDING)  # an ID is never used again
        return  # asked twice: the same instance
    if draft.desired is None:
        draft.refuse(position, Rejection.UNKNOWN)
    elif draft.desired.paused:
        draft.refuse(position, Rejection.PAUSED)
    else:
        creating.create_on_demand(draft, event)


def _doubled(draft: Draft, instance: Instance, event: ev.DuplicateVmFound) -> None:
    if instance.duplicate_vm is None and instance.provider_id not in (None, event.provider_id):
        draft.change(instance, duplicate_vm=event.provider_id)
        draft.reason(
            ReasonCode.ORPHAN, f"{event.provider_id} carries its ID too, {instance.provider_id} is kept", instance.id
        )


def _speaks(draft: Draft, instance: Instance, event: ev.AgentSeenOnVm) -> None:
    """The unregistered one goes: from the next listing on, the VM that the record knew is the double."""
    if instance.duplicate_vm == event.provider_id or instance.state not in (State.RUNNING, State.DRAINING):
        return
    draft.change(instance, provider_id=event.provider_id, ip4=event.ip4, ip6=event.ip6, hostname=event.hostname)
    draft.reason(
        ReasonCode.ORPHAN, f"its agent speaks from {event.provider_id}, not from {instance.provider_id}", instance.id
    )


def _backoff(attempts: int) -> float:
    return float(min(RETRY_MOST, RETRY_FIRST * 2 ** min(attempts, 10)))
