"""Replacements: why one is created, when the old instance is removed, when the replacement is no longer needed.

Both count as capacity for a while and share one place. The reason is determined again each time instead of being stored:
if a configuration is reverted or an agent reconnects, the replacement is dropped and the old instance is kept.
"""

from operator import attrgetter

from nstance.core import creating, health, leaving, offers, readiness, rollout
from nstance.core.draft import Draft, drifted
from nstance.model.events import NoticeKind
from nstance.model.group import Preference
from nstance.model.instance import Cause, Instance, State

UNREADY_SECONDS = 5.0  # an instance that reports so for longer is not about to become ready
VOLUNTARY = frozenset({Cause.DRIFT, Cause.ELIGIBLE_EXPIRY, Cause.PREFERENCE, Cause.SPOT})  # SPOT: a rebalance hint
LIMITED = VOLUNTARY | {Cause.FORCED_EXPIRY}  # obey the limits and the order of the group's updates
_FINISHED = LIMITED | {Cause.UNHEALTHY, Cause.REQUESTED}


def involuntary_cause(draft: Draft, instance: Instance) -> Cause | None:
    """Why a running instance needs a replacement now, regardless of the limits."""
    if instance.state is not State.RUNNING or instance.on_demand:
        return None
    if instance.suspect:
        return None if draft.view.mass_silence else Cause.UNHEALTHY
    if (cause := health.imminent_end(draft, instance)) is not None:
        return cause
    if instance.id in draft.unhealthy or rollout.is_failed(draft, instance):
        return Cause.UNHEALTHY
    return Cause.REQUESTED if instance.replace_wanted else None


def limited_cause(draft: Draft, instance: Instance) -> Cause | None:
    """Why it should be replaced when the limits allow it."""
    if _is_older_than(draft, instance, draft.policy.forced_age):
        return Cause.FORCED_EXPIRY
    if drifted(instance, draft.desired):
        return Cause.DRIFT
    if draft.observation(instance.id).agent.notice is NoticeKind.REBALANCE:
        return Cause.SPOT
    if _has_better_offer(draft, instance):
        return Cause.PREFERENCE
    return Cause.ELIGIBLE_EXPIRY if _is_older_than(draft, instance, draft.policy.eligible_age) else None


def _has_better_offer(draft: Draft, instance: Instance) -> bool:
    """Whether the group insists on its order of preference, and a better market or type may have capacity. A replacement
    that was created for another reason, in an offer that is not better, does not help with that."""
    desired = draft.desired
    if desired is None or desired.prefer is not Preference.STRICT:
        return False
    better = offers.better_pairs(desired, instance)
    replacements = draft.replacements().get(instance.id, ())
    if replacements and not any((m.market, m.instance_type) in better for m in replacements):
        return False
    return bool(better) and draft.is_due(offers.retry_at(desired, draft.exhausted, draft.now, better))


def _is_older_than(draft: Draft, instance: Instance, age: float | None) -> bool:
    return age is not None and draft.is_due(instance.created + age)


def is_worth_keeping(draft: Draft, instance: Instance, *, outdated: bool = False) -> bool:
    """Whether it needs no replacement apart from an unresponsive agent. `outdated`: its revision does not matter."""
    if health.imminent_end(draft, instance) is not None or readiness.explain_unhealthy(draft, instance):
        return False
    if rollout.is_failed(draft, instance):
        return False
    if instance.on_demand:
        return not _is_older_than(draft, instance, draft.policy.ondemand_age)
    cause = limited_cause(draft, instance)
    return (cause is None or (outdated and cause is Cause.DRIFT)) and not instance.replace_wanted


def drop_unneeded_replacements(draft: Draft) -> None:
    """Delete replacements whose predecessor recovered, and those of an outdated configuration."""
    if not draft.can_delete:
        return
    linked = sorted((m for group in draft.replacements().values() for m in group), key=attrgetter("id"))
    replacements = {m.id for m in linked}
    failing = bool(draft.trend.failures)
    unneeded: list[tuple[Instance, str]] = []
    for member in draft.capacity() if failing else linked:
        outdated = drifted(member, draft.desired) and not rollout.is_fallback(draft.record, draft.desired, member)
        is_replacement = member.id in replacements
        if outdated and member.state is not State.RUNNING and (is_replacement or failing):
            # Others start first and are rotated later: the group may be waiting for them.
            unneeded.append((member, "configuration changed before the agent registered"))
        elif outdated and is_replacement and member.ready_at is None and member.replaces_for in LIMITED:
            unneeded.append((member, "configuration changed before the instance was ready"))
        elif is_replacement and (kept := _find_recovered(draft, member)) is not None:
            unneeded.append((member, f"no longer needed: {kept.id} is kept"))
    # All are found before the first one is removed: in a chain, each depends on the one before.
    for member, message in unneeded:
        leaving.remove_instance(draft, member, Cause.SUPERSEDED, message)


