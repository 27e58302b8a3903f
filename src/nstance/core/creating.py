"""Create instances: write the intent, fall back to another offer, handle failures and back off.

A create call with an unknown outcome is repeated with the same ID and never replaced by a second intent; until it is
settled it counts as capacity.
"""

from dataclasses import replace

from nstance.core import leaving, offers, rollout
from nstance.core.draft import Draft
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Trend
from nstance.model.group import CAPACITY_RETRY_SECONDS, Group
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import CallObservation
from nstance.model.offer import CapacityScope, Offer
from nstance.tasks.backoff import Backoff

BACKOFF = Backoff(30.0, 600.0)  # of a group whose new instances fail
RETRY = Backoff(1.0, 30.0)  # of a call to the provider
# Why an instance leaves that runs until we remove it: its replacement can wait for the current revision.
CAN_WAIT = frozenset({Cause.DRIFT, Cause.PREFERENCE, Cause.ELIGIBLE_EXPIRY, Cause.FORCED_EXPIRY, Cause.REQUESTED})
_RETRYING = "failed to create VM"  # begins the error of a call that is repeated


def can_create(draft: Draft) -> bool:
    """Whether the group may create an instance now; if it backs off, a wake-up is scheduled."""
    group = rollout.group_to_create(draft)
    return group is not None and _may_try(draft, group)


def _may_try(draft: Draft, group: Group) -> bool:
    """A revision that failed is tried again after a while, another one at once. One of its offers must have capacity."""
    if group.infra_hash == draft.trend.infra_hash and not draft.is_due(draft.trend.retry_at):
        return False
    if _choose(draft, group) is not None:
        return True
    draft.wake(_retry_at(draft, group))
    return False


def create_instance(
    draft: Draft,
    cause: Cause | None,
    message: str,
    *,
    replaces: Instance | None = None,
    predecessor: Instance | None = None,
) -> Instance | None:
    """Write the intent of a managed instance. `replaces` still has its place, `predecessor` has left it."""
    is_loss = (replaces or predecessor) is not None and cause not in CAN_WAIT
    desired = rollout.group_to_create(draft, replaces, is_loss=is_loss)
    if desired is None or not _may_try(draft, desired):
        _record_no_capacity(draft, desired)
        return None
    offer = _choose(draft, desired)
    if offer is None:
        return None
    message += rollout.explain_fallback(draft, desired)
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
        market=offer.market,
        instance_type=offer.instance_type,
        subnet=offer.subnet,
        infra_hash=desired.infra_hash,
        drain_timeout=draft.drain_timeout,
    )
    _put_intent(draft, instance)
    code = ReasonCode.SCALE_UP if replaces is None and predecessor is None else ReasonCode.REPLACE
    why = offers.explain_choice(desired, draft.exhausted, offer, draft.now)
    draft.add_reason(code, f"{message}; {why}" if why else message, instance.id)
    return instance


def create_on_demand(draft: Draft, desired: Group, event: ev.InstanceRequested) -> bool:
    """Returns whether there is an offer to create it in."""
    pairs = _requested_pairs(desired, event.instance_type) if event.instance_type else None
    offer = _choose(draft, desired, pairs)
    if offer is None:
        return False
    instance = Instance(
        id=event.id,
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.PENDING,
        created=draft.now,
        on_demand=True,
        template=desired.template,
        market=offer.market,
        instance_type=offer.instance_type,
        subnet=offer.subnet,
        own_type=bool(event.instance_type),
        vars=dict(event.vars),
        requester=event.requester,
        infra_hash=desired.infra_hash,
        drain_timeout=draft.drain_timeout,
    )
    _put_intent(draft, instance)
    by = f" by {event.by}" if event.by else ""
    draft.add_reason(ReasonCode.REQUESTED, f"on-demand instance requested{by}", event.id)
    return True


def _put_intent(draft: Draft, instance: Instance) -> None:
    draft.put(instance)
    draft.observe(instance.id, calls=replace(draft.observation(instance.id).calls, own_intent=True))


