"""Create instances: write the intent, choose a subnet, handle failures and back off.

A create call with an unknown outcome is repeated with the same ID and never replaced by a second intent; until it is
settled it counts as capacity.
"""

from dataclasses import replace
from typing import assert_never

from nstance.core import leaving, rollout
from nstance.core.draft import Draft
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Trend
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import CallObservation

AVOID_SUBNET_SECONDS = 300.0  # after the provider had no capacity in it
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 30.0, 600.0
RETRY_MAX_SECONDS = 30.0


def can_create(draft: Draft) -> bool:
    """Whether the group may create an instance now; if it backs off, a wake-up is scheduled."""
    if draft.view.blocked:
        return False
    desired = draft.desired
    is_new = desired is None or desired.infra_hash != draft.trend.infra_hash
    return is_new or draft.is_due(draft.trend.retry_at)


def create_instance(
    draft: Draft,
    cause: Cause | None,
    message: str,
    *,
    replaces: Instance | None = None,
    predecessor: Instance | None = None,
) -> Instance | None:
    """Write the intent of a managed instance. `replaces` still has its place, `predecessor` has left it."""
    desired = draft.desired
    if desired is None or not can_create(draft):
        return None
    instance = Instance(
        id=draft.new_id(),
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.PENDING,
        created=draft.now,
        replaces=replaces.id if replaces is not None else None,
        replaces_for=cause if replaces is not None else None,
        predecessor=predecessor.id if predecessor is not None else None,
        template=desired.template,
        instance_type=desired.instance_type,
        subnet=_choose_subnet(draft, desired),
        infra_hash=desired.infra_hash,
        drain_timeout=draft.drain_timeout,
    )
    _put_intent(draft, instance)
    code = ReasonCode.SCALE_UP if replaces is None and predecessor is None else ReasonCode.REPLACE
    draft.add_reason(code, message, instance.id)
    return instance


def create_on_demand(draft: Draft, desired: Group, event: ev.InstanceRequested) -> None:
    instance = Instance(
        id=event.id,
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.PENDING,
        created=draft.now,
        on_demand=True,
        template=desired.template,
        instance_type=event.instance_type or desired.instance_type,
        subnet=_choose_subnet(draft, desired),
        vars=dict(event.vars),
        infra_hash=desired.infra_hash,
        drain_timeout=draft.drain_timeout,
    )
    _put_intent(draft, instance)
    by = f" by {event.by}" if event.by else ""
    draft.add_reason(ReasonCode.REQUESTED, f"on-demand instance requested{by}", event.id)


def _put_intent(draft: Draft, instance: Instance) -> None:
    draft.put(instance)
    draft.observe(instance.id, calls=replace(draft.observation(instance.id).calls, own_intent=True))


def on_create_failed(draft: Draft, instance: Instance, event: ev.VmCreateFailed) -> None:
    match event.failure:
        case ev.Failure.NO_CAPACITY:
            _on_no_capacity(draft, instance, event.message)
        case ev.Failure.REFUSED:
            fail_instance(draft, instance, f"provider rejected the request: {event.message}")
            rollout.count_failure(draft, instance, event.message)
        case ev.Failure.STALE:
            message = "configuration changed before the provider was called"
            leaving.remove_instance(draft, instance, Cause.SUPERSEDED, message)
        case ev.Failure.UNAVAILABLE | ev.Failure.UNKNOWN | ev.Failure.UNSENT:
            calls = draft.observation(instance.id).calls
            attempts = calls.create_attempts + 1
            wait = min(RETRY_MAX_SECONDS, 2.0 ** min(attempts - 1, 10))
            draft.observe(instance.id, calls=replace(calls, create_attempts=attempts, create_due=draft.now + wait))
            if attempts in (1, 5):
                message = f"failed to create VM ({event.failure.value}), retrying: {event.message}"
                draft.add_reason(ReasonCode.CREATE_FAILED, message, instance.id)
        case _:
            assert_never(event.failure)


def was_never_requested(instance: Instance, calls: CallObservation) -> bool:
    """Whether it is certain that the provider was never asked for an instance that is being deleted."""
    return instance.state is State.DELETING and calls.own_intent and not calls.create_attempts


def fail_instance(draft: Draft, instance: Instance, message: str) -> None:
    """There is no VM and there will be none: the record ends at once and the group may try again."""
    draft.put(
        replace(
            instance,
            state=State.FAILED,
            cause=Cause.REFUSED,
            message=message,
            ended=draft.now,
            vacant=leaving.leaves_vacancy(draft, instance, Cause.REFUSED),
        )
    )
    draft.add_reason(ReasonCode.REFUSED, message, instance.id)
    _back_off(draft, instance, message)


