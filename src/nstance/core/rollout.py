"""A rollout brings a new revision to every instance of a group: when it starts, pauses, halts and is complete.

The group's record stores each revision and its outcome, so that a new leader neither forgets that a rollout was halted
nor counts its failures from zero. While a rollout is held, all voluntary work is held, and instances that have to be
created anyway are made from the revision before it: the new one is not proven, or fails. So are replacements of lost
instances while only that revision has capacity.
"""

from collections.abc import Set
from dataclasses import replace

from nstance.core import offers
from nstance.core.draft import Draft, drifted
from nstance.core.triage import is_ended
from nstance.model.counts import count
from nstance.model.decision import Fallback, ReasonCode
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance
from nstance.model.rollout import MAX_REVISIONS, GroupRecord, Outcome, Revision

OPEN = frozenset({Outcome.ROLLING, Outcome.PAUSED, Outcome.HALTED})
HELD = frozenset({Outcome.PAUSED, Outcome.HALTED})


def update_rollout(draft: Draft) -> None:
    """Bring the group's record up to date."""
    desired = draft.desired
    if desired is None or not desired.infra_hash:
        return
    if bool(draft.view.blocked) is (draft.trend.blocked_since is None):
        draft.trend = replace(draft.trend, blocked_since=draft.now if draft.view.blocked else None)
    current = draft.current_revision
    if current is None or current.infra_hash != desired.infra_hash:
        current = _start_rollout(draft, desired)
    elif current.runtime_hash != desired.parts_hash:
        current = _put_revision(draft, replace(current, runtime_hash=desired.parts_hash))
    if current.outcome not in OPEN:
        return
    if desired.size > 0 and draft.count_ready_and_current() == desired.size == len(draft.capacity()):
        if draft.record is not None and len(draft.record.revisions) > 1:
            message = f"{_title(current)} complete: {count(desired.size, 'instance')} ready"
            draft.add_reason(ReasonCode.ROLLOUT, message)
        _put_revision(draft, replace(current, outcome=Outcome.COMPLETE, finished=draft.now, message=""))
    elif current.outcome is Outcome.HALTED:
        return
    elif current.failures >= desired.max_failures and _has_alternative(draft, desired):
        failed = count(current.failures, "instance")
        _halt(draft, current, f"{failed} did not become ready, the last one {current.message}")
    elif current.outcome is Outcome.ROLLING and _is_blocked_for_long(draft, desired, current):
        blocked = replace(current, failures=current.failures + 1)
        _halt(draft, blocked, f"no instance can be created: {draft.view.blocked}")
    elif current.outcome is Outcome.ROLLING:
        _pause_after_canaries(draft, desired, current)
    elif _count_current(draft, desired) < min(desired.canary, desired.size):
        _replace_canaries(draft, desired, current)
    else:
        _end_pause(draft, desired, current)


def drop_revisions_of_deleted_group(draft: Draft) -> None:
    """The revisions of a deleted group are dropped with its last instance."""
    if draft.desired is None and draft.record is not None and not draft.members:
        draft.record = replace(draft.record, revisions=())


def _start_rollout(draft: Draft, desired: Group) -> Revision:
    record = draft.record or GroupRecord(key=desired.key)
    revisions = list(record.revisions)
    if revisions:
        before = revisions[-1]
        if desired.rolled_back_from == before.infra_hash:
            revisions[-1] = replace(before, outcome=Outcome.ROLLED_BACK, finished=draft.now)
        elif before.outcome in OPEN:
            revisions[-1] = replace(before, outcome=Outcome.SUPERSEDED, finished=draft.now)
    started = Revision(
        infra_hash=desired.infra_hash,
        runtime_hash=desired.parts_hash,
        started=draft.now,
        by=desired.changed_by,
        resumed_at=draft.now if desired.rolled_back_from else None,  # it was rolled out before: no canaries
    )
    outdated = sum(drifted(m, desired) for m in draft.capacity())
    if outdated:
        what = "rollback to" if desired.rolled_back_from else "rollout of"
        message = f"{what} revision {short_hash(started.infra_hash)} started by {desired.changed_by}"
        draft.add_reason(ReasonCode.ROLLOUT, f"{message}: {count(outdated, 'instance')} to be replaced")
    used = frozenset(m.infra_hash for m in draft.members.values() if not is_ended(m))
    draft.record = replace(record, revisions=_drop_oldest((*revisions, started), used))
    return started