def on_create_failed(draft: Draft, instance: Instance, event: ev.VmCreateFailed) -> None:
    match event.failure:
        case ev.Failure.NO_CAPACITY | ev.Failure.SKIPPED:
            _fall_back(draft, instance, event.message)
        case ev.Failure.REFUSED:
            fail_instance(draft, instance, f"provider rejected the request: {event.message}")
            rollout.count_failure(draft, instance, event.message)
        case ev.Failure.STALE:
            message = "configuration changed before the provider was called"
            leaving.remove_instance(draft, instance, Cause.SUPERSEDED, message)
        case ev.Failure.UNAVAILABLE | ev.Failure.UNKNOWN | ev.Failure.UNSENT:
            calls = draft.observation(instance.id).calls
            attempts = calls.create_attempts + 1
            due = draft.now + RETRY.delay(attempts)
            draft.observe(instance.id, calls=replace(calls, create_attempts=attempts, create_due=due))
            message = f"{_RETRYING} ({event.failure.value}), retrying: {event.message}"
            if attempts in (1, 5):
                draft.add_reason(ReasonCode.CREATE_FAILED, message, instance.id)
            if attempts > 1 and event.failure is not ev.Failure.UNSENT and not instance.on_demand:
                draft.trend = replace(draft.trend, last_error=message)  # a status that says why nothing comes
            if event.scope is not None:
                _on_server_error(draft, instance, event.scope, event.message)


def was_never_requested(instance: Instance, calls: CallObservation) -> bool:
    """Whether it is certain that the provider was never asked for an instance that is being deleted."""
    return instance.state is State.DELETING and calls.own_intent and not calls.create_attempts


def fail_instance(draft: Draft, instance: Instance, message: str) -> None:
    """There is no VM and there will be none: the record ends at once and the group may try again."""
    _end_instance(draft, instance, message)
    _back_off(draft, instance, message)


def _end_instance(draft: Draft, instance: Instance, message: str) -> None:
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
    wait = 0.0 if failures == 1 else BACKOFF.delay(failures - 1)
    draft.trend = replace(
        trend,
        failures=failures,
        counted_at=draft.now,
        retry_at=draft.now + wait,
        last_error=message,
        infra_hash=instance.infra_hash,
    )
    if wait:
        text = f"{failures} attempts in a row failed, next attempt in {wait:.0f} s: {message}"
        draft.add_reason(ReasonCode.BACK_OFF, text)


def reset_backoff(draft: Draft, instance: Instance) -> None:
    if (draft.trend.failures or draft.trend.last_error) and not instance.on_demand:
        trend = draft.trend
        draft.trend = Trend(
            no_capacity_until=trend.no_capacity_until, unready=trend.unready, blocked_since=trend.blocked_since
        )


# ---- offers


def mark_refused(draft: Draft, instance: Instance, event: ev.VmCreateFailed) -> None:
    """Remember what has no capacity, also if this instance is not wanted any more."""
    if event.failure is not ev.Failure.NO_CAPACITY:
        return
    scope = event.scope or CapacityScope.OFFER
    key = offers.capacity_key(offers.offer_of(instance), scope, instance.infra_hash)
    retry = draft.desired.capacity_retry if draft.desired is not None else CAPACITY_RETRY_SECONDS
    draft.exhausted = offers.mark_exhausted(draft.exhausted, key, event.message, now=draft.now, retry=retry)


def _fall_back(draft: Draft, instance: Instance, message: str) -> None:
    """Try the next offer in the same decision."""
    here = offers.offer_of(instance)
    calls = draft.observation(instance.id).calls
    if calls.create_attempts or not calls.own_intent:
        # An earlier call with this ID may still create a VM in this offer: another offer needs a new ID.
        why = f"no capacity in {here}, where an earlier call may still create it: {message}"
        draft.add_reason(ReasonCode.CREATE_FAILED, why, instance.id)
        leaving.delete_instance(draft, instance, Cause.SUPERSEDED, why)
        return
    group = rollout.group_of(draft, instance)
    if group is None and draft.desired is not None:
        why = f"no capacity in {here}, and the configuration has changed: {message}"
        leaving.remove_instance(draft, instance, Cause.SUPERSEDED, why)
        return
    following = _choose_next(draft, group, instance) if group is not None else None
    if following is None:
        is_voluntary = instance.replaces_for is Cause.PREFERENCE
        why = f"no {'better ' if is_voluntary else ''}offer has capacity: {message}"
        if not is_voluntary and not instance.on_demand:
            draft.trend = replace(draft.trend, last_error=why)
        _end_instance(draft, instance, why)
        return
    # Nothing was created, so the same ID may be used in another offer; the request is rendered again.
    moved = replace(
        instance,
        market=following.market,
        instance_type=following.instance_type,
        subnet=following.subnet,
        request_hash="",
    )
    draft.put(moved)
    draft.observe(instance.id, calls=replace(calls, create_due=draft.now, server_errors=0))
    text = f"no capacity in {here}, trying {following}: {message}"
    draft.add_reason(ReasonCode.CREATE_FAILED, text, instance.id)


