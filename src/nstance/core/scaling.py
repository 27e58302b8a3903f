"""Bringing a group to its size.

A place is what the size counts. A newcomer that replaces an instance which is still there shares its place, so a
speculative replacement is never mistaken for a surplus. The trap: an instance whose creation is still unknown *is*
capacity; counting it as missing would make two.
"""

import heapq
from operator import attrgetter

from nstance.core import adopting, creating, draining, leaving, rotation
from nstance.core.draft import Draft, drifted
from nstance.model.decision import ReasonCode
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State

_Worth = tuple[bool, bool, bool, bool, InstanceId]


def grow(draft: Draft) -> None:
    lack = draft.size - draft.places()
    if lack > 0:
        lack -= draining.cancel_for_size(draft, lack)
    if lack > 0:
        lack = adopting.adopt_missing(draft, lack)
    vacancies = sorted((m for m in draft.needs_attention() if m.vacant), key=attrgetter("id"))
    if draft.places() >= draft.size:
        for vacancy in vacancies:  # filled just now, or not desired any more: what is made later is growth
            draft.change(vacancy, vacant=False)
        return
    have, size = draft.size - lack, draft.size
    lack = max(0, lack - rotation.places_still_taken(draft))
    for place in [*vacancies, *[None] * lack][:lack]:
        old = _predecessor(draft, place) if place is not None else None
        if old is None or old.cause is None:
            made = creating.create(draft, None, f"{have} of {size} are there")
        else:
            made = creating.create(draft, old.cause, f"replaces {old.id} ({old.cause.value})", predecessor=old)
        if made is None:
            return
        if place is not None:
            draft.change(place, vacant=False)


def _predecessor(draft: Draft, vacancy: Instance) -> Instance:
    """Whose place it is: of a replacement that never registered, the one that it was to replace."""
    seen = {vacancy.id}
    while vacancy.registered is None:
        before = vacancy.replaces or vacancy.predecessor
        old = draft.members.get(before) if before is not None and before not in seen else None
        if old is None:
            break
        seen.add(old.id)
        vacancy = old
    return vacancy


def shrink(draft: Draft) -> None:
    """Whole places go: with an instance also the newcomer that was to replace it, unless that one has registered."""
    places = draft.places()
    if places <= draft.size or not draft.may_delete:
        return
    reason = f"{places} for {draft.size}"
    replacements = draft.replacements()
    linked = {m.id for group in replacements.values() for m in group}
    heap = [(_worth(draft, m), m) for m in draft.capacity() if m.id not in linked]
    heapq.heapify(heap)
    while places > draft.size:
        _, instance = heapq.heappop(heap)
        places -= 1
        _send_away(draft, instance, reason)
        waiting = list(replacements.get(instance.id, ()))
        while waiting:
            replacement = waiting.pop()
            if replacement.state is State.RUNNING:
                places += 1
                replacement = draft.change(replacement, replaces=None, replaces_for=None)
                heapq.heappush(heap, (_worth(draft, replacement), replacement))
            else:
                _send_away(draft, replacement, reason)
                waiting += replacements.get(replacement.id, ())


def _send_away(draft: Draft, instance: Instance, reason: str) -> None:
    draft.reason(ReasonCode.SCALE_DOWN, reason, instance.id)
    # Without its link: should the group grow again, it comes back to a place of its own.
    instance = draft.change(instance, replaces=None, replaces_for=None)
    leaving.leave(draft, instance, Cause.SCALE_DOWN, f"scale-down: {reason}")


def _worth(draft: Draft, instance: Instance) -> _Worth:
    """Least worth keeping first: never registered, then suspect, then not ready, then drifted, then oldest."""
    return (
        instance.state is State.RUNNING,
        not instance.suspect,
        not draft.is_broken(instance),
        not drifted(instance, draft.desired),
        instance.id,
    )