def _drop_oldest(revisions: tuple[Revision, ...], used: Set[str]) -> tuple[Revision, ...]:
    """`used`: infra hashes of existing instances. Their files and checks come from their revision, so it is kept beyond
    the limit."""
    newest = {revision.infra_hash: number for number, revision in enumerate(revisions)}
    kept = {number for infra_hash, number in newest.items() if infra_hash in used}
    complete = [number for number, revision in enumerate(revisions) if revision.outcome is Outcome.COMPLETE]
    kept |= {len(revisions) - 1, *complete[-1:]}
    for number in reversed(range(len(revisions))):
        if len(kept) < MAX_REVISIONS:
            kept.add(number)
    return tuple(revision for number, revision in enumerate(revisions) if number in kept)


def count_failure(draft: Draft, instance: Instance, message: str) -> None:
    """An instance of the current revision did not become ready."""
    current, desired = draft.current_revision, draft.desired
    if current is None or desired is None or instance.on_demand or instance.ready_at is not None:
        return
    if instance.infra_hash == current.infra_hash == desired.infra_hash and current.outcome in OPEN:
        failures = current.failures + 1
        _put_revision(draft, replace(current, failures=failures, message=f"{instance.id}: {message}"))


def halt_if_blocked(draft: Draft, instance: Instance) -> None:
    """The instance should be ready by now, and its files cannot be rendered. It stays, because another one would not get
    them either; but the rollout goes no further."""
    current, desired = draft.current_revision, draft.desired
    if (
        current is None
        or desired is None
        or current.outcome is not Outcome.ROLLING
        or instance.ready_at is not None
        or instance.on_demand
        or instance.infra_hash != current.infra_hash
    ):
        return
    due = (current.resumed_at or 0.0) + desired.ready_timeout  # a resumed rollout gets another chance
    if draft.is_due(due) and _has_alternative(draft, desired):
        blocked = draft.observation(instance.id).agent.blocked
        failed = replace(current, failures=current.failures + 1)
        _halt(draft, failed, f"{instance.id}: its files cannot be rendered: {blocked}")


def _is_blocked_for_long(draft: Draft, desired: Group, current: Revision) -> bool:
    """Its image or userdata is missing for as long as an instance may take to become ready. Until it is halted, lost
    instances cannot be replaced either."""
    since = draft.trend.blocked_since
    if since is None or not _has_alternative(draft, desired):
        return False
    return draft.is_due(max(since, current.started, current.resumed_at or 0.0) + desired.ready_timeout)


def _has_alternative(draft: Draft, desired: Group) -> bool:
    """Whether a halt helps: it protects old instances, or new ones are made from a revision that worked. With
    `max_unavailable` all old ones may be gone."""
    if draft.record is not None and draft.record.last_complete() is not None:
        return True
    return any(drifted(m, desired) for m in draft.capacity())


def _halt(draft: Draft, current: Revision, message: str) -> None:
    draft.add_reason(ReasonCode.ROLLOUT_HALTED, f"{_title(current)} halted: {message}")
    _put_revision(draft, replace(current, outcome=Outcome.HALTED, finished=draft.now, message=message))


def remaining_canaries(draft: Draft) -> int | None:
    """How many instances may be replaced before the rollout pauses; None: it does not pause."""
    desired, current = draft.desired, draft.current_revision
    if desired is None or not desired.canary or current is None or current.resumed_at is not None:
        return None
    if current.outcome not in OPEN:
        return None
    updated = _count_current(draft, desired)
    return max(0, desired.canary - updated) if updated < len(draft.capacity()) else None


def _count_current(draft: Draft, desired: Group) -> int:
    return sum(not drifted(m, desired) for m in draft.capacity())


def _pause_after_canaries(draft: Draft, desired: Group, current: Revision) -> None:
    if remaining_canaries(draft) != 0 or draft.replacements() or not _are_canaries_ready(draft, desired):
        return
    if desired.stop_after_canary:
        _halt(draft, current, f"stopped after {count(desired.canary, 'instance')}, as configured")
        return
    pause = desired.pause_after_canary
    until = "it is resumed" if pause is None else f"{pause:.0f} s have passed"
    message = f"paused after {count(desired.canary, 'instance')} until {until}"
    draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} {message}")
    paused = replace(current, outcome=Outcome.PAUSED, paused_at=draft.now, message=message)
    _end_pause(draft, desired, _put_revision(draft, paused))


