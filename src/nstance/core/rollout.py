"""A rollout: bringing a new revision to every instance of a group. When it starts, pauses, halts and is complete.

The group's record remembers each revision and how it went, so that a new leader neither forgets that a rollout was halted
nor counts its failures from zero. The trap: whatever replaces an old instance makes one of the new revision, so while a
rollout is held, all voluntary work is.
"""

from dataclasses import replace

from nstance.core.draft import Draft, drifted
from nstance.model.decision import ReasonCode
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance
from nstance.model.rollout import MAX_REVISIONS, GroupRecord, Outcome, Revision

OPEN = frozenset({Outcome.ROLLING, Outcome.PAUSED, Outcome.HALTED})
HELD = frozenset({Outcome.PAUSED, Outcome.HALTED})


def follow(draft: Draft) -> None:
    """Bring the group's record up to date."""
    desired = draft.desired
    if desired is None or not desired.infra_hash:
        return
    current = draft.rollout
    if current is None or current.infra_hash != desired.infra_hash:
        current = _start(draft, desired)
    elif current.runtime_hash != desired.runtime_hash:
        current = _change(draft, current, runtime_hash=desired.runtime_hash)
    if current.outcome not in OPEN:
        return
    if desired.size > 0 and draft.ready_and_current() == desired.size == len(draft.capacity()):
        message = f"revision {short(current.infra_hash)} is complete: {desired.size} instances are ready"
        if draft.record is not None and len(draft.record.revisions) > 1:
            draft.reason(ReasonCode.ROLLOUT, message)
        _change(draft, current, outcome=Outcome.COMPLETE, finished=draft.now, message="")
    elif current.outcome is Outcome.ROLLING:
        _judge_failures(draft, desired, current)
        _judge_canaries(draft, desired, current)
    elif current.outcome is Outcome.PAUSED:
        _judge_pause(draft, desired, current)


def forget(draft: Draft) -> None:
    """The revisions of a group that was deleted go with its last instance."""
    if draft.desired is None and draft.record is not None and not draft.members:
        draft.keep(replace(draft.record, revisions=()))


def _start(draft: Draft, desired: Group) -> Revision:
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
        draft.reason(
            ReasonCode.ROLLOUT,
            f"{what} revision {short(started.infra_hash)} by {desired.changed_by}: {outdated} to be replaced",
        )
    draft.keep(replace(record, revisions=_kept((*revisions, started))))
    return started


def _kept(revisions: tuple[Revision, ...]) -> tuple[Revision, ...]:
    forgotten, kept = revisions[:-MAX_REVISIONS], revisions[-MAX_REVISIONS:]
    if any(r.outcome is Outcome.COMPLETE for r in kept):
        return kept
    complete = [r for r in forgotten if r.outcome is Outcome.COMPLETE][-1:]
    return (*complete, *kept[len(complete) :])


def count_failure(draft: Draft, instance: Instance, message: str) -> None:
    """An instance of the current revision did not become ready."""
    current, desired = draft.rollout, draft.desired
    if current is None or desired is None or instance.on_demand or instance.ready_at is not None:
        return
    if instance.infra_hash == current.infra_hash == desired.infra_hash and current.outcome in OPEN:
        _change(draft, current, failures=current.failures + 1, message=f"{instance.id}: {message}")


def judge_blocked(draft: Draft, instance: Instance) -> None:
    """Its files cannot be made, and it should be ready by now. It stays, because no other one would get them; but the
    rollout goes no further."""
    current, desired = draft.rollout, draft.desired
    if (
        current is None
        or desired is None
        or current.outcome is not Outcome.ROLLING
        or instance.ready_at is not None
        or instance.on_demand
        or instance.infra_hash != current.infra_hash
    ):
        return
    due = (current.resumed_at or 0.0) + desired.ready_timeout  # whoever resumed it gave it another chance
    if draft.now < due:
        draft.wake(due)
    elif any(drifted(m, desired) for m in draft.capacity()):
        _halt(
            draft, current, f"{instance.id}: its files cannot be made: {draft.facts(instance.id).blocked}", failures=1
        )


