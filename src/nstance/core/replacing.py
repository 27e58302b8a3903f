"""An instance and the newcomer that is to take its place: why it is made, when the old one goes, when it is needless.

Both are capacity for a while and share one place. The reason is looked for anew each time instead of being remembered:
a configuration that was taken back, or an agent that returned, makes the newcomer needless and the old one is kept.
"""

from operator import attrgetter

from nstance.core import creating, health, leaving, readiness, rollout
from nstance.core.draft import Draft, drifted
from nstance.model.decision import ReasonCode
from nstance.model.events import NoticeKind
from nstance.model.instance import Cause, Instance, State

VOLUNTARY = frozenset({Cause.DRIFT, Cause.ELIGIBLE_EXPIRY, Cause.SPOT})  # SPOT: by a hint, see `voluntary`
_CODES = {
    Cause.UNHEALTHY: ReasonCode.UNHEALTHY,
    Cause.DRIFT: ReasonCode.DRIFT,
    Cause.ELIGIBLE_EXPIRY: ReasonCode.ELIGIBLE_EXPIRY,
    Cause.FORCED_EXPIRY: ReasonCode.FORCED_EXPIRY,
    Cause.REQUESTED: ReasonCode.REQUESTED,
    Cause.SPOT: ReasonCode.SPOT,  # a hint that the provider may want it back
}


def involuntary(draft: Draft, instance: Instance) -> Cause | None:
    """Why a running instance needs a replacement now, whatever the limits of voluntary work say."""
    if instance.state is not State.RUNNING or instance.on_demand:
        return None
    if _past(draft, instance, draft.policy.forced_age):
        return Cause.FORCED_EXPIRY
    if instance.suspect:
        return None if draft.view.mass_silence else Cause.UNHEALTHY
    if (cause := health.going(draft, instance)) is not None:
        return cause
    if instance.id in draft.unhealthy:
        return Cause.UNHEALTHY
    return Cause.REQUESTED if instance.replace_wanted else None


def voluntary(draft: Draft, instance: Instance) -> Cause | None:
    """Why it should be replaced when the limits allow."""
    if drifted(instance, draft.desired):
        return Cause.DRIFT
    if draft.facts(instance.id).notice is NoticeKind.REBALANCE:
        return Cause.SPOT
    return Cause.ELIGIBLE_EXPIRY if _past(draft, instance, draft.policy.eligible_age) else None


def _past(draft: Draft, instance: Instance, age: float | None) -> bool:
    if age is None:
        return False
    if draft.now >= instance.created + age:
        return True
    draft.wake(instance.created + age)
    return False


def is_fit(draft: Draft, instance: Instance) -> bool:
    """Current, not too old, not unhealthy, and not about to end: worth keeping if its agent speaks."""
    if health.going(draft, instance) is not None or readiness.unhealthy(draft, instance):
        return False
    if instance.on_demand:
        return not _past(draft, instance, draft.policy.ondemand_age)
    return (
        voluntary(draft, instance) is None
        and not instance.replace_wanted
        and not _past(draft, instance, draft.policy.forced_age)
    )


def drop_needless_replacements(draft: Draft) -> None:
    """A replacement whose predecessor recovered is deleted; so is one that the configuration has overtaken."""
    if not draft.may_delete:
        return
    linked = sorted((m for group in draft.replacements().values() for m in group), key=attrgetter("id"))
    replacements = {m.id for m in linked}
    needless: list[tuple[Instance, str]] = []
    for member in draft.capacity() if draft.trend.failures else linked:
        if (
            member.state is not State.RUNNING
            and drifted(member, draft.desired)
            and (member.id in replacements or draft.trend.failures)
        ):
            # Others come up first and are rotated then: the group may be waiting for them.
            needless.append((member, "the configuration changed before it registered"))
        elif (
            member.id in replacements
            and member.ready_at is None
            and member.replaces_for in VOLUNTARY
            and drifted(member, draft.desired)
        ):
            needless.append((member, "the configuration changed before it was ready"))
        elif member.id in replacements and (kept := _kept_instead(draft, member)) is not None:
            needless.append((member, f"{kept.id}, which it was to replace, is to stay"))
    # Judged before the first one goes: in a chain of newcomers each hangs on the one before.
    for member, message in needless:
        draft.reason(ReasonCode.SUPERSEDED, message, member.id)
        leaving.leave(draft, member, Cause.SUPERSEDED, message)


def _kept_instead(draft: Draft, replacement: Instance) -> Instance | None:
    """The predecessor, or the predecessor's predecessor, that nothing speaks against any more."""
    seen = {replacement.id}
    while replacement.replaces is not None and replacement.replaces not in seen:
        old = draft.members.get(replacement.replaces)
        if old is None or not old.counts:
            return None
        if (
            old.state is State.RUNNING
            and not old.suspect
            and replacement.replaces_for is not Cause.SPOT  # the notice may have been lost with the last leader
            and is_fit(draft, old)
        ):
            return old
        seen.add(old.id)
        replacement = old
    return None


def replace_the_unfit(draft: Draft) -> None:
    """Involuntary replacements: all at once, each linked to the instance whose place it takes."""
    if draft.desired is None:
        return
    unfit = [(cause, m) for m in draft.needs_attention() if (cause := involuntary(draft, m)) is not None]
    for cause, instance in sorted(unfit, key=lambda u: u[0] is not Cause.FORCED_EXPIRY):
        if instance.id not in draft.replacements():
            creating.create(draft, cause, f"replaces {instance.id} ({cause.value})", replaces=instance)


def finish(draft: Draft) -> None:
    """The replacement is ready: the old one may go, if enough remain that are ready, for something else may be missing
    meanwhile. One that is not ready itself is no loss. One past its forced age goes as soon as the new VM was made."""
    desired = draft.desired
    if desired is None or not draft.view.listed or not draft.replacements():
        return
    ready = draft.ready()
    for id, replacements in list(draft.replacements().items()):
        old = draft.members[id]
        if old.suspect or health.going(draft, old) is not None:
            continue  # `health` decides when these go
        cause = involuntary(draft, old) or voluntary(draft, old) or replacements[0].replaces_for
        if cause is None or cause not in _CODES or not _may_go(draft, cause):
            continue
        forced, counted = cause is Cause.FORCED_EXPIRY, draft.is_ready(old)
        taker = next((m for m in replacements if (_is_made(m) if forced else _can_take_over(draft, m))), None)
        if taker is None:
            continue
        if not forced and not draft.is_broken(old) and ready - counted < desired.size - desired.max_unavailable:
            continue
        ready -= counted
        message = f"{taker.id} takes its place"
        draft.reason(_CODES[cause], message, old.id)
        leaving.leave(draft, old, cause, message)


def _can_take_over(draft: Draft, replacement: Instance) -> bool:
    return draft.is_ready(replacement) and involuntary(draft, replacement) is None


def _is_made(replacement: Instance) -> bool:
    return replacement.state in (State.STARTING, State.RUNNING) and not replacement.suspect


def _may_go(draft: Draft, cause: Cause) -> bool:
    """What somebody asked for by name is done also while a listing is not believed; its VM is deleted after that."""
    if cause in VOLUNTARY:
        return rollout.may_finish(draft, cause)
    return cause is Cause.REQUESTED or draft.may_delete