def _replace_canaries(draft: Draft, desired: Group, current: Revision) -> None:
    """A canary is gone, and people look at canaries during a pause: the rollout goes on until it has another one. If only the
    earlier revision has capacity, the lost one was replaced by an instance of that, which is rotated later."""
    left = f"{_count_current(draft, desired)} of {count(desired.canary, 'instance')} left"
    draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} goes on until it can pause again: {left}")
    _put_revision(draft, replace(current, outcome=Outcome.ROLLING, paused_at=None, message=""))


def _end_pause(draft: Draft, desired: Group, current: Revision) -> None:
    if desired.pause_after_canary is None or current.paused_at is None:
        return
    if desired.canary and not _count_current(draft, desired):
        return  # the group has been scaled to zero
    if draft.is_due(current.paused_at + desired.pause_after_canary) and _are_canaries_ready(draft, desired):
        draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} continues after its pause")
        _put_revision(draft, replace(current, outcome=Outcome.ROLLING, resumed_at=draft.now, message=""))


def _are_canaries_ready(draft: Draft, desired: Group) -> bool:
    return all(draft.is_ready(m) for m in draft.capacity() if not drifted(m, desired))


def resume_rollout(draft: Draft, *, by: str = "") -> bool:
    """Returns whether the rollout was held."""
    current = draft.current_revision
    if current is None or current.outcome not in HELD:
        return False
    draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} resumed{f' by {by}' if by else ''}")
    resumed = replace(current, outcome=Outcome.ROLLING, failures=0, finished=None, resumed_at=draft.now, message="")
    _put_revision(draft, resumed)
    return True


def needs_fallback(record: GroupRecord | None, desired: Group | None) -> bool:
    """Whether new instances are not made from the current revision, apart from canaries: its rollout is held, or has yet to
    pause after its canaries."""
    current = record.current if record is not None else None
    if current is None or desired is None or current.infra_hash != desired.infra_hash:
        return False
    is_trial = current.outcome is Outcome.ROLLING and desired.canary > 0 and current.resumed_at is None
    return is_trial or current.outcome in HELD


def fallback_revisions(record: GroupRecord | None, desired: Group | None) -> list[str]:
    """The infra hashes that such instances may have, the best first: complete ones, or if there are none, the others. They
    are the same before and after the decision that starts the rollout. Only the first one that is stored is used."""
    current = record.current if record is not None else None
    if record is None or current is None or desired is None:
        return []
    if current.infra_hash == desired.infra_hash and current.outcome not in OPEN:
        return []
    earlier = [r for r in reversed(record.revisions) if r.infra_hash != desired.infra_hash]
    complete = [r.infra_hash for r in earlier if r.outcome is Outcome.COMPLETE]
    return complete or [r.infra_hash for r in earlier if r.outcome is not Outcome.ROLLED_BACK]


def group_to_create(draft: Draft, replaces: Instance | None = None, *, is_loss: bool = False) -> Group | None:
    """What the next instance is made from. None: it cannot be created now. `replaces`: whose place it shares. `is_loss`: the
    instance that had the place is gone or useless, and that was not our doing."""
    desired, fallback = draft.desired, draft.view.fallback
    if fallback is None or desired is None or not _uses_fallback(draft, desired, fallback, replaces, is_loss=is_loss):
        return None if draft.view.blocked else desired
    return None if fallback.blocked else fallback.group


def _uses_fallback(
    draft: Draft, desired: Group, fallback: Fallback, replaces: Instance | None, *, is_loss: bool
) -> bool:
    group, current, targets = fallback.group, draft.current_revision, fallback_revisions(draft.record, desired)
    if current is None or not targets or (group is not None and group.infra_hash not in targets):
        return False
    if is_loss and _has_capacity_instead(draft, desired, fallback):
        return True
    if not needs_fallback(draft.record, desired):
        return False
    if current.outcome is Outcome.HALTED and current.failures:
        return True
    # A canary is replaced by another one; there are never more than configured.
    return sum(not drifted(m, desired) for m in draft.capacity() if m is not replaces) >= desired.canary