def _judge_failures(draft: Draft, desired: Group, current: Revision) -> None:
    if current.failures >= desired.max_failures and any(drifted(m, desired) for m in draft.capacity()):
        _halt(draft, current, f"{current.failures} instances did not become ready, the last one {current.message}")


def _halt(draft: Draft, current: Revision, message: str, *, failures: int = 0) -> None:
    draft.reason(ReasonCode.ROLLOUT_HALTED, f"the rollout of revision {short(current.infra_hash)} is halted: {message}")
    _change(
        draft,
        current,
        outcome=Outcome.HALTED,
        finished=draft.now,
        failures=current.failures + failures,
        message=message,
    )


def canaries_left(draft: Draft) -> int | None:
    """How many instances may be replaced before the rollout pauses; None: it does not."""
    desired, current = draft.desired, draft.rollout
    if desired is None or not desired.canary or current is None or current.resumed_at is not None:
        return None
    if current.outcome not in OPEN:
        return None
    capacity = draft.capacity()
    updated = sum(not drifted(m, desired) for m in capacity)
    return max(0, desired.canary - updated) if updated < len(capacity) else None


def _judge_canaries(draft: Draft, desired: Group, current: Revision) -> None:
    if canaries_left(draft) != 0 or draft.replacements() or draft.rollout != current:
        return
    if not _canaries_are_ready(draft, desired):
        return
    if desired.stop_after_canary:
        _halt(draft, current, f"stopped after {desired.canary} instances, as configured")
        return
    until = (
        "somebody resumes it"
        if desired.pause_after_canary is None
        else f"{desired.pause_after_canary:.0f} s have passed"
    )
    message = f"paused after {desired.canary} instances until {until}"
    draft.reason(ReasonCode.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} is {message}")
    _judge_pause(draft, desired, _change(draft, current, outcome=Outcome.PAUSED, paused_at=draft.now, message=message))


def _judge_pause(draft: Draft, desired: Group, current: Revision) -> None:
    if desired.pause_after_canary is None or current.paused_at is None:
        return
    due = current.paused_at + desired.pause_after_canary
    if draft.now < due:
        draft.wake(due)
    elif _canaries_are_ready(draft, desired):
        draft.reason(ReasonCode.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} goes on after its pause")
        _change(draft, current, outcome=Outcome.ROLLING, resumed_at=draft.now, message="")


def _canaries_are_ready(draft: Draft, desired: Group) -> bool:
    return all(draft.is_ready(m) for m in draft.capacity() if not drifted(m, desired))


def resume(draft: Draft) -> bool:
    """Somebody lets it go on; says whether it was held."""
    current = draft.rollout
    if current is None or current.outcome not in HELD:
        return False
    draft.reason(ReasonCode.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} was resumed")
    _change(draft, current, outcome=Outcome.ROLLING, failures=0, finished=None, resumed_at=draft.now, message="")
    return True


def may_begin(draft: Draft, cause: Cause) -> bool:
    """Whether an instance may be replaced for this reason, if the limits allow."""
    current = draft.rollout
    if not draft.view.listed or not draft.view.revision_stored or (current is not None and current.outcome in HELD):
        return False
    return _is_calm(draft) or _is_cure(draft, cause)


def may_finish(draft: Draft, cause: Cause) -> bool:
    current = draft.rollout
    if current is not None and current.outcome is Outcome.HALTED:
        return False
    return _is_calm(draft) or _is_cure(draft, cause)


def _is_calm(draft: Draft) -> bool:
    return not draft.view.mass_silence and not draft.view.mass_absence


def _is_cure(draft: Draft, cause: Cause) -> bool:
    """While many are silent or missing, voluntary work stops; but a revision that was put in force since then is probably
    somebody's answer to it."""
    current, since = draft.rollout, draft.view.mass_since
    return cause is Cause.DRIFT and current is not None and since is not None and current.started > since


def short(infra_hash: str) -> str:
    """A revision as people see it."""
    return infra_hash.removeprefix("sha256:")[:12]


def _change(draft: Draft, current: Revision, **fields: object) -> Revision:
    assert draft.record is not None
    after = replace(current, **fields)  # type: ignore[arg-type]
    draft.keep(replace(draft.record, revisions=(*draft.record.revisions[:-1], after)))
    return after
