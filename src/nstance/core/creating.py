"""Making instances: the intent, where to put it, what a failure means, and how long to wait after several.

The trap: a create whose outcome is unknown is repeated with the same ID and never replaced by a second one; until it is
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

SUBNET_MEMORY = 300.0  # how long a subnet without capacity is not tried first
BACKOFF_FIRST = 30.0
BACKOFF_MOST = 600.0
RETRY_MOST = 30.0


def may_create(draft: Draft) -> bool:
    """Whether the group may try now; if not, when it will look again is noted."""
    if draft.view.blocked:
        return False
    if (
        draft.now < draft.trend.retry_at
        and draft.desired is not None
        and draft.desired.infra_hash == draft.trend.infra_hash
    ):
        draft.wake(draft.trend.retry_at)
        return False
    return True


def create(
    draft: Draft,
    cause: Cause | None,
    message: str,
    *,
    replaces: Instance | None = None,
    predecessor: Instance | None = None,
) -> Instance | None:
    """Write down the intent of one managed instance. The provider is asked after the commit. `replaces` still has its
    place, `predecessor` has left it."""
    desired = draft.desired
    if desired is None or not may_create(draft):
        return None
    instance = Instance(
        id=draft.fresh_id(),
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.PENDING,
        created=draft.now,
        replaces=replaces.id if replaces is not None else None,
        replaces_for=cause if replaces is not None else None,
        predecessor=predecessor.id if predecessor is not None else None,
        template=desired.template,
        instance_type=desired.instance_type,
        subnet=_subnet(draft, desired),
        infra_hash=desired.infra_hash,
        drain_timeout=draft.drain_timeout,
    )
    draft.put(instance)
    draft.learn(instance.id, ours=True)
    draft.reason(
        ReasonCode.SCALE_UP if replaces is None and predecessor is None else ReasonCode.REPLACE, message, instance.id
    )
    return instance


def create_on_demand(draft: Draft, event: ev.InstanceRequested) -> None:
    desired = draft.desired
    assert desired is not None
    draft.put(
        Instance(
            id=event.id,
            tenant=desired.key.tenant,
            group=desired.key.name,
            state=State.PENDING,
            created=draft.now,
            on_demand=True,
            template=desired.template,
            instance_type=event.instance_type or desired.instance_type,
            subnet=_subnet(draft, desired),
            vars=dict(event.vars),
            infra_hash=desired.infra_hash,
            drain_timeout=draft.drain_timeout,
        )
    )
    draft.learn(event.id, ours=True)
    by = f" by {event.by}" if event.by else ""
    draft.reason(ReasonCode.REQUESTED, f"an on-demand instance was requested{by}", event.id)


def failed(draft: Draft, instance: Instance, event: ev.VmCreateFailed) -> None:
    facts = draft.facts(instance.id)
    match event.failure:
        case ev.Failure.NO_CAPACITY:
            _no_capacity(draft, instance, event.message)
        case ev.Failure.REFUSED:
            give_up(draft, instance, f"the provider refused: {event.message}")
            rollout.count_failure(draft, instance, event.message)
        case ev.Failure.STALE:
            message = "its configuration changed before the provider was asked"
            draft.reason(ReasonCode.SUPERSEDED, message, instance.id)
            leaving.delete(draft, instance, Cause.SUPERSEDED, message)
        case ev.Failure.UNAVAILABLE | ev.Failure.UNKNOWN | ev.Failure.UNSENT:
            attempts = facts.create_attempts + 1
            wait = min(RETRY_MOST, 2.0 ** min(attempts - 1, 10))
            draft.learn(instance.id, create_attempts=attempts, create_due=draft.now + wait)
            if attempts in (1, 5):
                draft.reason(
                    ReasonCode.CREATE_FAILED,
                    f"the create call did not succeed ({event.failure.value}), it is repeated: {event.message}",
                    instance.id,
                )
        case _:
            assert_never(event.failure)


def never_asked(draft: Draft, instance: Instance) -> bool:
    """Of one that is to go, and whose create was not sent: whether that is certain of all earlier ones too."""
    facts = draft.facts(instance.id)
    return instance.state is State.DELETING and facts.ours and not facts.create_attempts


def give_up(draft: Draft, instance: Instance, message: str) -> None:
    """There is no VM and there will be none: the record ends at once and the group may try again."""
    vacant = leaving.leaves_vacancy(draft, instance, Cause.REFUSED)
    draft.change(instance, state=State.FAILED, cause=Cause.REFUSED, message=message, ended=draft.now, vacant=vacant)
    draft.reason(ReasonCode.REFUSED, message, instance.id)
    count_failure(draft, instance, message)


def did_not_come_up(draft: Draft, instance: Instance, message: str) -> None:
    """It was made, and never became ready: that counts against its group and against its revision."""
    rollout.count_failure(draft, instance, message)
    count_failure(draft, instance, message)


def count_failure(draft: Draft, instance: Instance, message: str) -> None:
    """Instances that were made before the last failure was counted belong to the same try. A request for an on-demand
    instance may be odd, and says nothing about the group."""
    if instance.on_demand:
        return
    trend = draft.trend
    if instance.created < trend.counted_at:
        draft.trend = replace(trend, last_error=message)
        return
    failures = trend.failures + 1
    # The first failure may be chance: try again at once. From the second on the group backs off.
    wait = 0.0 if failures == 1 else min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(failures - 2, 10))
    draft.trend = replace(
        trend,
        failures=failures,
        counted_at=draft.now,
        retry_at=draft.now + wait,
        last_error=message,
        infra_hash=draft.desired.infra_hash if draft.desired is not None else "",
    )
    if wait:
        draft.reason(
            ReasonCode.BACK_OFF, f"{failures} tries in a row failed, the next one is in {wait:.0f} s: {message}"
        )


def succeeded(draft: Draft, instance: Instance) -> None:
    if draft.trend.failures and not instance.on_demand:
        draft.trend = Trend(refused_subnets=draft.trend.refused_subnets, unready=draft.trend.unready)


def _no_capacity(draft: Draft, instance: Instance, message: str) -> None:
    refused = {s: until for s, until in draft.trend.refused_subnets.items() if until > draft.now}
    refused[instance.subnet] = draft.now + SUBNET_MEMORY
    draft.trend = replace(draft.trend, refused_subnets=refused)
    facts = draft.facts(instance.id)
    if facts.create_attempts or not facts.ours:
        # An earlier call may still be on its way, and this ID was asked for in this subnet: elsewhere it needs a new one.
        why = f"no capacity in {instance.subnet}, where it may yet be made by an earlier call: {message}"
        draft.reason(ReasonCode.CREATE_FAILED, why, instance.id)
        leaving.delete(draft, instance, Cause.SUPERSEDED, why)
        return
    subnets = draft.desired.subnets if draft.desired is not None else ()
    following = next((s for s in subnets if s not in refused), None)
    if following is None:
        give_up(draft, instance, f"no subnet has capacity: {message}")
        return
    # Nothing was made, so the same ID may be asked for elsewhere; the request is rendered anew.
    draft.change(instance, subnet=following, request_hash="")
    draft.learn(instance.id, create_due=draft.now)
    draft.reason(
        ReasonCode.CREATE_FAILED, f"no capacity in {instance.subnet}, next is {following}: {message}", instance.id
    )


def _subnet(draft: Draft, desired: Group) -> str:
    """Subnets are used in turn, so that a pool is filled evenly; one that is nearly full or was refused lately only if
    there is no better one."""
    if not desired.subnets:
        return ""
    refused = draft.trend.refused_subnets
    usable = [s for s in desired.subnets if refused.get(s, 0.0) <= draft.now] or list(desired.subnets)
    usable = [s for s in usable if s not in draft.view.crowded] or usable
    used = draft.subnet_use()
    return min(usable, key=lambda s: used[s])


def registration_due(draft: Draft, instance: Instance) -> float:
    """What has not registered then never will."""
    return instance.created + draft.registration_timeout


def abandon_unregistered(draft: Draft) -> None:
    """A VM that never registers is deleted; that counts as a failure of the group."""
    if not draft.may_delete:
        return
    # After a change of leaders it may already have tried, and gets the time that all agents get.
    grace_ends = draft.view.listening_since + max(draft.policy.suspect_after, draft.view.reconnect_grace)
    needs_attention = draft.needs_attention()
    draft.wake(max(draft.waiting_until, grace_ends))
    for instance in needs_attention:
        if instance.state is not State.PENDING and instance.state is not State.STARTING:
            continue
        due = max(registration_due(draft, instance), grace_ends)
        if draft.now < due:
            draft.wake(due)
        elif draft.view.mass_silence:
            draft.wake(draft.now + RETRY_MOST)  # the fault is probably here: nothing is deleted for silence
        else:
            what = "the provider did not make it" if instance.state is State.PENDING else "its agent did not register"
            message = f"{what} within {draft.now - instance.created:.0f} s"
            draft.reason(ReasonCode.UNREGISTERED, message, instance.id)
            leaving.delete(draft, instance, Cause.UNREGISTERED, message)
            if not draft.facts(instance.id).creating:  # a call that waits in a row says nothing about the group
                did_not_come_up(draft, instance, message)