def _has_capacity_instead(draft: Draft, desired: Group, fallback: Fallback) -> bool:
    """Whether only the earlier revision can be created now. Lack of capacity is no failure, so it never halts a rollout: a
    lost instance would be missed for as long as it lasts."""
    current, group = draft.current_revision, fallback.group
    if current is None or group is None or fallback.blocked or current.infra_hash != desired.infra_hash:
        return False
    if not offers.explain_blocked(desired, draft.exhausted, draft.now) or not draft.is_due(_begun(current)):
        return False
    draft.wake(offers.retry_at(desired, draft.exhausted, draft.now))  # the earlier one may wait for something else
    if offers.explain_blocked(group, draft.exhausted, draft.now):
        draft.wake(offers.retry_at(group, draft.exhausted, draft.now))
        return False
    return True


def _begun(revision: Revision) -> float:
    return max(revision.started, revision.resumed_at or 0.0)


def group_of(draft: Draft, instance: Instance) -> Group | None:
    """The group as the revision of an instance that is being created. None: nothing is made from that any more."""
    fallback = draft.view.fallback.group if draft.view.fallback is not None else None
    if fallback is not None and fallback.infra_hash == instance.infra_hash:
        return fallback
    return draft.desired if instance.on_demand or not drifted(instance, draft.desired) else None


def is_fallback(record: GroupRecord | None, desired: Group | None, instance: Instance) -> bool:
    """Whether it was made, or may be made, from the revision that new instances have instead of the current one. After the
    rollout began that is on purpose, also when the current one has capacity again: nothing is made and dropped in turn."""
    current = record.current if record is not None else None
    if current is None or desired is None or instance.infra_hash not in fallback_revisions(record, desired):
        return False
    return needs_fallback(record, desired) or (
        current.infra_hash == desired.infra_hash and instance.created >= _begun(current)
    )


def is_failed(draft: Draft, instance: Instance) -> bool:
    """Whether it is of the revision that halted the rollout, did not become ready in time, and has the place of an instance
    that is gone. Another one of its revision would fail, too, but one of the earlier revision does not."""
    current, fallback = draft.current_revision, draft.view.fallback
    if current is None or current.outcome is not Outcome.HALTED or not current.failures or instance.on_demand:
        return False
    if fallback is None or fallback.group is None or not needs_fallback(draft.record, draft.desired):
        return False
    return (
        instance.infra_hash == current.infra_hash
        and instance.ready_at is None
        and draft.is_unready(instance)
        and draft.now >= draft.unready_deadline(instance)
        and draft.replaced_by(instance) is None
    )


def explain_fallback(draft: Draft, group: Group) -> str:
    """Why an instance is not made from the current revision; empty if it is."""
    current = draft.current_revision
    if current is None or group.infra_hash == current.infra_hash or draft.desired is group:
        return ""
    made = f"; made from revision {short_hash(group.infra_hash)}"
    if current.outcome in HELD:
        return f"{made}: the {_title(current)} is {current.outcome.value}"
    lacks = offers.explain_blocked(draft.desired, draft.exhausted, draft.now) if draft.desired is not None else ""
    return f"{made}: {lacks or f'the {_title(current)} has not paused yet'}"


def can_start(draft: Draft, cause: Cause) -> bool:
    """Whether an instance may be replaced for this reason, if the limits allow it."""
    current = draft.current_revision
    if not draft.view.listed or not draft.view.revision_stored:
        return False
    if cause is Cause.FORCED_EXPIRY:
        return True
    if current is not None and current.outcome in HELD:
        return False
    return _is_fleet_visible(draft) or _may_be_the_fix(draft, cause)


def can_finish(draft: Draft, cause: Cause) -> bool:
    current = draft.current_revision
    if current is not None and current.outcome is Outcome.HALTED:
        return False
    return _is_fleet_visible(draft) or _may_be_the_fix(draft, cause)


def _is_fleet_visible(draft: Draft) -> bool:
    return not draft.view.mass_silence and not draft.view.mass_absence


def _may_be_the_fix(draft: Draft, cause: Cause) -> bool:
    """While many agents are unresponsive or many VMs missing, voluntary work stops; but a revision that became active
    since then is probably meant to fix that."""
    current, since = draft.current_revision, draft.view.mass_since
    return cause is Cause.DRIFT and current is not None and since is not None and current.started > since


def short_hash(infra_hash: str) -> str:
    """A revision as users see it."""
    return infra_hash.removeprefix("sha256:")[:12]


def _title(revision: Revision) -> str:
    return f"rollout of revision {short_hash(revision.infra_hash)}"


def _put_revision(draft: Draft, revision: Revision) -> Revision:
    """Replace the current revision of the group's record."""
    assert draft.record is not None
    draft.record = replace(draft.record, revisions=(*draft.record.revisions[:-1], revision))
    return revision