def _on_server_error(draft: Draft, instance: Instance, scope: CapacityScope, message: str) -> None:
    """An offer on which the provider keeps failing is left if there is another one. A VM may exist in it by now, so a new
    instance takes the place. An on-demand instance stays: its ID was given by the caller.

    When all offers fail, the provider is away, and every attempt would leave a record behind. So the group has at most as
    many attempts of unknown outcome as it has instances: while the provider is away their outcome stays unknown."""
    desired, calls = rollout.group_of(draft, instance), draft.observation(instance.id).calls
    errors = calls.server_errors + 1
    draft.observe(instance.id, calls=replace(calls, server_errors=errors))
    if errors < offers.MAX_SERVER_ERRORS or desired is None or instance.on_demand:
        return
    if sum(m.state is State.DELETING and m.provider_id is None for m in draft.members.values()) >= desired.size:
        return
    here = offers.offer_of(instance)
    key = offers.capacity_key(here, scope, instance.infra_hash)
    marked = offers.mark_failing(draft.exhausted, key, message, now=draft.now, retry=desired.capacity_retry)
    pairs = _pairs_of(draft, desired, instance)
    following = offers.choose_offer(desired, marked, now=draft.now, used=draft.subnet_use(), pairs=pairs)
    if following is None or offers.find_exhaustion(marked, following, desired.infra_hash, draft.now) is not None:
        return
    draft.exhausted = marked
    why = f"{errors} server errors in {here}, trying {following}: {message}"
    draft.add_reason(ReasonCode.CREATE_FAILED, why, instance.id)
    leaving.delete_instance(draft, instance, Cause.SUPERSEDED, why)


def on_created(draft: Draft, instance: Instance) -> None:
    """The provider answered a create call. Only a VM that no earlier call can have created shows that there is capacity."""
    if draft.trend.last_error.startswith(_RETRYING):
        draft.trend = replace(draft.trend, last_error="")
    calls = draft.observation(instance.id).calls
    if instance.state is State.PENDING and calls.own_intent and not calls.create_attempts:
        offer = offers.offer_of(instance)
        asked, revision = calls.create_asked, instance.infra_hash
        draft.exhausted = offers.mark_available(draft.exhausted, offer, revision, asked=asked)


def on_vm_gone(draft: Draft, instance: Instance) -> None:
    if instance.provider_id is not None:
        draft.exhausted = offers.mark_freed(draft.exhausted, offers.offer_of(instance), instance.infra_hash)


def _choose(draft: Draft, desired: Group, pairs: list[offers.Pair] | None = None) -> Offer | None:
    return offers.choose_offer(
        desired, draft.exhausted, now=draft.now, used=draft.subnet_use(), crowded=draft.view.crowded, pairs=pairs
    )


def _choose_next(draft: Draft, desired: Group, instance: Instance) -> Offer | None:
    """For an instance that leaves its offer. It does not count as one that uses its subnet."""
    used = draft.subnet_use().copy()
    if instance.counts:
        used[instance.subnet] -= 1
    pairs, crowded = _pairs_of(draft, desired, instance), draft.view.crowded
    return offers.choose_offer(desired, draft.exhausted, now=draft.now, used=used, crowded=crowded, pairs=pairs)


def _retry_at(draft: Draft, desired: Group) -> float:
    return offers.retry_at(desired, draft.exhausted, draft.now)


def _requested_pairs(desired: Group, instance_type: str) -> list[offers.Pair]:
    return [(market, instance_type) for market in desired.markets or ("",)]


def _pairs_of(draft: Draft, desired: Group, instance: Instance) -> list[offers.Pair] | None:
    """What this instance may be created as; None: whatever its group may have."""
    if instance.own_type:
        return _requested_pairs(desired, instance.instance_type)
    old = draft.replaced_by(instance) if instance.replaces_for is Cause.PREFERENCE else None
    return offers.better_pairs(desired, old) if old is not None else None


def _record_no_capacity(draft: Draft, group: Group | None) -> None:
    """Once for each time that the group waits because every offer is exhausted."""
    if group is None or draft.now < draft.trend.no_capacity_until:
        return
    why = offers.explain_blocked(group, draft.exhausted, draft.now)
    if why:
        until = _retry_at(draft, group)
        draft.trend = replace(draft.trend, no_capacity_until=until, last_error=why)
        draft.add_reason(ReasonCode.BLOCKED, f"next attempt in {until - draft.now:.0f} s: {why}")


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
            draft.wake(draft.now + RETRY.most)  # probably our fault: nothing is deleted for silence
        else:
            what = "provider did not create the VM" if instance.state is State.PENDING else "agent did not register"
            message = f"{what} within {draft.now - instance.created:.0f} s"
            leaving.remove_instance(draft, instance, Cause.UNREGISTERED, message)
            if not draft.observation(instance.id).calls.creating:  # a call that waits its turn is not the group's fault
                count_startup_failure(draft, instance, message)
