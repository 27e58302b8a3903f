"""A rollout: bringing a new revision to every instance of a group. When it starts, pauses, halts and is complete.

The group's record remembers each revision and how it went, so that a new leader neither forgets that a rollout was halted
nor counts its failures from zero. The trap: whatever replaces an old instance makes one of the new revision, so while a
rollout is held, all voluntary work is.
"""

from dataclasses import replace

from nstance.core.draft import Draft, drifted
from nstance.model.decision import Code
from nstance.model.group import Group
from nstance.model.instance import Cause, Instance
from nstance.model.rollout import MAX_REVISIONS, GroupRecord, Outcome, Revision

OPEN = frozenset({Outcome.ROLLING, Outcome.PAUSED, Outcome.HALTED})
HELD = frozenset({Outcome.PAUSED, Outcome.HALTED})


def follow(draft: Draft) -> None:
    """Bring the group's record up to date."""
    wish = draft.wish
    if wish is None or not wish.infra_hash:
        return
    current = draft.rollout
    if current is None or current.infra_hash != wish.infra_hash:
        current = _start(draft, wish)
    elif current.runtime_hash != wish.runtime_hash:
        current = _change(draft, current, runtime_hash=wish.runtime_hash)
    if current.outcome not in OPEN:
        return
    if wish.size > 0 and draft.ready_and_current() == wish.size == len(draft.capacity()):
        message = f"revision {short(current.infra_hash)} is complete: {wish.size} instances are ready"
        if draft.record is not None and len(draft.record.revisions) > 1:
            draft.reason(Code.ROLLOUT, message)
        _change(draft, current, outcome=Outcome.COMPLETE, finished=draft.now, message="")
    elif current.outcome is Outcome.ROLLING:
        _judge_failures(draft, wish, current)
        _judge_canaries(draft, wish, current)
    elif current.outcome is Outcome.PAUSED:
        _judge_pause(draft, wish, current)


def forget(draft: Draft) -> None:
    """The revisions of a group that was deleted go with its last instance."""
    if draft.wish is None and draft.record is not None and not draft.members:
        draft.keep(replace(draft.record, revisions=()))


def _start(draft: Draft, wish: Group) -> Revision:
    record = draft.record or GroupRecord(key=wish.key)
    revisions = list(record.revisions)
    if revisions:
        before = revisions[-1]
        if wish.rolled_back_from == before.infra_hash:
            revisions[-1] = replace(before, outcome=Outcome.ROLLED_BACK, finished=draft.now)
        elif before.outcome in OPEN:
            revisions[-1] = replace(before, outcome=Outcome.SUPERSEDED, finished=draft.now)
    started = Revision(
        infra_hash=wish.infra_hash,
        runtime_hash=wish.runtime_hash,
        started=draft.now,
        by=wish.changed_by,
        resumed_at=draft.now if wish.rolled_back_from else None,  # it was rolled out before: no canaries
    )
    outdated = sum(drifted(m, wish) for m in draft.capacity())
    if outdated:
        what = "rollback to" if wish.rolled_back_from else "rollout of"
        draft.reason(
            Code.ROLLOUT, f"{what} revision {short(started.infra_hash)} by {wish.changed_by}: {outdated} to be replaced"
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
    current, wish = draft.rollout, draft.wish
    if current is None or wish is None or instance.on_demand or instance.ready_at is not None:
        return
    if instance.infra_hash == current.infra_hash == wish.infra_hash and current.outcome in OPEN:
        _change(draft, current, failures=current.failures + 1, message=f"{instance.id}: {message}")


def judge_blocked(draft: Draft, instance: Instance) -> None:
    """Its files cannot be made, and it should be ready by now. It stays, because no other one would get them; but the
    rollout goes no further."""
    current, wish = draft.rollout, draft.wish
    if (
        current is None
        or wish is None
        or current.outcome is not Outcome.ROLLING
        or instance.ready_at is not None
        or instance.on_demand
        or instance.infra_hash != current.infra_hash
    ):
        return
    due = (current.resumed_at or 0.0) + wish.ready_timeout  # whoever resumed it gave it another chance
    if draft.now < due:
        draft.wake(due)
    elif any(drifted(m, wish) for m in draft.capacity()):
        _halt(
            draft, current, f"{instance.id}: its files cannot be made: {draft.facts(instance.id).blocked}", failures=1
        )


def _judge_failures(draft: Draft, wish: Group, current: Revision) -> None:
    if current.failures >= wish.max_failures and any(drifted(m, wish) for m in draft.capacity()):
        _halt(draft, current, f"{current.failures} instances did not become ready, the last one {current.message}")


def _halt(draft: Draft, current: Revision, message: str, *, failures: int = 0) -> None:
    draft.reason(Code.ROLLOUT_HALTED, f"the rollout of revision {short(current.infra_hash)} is halted: {message}")
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
    wish, current = draft.wish, draft.rollout
    if wish is None or not wish.canary or current is None or current.resumed_at is not None:
        return None
    if current.outcome not in OPEN:
        return None
    capacity = draft.capacity()
    updated = sum(not drifted(m, wish) for m in capacity)
    return max(0, wish.canary - updated) if updated < len(capacity) else None


def _judge_canaries(draft: Draft, wish: Group, current: Revision) -> None:
    if canaries_left(draft) != 0 or draft.newcomers() or draft.rollout != current:
        return
    if not _canaries_are_ready(draft, wish):
        return
    if wish.stop_after_canary:
        _halt(draft, current, f"stopped after {wish.canary} instances, as configured")
        return
    until = "somebody resumes it" if wish.pause_after_canary is None else f"{wish.pause_after_canary:.0f} s have passed"
    message = f"paused after {wish.canary} instances until {until}"
    draft.reason(Code.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} is {message}")
    _judge_pause(draft, wish, _change(draft, current, outcome=Outcome.PAUSED, paused_at=draft.now, message=message))


def _judge_pause(draft: Draft, wish: Group, current: Revision) -> None:
    if wish.pause_after_canary is None or current.paused_at is None:
        return
    due = current.paused_at + wish.pause_after_canary
    if draft.now < due:
        draft.wake(due)
    elif _canaries_are_ready(draft, wish):
        draft.reason(Code.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} goes on after its pause")
        _change(draft, current, outcome=Outcome.ROLLING, resumed_at=draft.now, message="")


def _canaries_are_ready(draft: Draft, wish: Group) -> bool:
    return all(draft.is_ready(m) for m in draft.capacity() if not drifted(m, wish))


def resume(draft: Draft) -> bool:
    """Somebody lets it go on; says whether it was held."""
    current = draft.rollout
    if current is None or current.outcome not in HELD:
        return False
    draft.reason(Code.ROLLOUT, f"the rollout of revision {short(current.infra_hash)} was resumed")
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
