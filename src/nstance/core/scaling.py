"""Bringing a group to its size.

A place is what the size counts. A newcomer that replaces an instance which is still there shares its place, so a
speculative replacement is never mistaken for a surplus. The trap: an instance whose creation is still unknown *is*
capacity; counting it as missing would make two.
"""

from nstance.core import creating, leaving
from nstance.core.draft import Draft, drifted
from nstance.core.health import is_sound, needs_replacement
from nstance.model.decision import Code
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State


def scale(draft: Draft) -> None:
    drop_needless_newcomers(draft)
    able = draft.capacity()
    lack = draft.size - places(able)
    if lack < 0:
        _shrink(draft, able)
    elif lack > 0:
        _grow(draft, lack)


def places(able: list[Instance]) -> int:
    present = {m.id for m in able}
    return sum(m.replaces is None or m.replaces not in present for m in able)


def _grow(draft: Draft, lack: int) -> None:
    lack -= _cancel_drains(draft, lack)
    have, size = draft.size - lack, draft.size
    for _ in range(lack):
        if creating.create(draft, None, f"{have} of {size} are there") is None:
            return


def _cancel_drains(draft: Draft, lack: int) -> int:
    """Instances that drain only because the group shrank are kept instead of making new ones, newest first."""
    cancelled = 0
    for instance in sorted(draft.members.values(), key=lambda m: m.id, reverse=True):
        if cancelled == lack:
            break
        drain = instance.drain
        if (
            instance.state is State.DRAINING
            and not instance.on_demand
            and drain is not None
            and drain.cause is Cause.SCALE_DOWN
            and not draft.not_running(instance)
            and not drifted(instance, draft.wish)
        ):
            leaving.cancel(draft, instance, "the group grew again before it was gone")
            cancelled += 1
    return cancelled


def _shrink(draft: Draft, able: list[Instance]) -> None:
    if not draft.view.listed:
        return
    reason = f"{places(able)} for {draft.size}"
    while places(able) > draft.size:
        instance = min(able, key=lambda m: _worth(draft, m))
        able.remove(instance)
        draft.reason(Code.SCALE_DOWN, reason, instance.id)
        leaving.leave(draft, instance, Cause.SCALE_DOWN, f"scale-down: {reason}")


def _worth(draft: Draft, instance: Instance) -> tuple[bool, bool, bool, InstanceId]:
    """Least worth keeping first: never registered, then suspect, then drifted, then oldest."""
    return (
        instance.state is State.RUNNING,
        not instance.suspect,
        not drifted(instance, draft.wish),
        instance.id,
    )


def drop_needless_newcomers(draft: Draft) -> None:
    """A replacement whose predecessor recovered is deleted; so is one that the configuration has overtaken."""
    if not draft.view.listed:
        return
    for newcomer in draft.capacity():
        old = draft.members.get(newcomer.replaces) if newcomer.replaces is not None else None
        overtaken = newcomer.state is not State.RUNNING and drifted(newcomer, draft.wish)
        if overtaken:
            message = "the configuration changed before it registered"
        elif old is not None and old.counts and newcomer.replaces_for is Cause.UNHEALTHY and is_sound(draft, old):
            message = f"{old.id}, which it was to replace, recovered"
        else:
            continue
        draft.reason(Code.SUPERSEDED, message, newcomer.id)
        leaving.leave(draft, newcomer, Cause.SUPERSEDED, message)


def replace_the_unfit(draft: Draft) -> None:
    """Involuntary replacements: all at once, each linked to the instance whose place it takes."""
    able = draft.capacity()
    replaced = {m.replaces for m in able}
    for instance in able:
        cause = needs_replacement(draft, instance)
        if cause is None:
            continue
        if instance.id not in replaced:
            creating.create(draft, cause, f"replaces {instance.id} ({cause.value})", replaces=instance)
        elif cause is Cause.FORCED_EXPIRY and _made(able, instance):
            message = "it is past its forced age and its replacement was made"
            draft.reason(Code.FORCED_EXPIRY, message, instance.id)
            leaving.leave(draft, instance, cause, message)


def _made(able: list[Instance], instance: Instance) -> bool:
    return any(m.replaces == instance.id and m.state is not State.PENDING for m in able)