def _find_recovered(draft: Draft, replacement: Instance) -> Instance | None:
    """The instance that it replaces, or that one's in turn, which no longer needs a replacement."""
    seen = {replacement.id}
    while replacement.replaces not in seen and (old := draft.replaced_by(replacement)) is not None:
        # While a rollout is held, an instance that recovers is not exchanged for another one of its revision.
        outdated = rollout.is_fallback(draft.record, draft.desired, replacement)
        if (
            old.state is State.RUNNING
            and not old.suspect
            and replacement.replaces_for is not Cause.SPOT  # the notice may have been lost with the last leader
            and not _is_on_better_offer(draft, replacement, old)
            and is_worth_keeping(draft, old, outdated=outdated)
        ):
            return old
        seen.add(old.id)
        replacement = old
    return None


def _is_on_better_offer(draft: Draft, replacement: Instance, old: Instance) -> bool:
    """It keeps what it was created for, although the better offer may be exhausted again by now."""
    desired = draft.desired
    if desired is None or replacement.replaces_for is not Cause.PREFERENCE:
        return False
    return (replacement.market, replacement.instance_type) in offers.better_pairs(desired, old)


def start_involuntary_replacements(draft: Draft) -> None:
    """All at once, each linked to the instance whose place it takes. A place above the size, which is left while nothing
    may be deleted, makes up for an instance that is about to leave."""
    if draft.desired is None:
        return
    found = [(cause, m) for m in draft.needs_attention() if (cause := involuntary_cause(draft, m)) is not None]
    surplus = draft.count_places() - draft.size if found else 0
    for cause, instance in found:
        if instance.id in draft.replacements():
            continue
        if surplus > 0:
            surplus -= 1
        else:
            start_replacement(draft, cause, instance)


def start_replacement(draft: Draft, cause: Cause, instance: Instance) -> Instance | None:
    return creating.create_instance(draft, cause, f"replacing {instance.id}: {cause.value}", replaces=instance)


def finish_replacements(draft: Draft) -> None:
    """Remove the old instances whose replacement is ready, as long as enough ready ones remain. An old instance that is
    not ready is no loss."""
    desired = draft.desired
    if desired is None or not draft.view.listed or not draft.replacements():
        return
    ready = draft.count_ready()
    for id, replacements in list(draft.replacements().items()):
        old = draft.members[id]
        if old.suspect or health.imminent_end(draft, old) is not None:
            continue  # `health` removes these
        cause = involuntary_cause(draft, old) or limited_cause(draft, old) or replacements[0].replaces_for
        if cause is None or cause not in _FINISHED or not _can_finish(draft, cause):
            continue
        counted = draft.is_ready(old)
        successor = next((m for m in replacements if _can_take_over(draft, m)), None)
        if successor is None:
            continue
        if not _is_unready_for_good(draft, old) and ready - counted < desired.size - desired.max_unavailable:
            continue
        ready -= counted
        leaving.remove_instance(draft, old, cause, f"replaced by {successor.id}")


def _is_unready_for_good(draft: Draft, instance: Instance) -> bool:
    """Whether its loss is none. An agent that has just connected, or is receiving new files, is unready for a moment only."""
    since = draft.observation(instance.id).agent.unready_since
    return draft.is_unready(instance) and since is not None and draft.is_due(since + UNREADY_SECONDS)


def _can_take_over(draft: Draft, replacement: Instance) -> bool:
    return draft.is_ready(replacement) and involuntary_cause(draft, replacement) is None


def _can_finish(draft: Draft, cause: Cause) -> bool:
    """A replacement requested by name finishes even while a listing is not believed; the VM is deleted after that."""
    if cause in VOLUNTARY:
        return rollout.can_finish(draft, cause)
    return cause is Cause.REQUESTED or draft.can_delete
