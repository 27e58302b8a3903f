"""A rollout brings a new revision to every instance of a group: when it starts, pauses, halts and is complete.

The group's record stores each revision and its outcome, so that a new leader neither forgets that a rollout was halted
nor counts its failures from zero. Every replacement is made from the new revision, so while a rollout is held, all
voluntary work is held.
"""

from dataclasses import replace

from nstance.core.draft import Draft, drifted
from nstance.model.decision import ReasonCode
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
    current = draft.current_revision
    if current is None or current.infra_hash != desired.infra_hash:
        current = _start_rollout(draft, desired)
    elif current.runtime_hash != desired.runtime_hash:
        current = _put_revision(draft, replace(current, runtime_hash=desired.runtime_hash))
    if current.outcome not in OPEN:
        return
    if desired.size > 0 and draft.count_ready_and_current() == desired.size == len(draft.capacity()):
        if draft.record is not None and len(draft.record.revisions) > 1:
            message = f"{_title(current)} complete: {desired.size} instances are ready"
            draft.add_reason(ReasonCode.ROLLOUT, message)
        _put_revision(draft, replace(current, outcome=Outcome.COMPLETE, finished=draft.now, message=""))
    elif current.outcome is Outcome.ROLLING:
        if current.failures >= desired.max_failures and any(drifted(m, desired) for m in draft.capacity()):
            _halt(draft, current, f"{current.failures} instances did not become ready, the last one {current.message}")
        else:
            _pause_after_canaries(draft, desired, current)
    elif current.outcome is Outcome.PAUSED:
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
        runtime_hash=desired.runtime_hash,
        started=draft.now,
        by=desired.changed_by,
        resumed_at=draft.now if desired.rolled_back_from else None,  # it was rolled out before: no canaries
    )
    outdated = sum(drifted(m, desired) for m in draft.capacity())
    if outdated:
        what = "rollback to" if desired.rolled_back_from else "rollout of"
        message = f"{what} revision {short_hash(started.infra_hash)} started by {desired.changed_by}"
        draft.add_reason(ReasonCode.ROLLOUT, f"{message}: {outdated} instances to be replaced")
    draft.record = replace(record, revisions=_drop_oldest((*revisions, started)))
    return started


def _drop_oldest(revisions: tuple[Revision, ...]) -> tuple[Revision, ...]:
    dropped, kept = revisions[:-MAX_REVISIONS], revisions[-MAX_REVISIONS:]
    if any(r.outcome is Outcome.COMPLETE for r in kept):
        return kept
    complete = [r for r in dropped if r.outcome is Outcome.COMPLETE][-1:]
    return (*complete, *kept[len(complete) :])


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
    if draft.is_due(due) and any(drifted(m, desired) for m in draft.capacity()):
        blocked = draft.observation(instance.id).agent.blocked
        failed = replace(current, failures=current.failures + 1)
        _halt(draft, failed, f"{instance.id}: its files cannot be rendered: {blocked}")


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
    capacity = draft.capacity()
    updated = sum(not drifted(m, desired) for m in capacity)
    return max(0, desired.canary - updated) if updated < len(capacity) else None


def _pause_after_canaries(draft: Draft, desired: Group, current: Revision) -> None:
    if remaining_canaries(draft) != 0 or draft.replacements() or not _are_canaries_ready(draft, desired):
        return
    if desired.stop_after_canary:
        _halt(draft, current, f"stopped after {desired.canary} instances, as configured")
        return
    pause = desired.pause_after_canary
    until = "it is resumed" if pause is None else f"{pause:.0f} s have passed"
    message = f"paused after {desired.canary} instances until {until}"
    draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} {message}")
    paused = replace(current, outcome=Outcome.PAUSED, paused_at=draft.now, message=message)
    _end_pause(draft, desired, _put_revision(draft, paused))


def _end_pause(draft: Draft, desired: Group, current: Revision) -> None:
    if desired.pause_after_canary is None or current.paused_at is None:
        return
    if draft.is_due(current.paused_at + desired.pause_after_canary) and _are_canaries_ready(draft, desired):
        draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} continues after its pause")
        _put_revision(draft, replace(current, outcome=Outcome.ROLLING, resumed_at=draft.now, message=""))


def _are_canaries_ready(draft: Draft, desired: Group) -> bool:
    return all(draft.is_ready(m) for m in draft.capacity() if not drifted(m, desired))


def resume_rollout(draft: Draft) -> bool:
    """Returns whether the rollout was held."""
    current = draft.current_revision
    if current is None or current.outcome not in HELD:
        return False
    draft.add_reason(ReasonCode.ROLLOUT, f"{_title(current)} resumed")
    resumed = replace(current, outcome=Outcome.ROLLING, failures=0, finished=None, resumed_at=draft.now, message="")
    _put_revision(draft, resumed)
    return True


def can_start(draft: Draft, cause: Cause) -> bool:
    """Whether an instance may be replaced for this reason, if the limits allow it."""
    current = draft.current_revision
    if not draft.view.listed or not draft.view.revision_stored or (current is not None and current.outcome in HELD):
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