def count_startup_failure(draft: Draft, instance: Instance, message: str) -> None:
    """It was created and never became ready: that counts against its group and against its revision."""
    rollout.count_failure(draft, instance, message)
    _back_off(draft, instance, message)


def _back_off(draft: Draft, instance: Instance, message: str) -> None:
    """Instances that were created before the last failure was counted belong to the same attempt. Failures of on-demand
    instances are not counted: the request may be unusual and says nothing about the group."""
    if instance.on_demand:
        return
    trend = draft.trend
    if instance.created < trend.counted_at:
        draft.trend = replace(trend, last_error=message)
        return
    failures = trend.failures + 1
    # The first failure may be chance: the group tries again at once, and backs off from the second one on.
    wait = 0.0 if failures == 1 else min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2.0 ** min(failures - 2, 10))
    draft.trend = replace(
        trend,
        failures=failures,
        counted_at=draft.now,
        retry_at=draft.now + wait,
        last_error=message,
        infra_hash=draft.desired.infra_hash if draft.desired is not None else "",
    )
    if wait:
        text = f"{failures} attempts in a row failed, next attempt in {wait:.0f} s: {message}"
        draft.add_reason(ReasonCode.BACK_OFF, text)


def reset_backoff(draft: Draft, instance: Instance) -> None:
    if draft.trend.failures and not instance.on_demand:
        draft.trend = Trend(refused_subnets=draft.trend.refused_subnets, unready=draft.trend.unready)


def _on_no_capacity(draft: Draft, instance: Instance, message: str) -> None:
    refused = {s: until for s, until in draft.trend.refused_subnets.items() if until > draft.now}
    refused[instance.subnet] = draft.now + AVOID_SUBNET_SECONDS
    draft.trend = replace(draft.trend, refused_subnets=refused)
    calls = draft.observation(instance.id).calls
    if calls.create_attempts or not calls.own_intent:
        # An earlier call with this ID may still create a VM in this subnet: another subnet needs a new ID.
        why = f"no capacity in {instance.subnet}, where an earlier call may still create it: {message}"
        draft.add_reason(ReasonCode.CREATE_FAILED, why, instance.id)
        leaving.delete_instance(draft, instance, Cause.SUPERSEDED, why)
        return
    subnets = draft.desired.subnets if draft.desired is not None else ()
    following = next((s for s in subnets if s not in refused), None)
    if following is None:
        fail_instance(draft, instance, f"no subnet has capacity: {message}")
        return
    # Nothing was created, so the same ID may be used in another subnet; the request is rendered again.
    draft.put(replace(instance, subnet=following, request_hash=""))
    draft.observe(instance.id, calls=replace(calls, create_due=draft.now))
    text = f"no capacity in {instance.subnet}, trying {following}: {message}"
    draft.add_reason(ReasonCode.CREATE_FAILED, text, instance.id)


def _choose_subnet(draft: Draft, desired: Group) -> str:
    """The least used subnet of the pool. Subnets that are nearly full or had no capacity lately come last."""
    if not desired.subnets:
        return ""
    refused = draft.trend.refused_subnets
    usable = [s for s in desired.subnets if refused.get(s, 0.0) <= draft.now] or list(desired.subnets)
    usable = [s for s in usable if s not in draft.view.crowded] or usable
    used = draft.subnet_use()
    return min(usable, key=lambda s: used[s])


def registration_deadline(draft: Draft, instance: Instance) -> float:
    """The nonce expires then, so an instance that has not registered never will."""
    return instance.created + draft.limits.registration_timeout


def abandon_unregistered(draft: Draft) -> None:
    """Delete VMs that did not register in time; that counts as a failure of the group."""
    if not draft.can_delete:
        return
    # After a change of leaders an agent may already have tried, and gets the time that all agents get.
    grace_ends = draft.limits.reconnect_until
    needs_attention = draft.needs_attention()
    draft.wake(max(draft.triage.starting_until, grace_ends))
    for instance in needs_attention:
        if instance.state is not State.PENDING and instance.state is not State.STARTING:
            continue
        due = max(registration_deadline(draft, instance), grace_ends)
        if not draft.is_due(due):
            continue
        if draft.view.mass_silence:
            draft.wake(draft.now + RETRY_MAX_SECONDS)  # probably our fault: nothing is deleted for silence
        else:
            what = "provider did not create the VM" if instance.state is State.PENDING else "agent did not register"
            message = f"{what} within {draft.now - instance.created:.0f} s"
            leaving.remove_instance(draft, instance, Cause.UNREGISTERED, message)
            if not draft.observation(instance.id).calls.creating:  # a call that waits its turn is not the group's fault
                count_startup_failure(draft, instance, message)
