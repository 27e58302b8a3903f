"""Bringing a group to its size.

A place is what the size counts. A newcomer that replaces an instance which is still there shares its place, so a
speculative replacement is never mistaken for a surplus. The trap: an instance whose creation is still unknown *is*
capacity; counting it as missing would make two.
"""

import heapq

from nstance.core import creating, draining, leaving
from nstance.core.draft import Draft, drifted
from nstance.model.decision import Code
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State

_Worth = tuple[bool, bool, bool, InstanceId]


def grow(draft: Draft) -> None:
    lack = draft.size - draft.places()
    if lack <= 0:
        return
    lack -= draining.cancel_for_size(draft, lack)
    have, size = draft.size - lack, draft.size
    for _ in range(lack):
        if creating.create(draft, None, f"{have} of {size} are there") is None:
            return


def shrink(draft: Draft) -> None:
    """Whole places go: with an instance also the newcomer that was to replace it, unless that one has registered."""
    places = draft.places()
    if places <= draft.size or not draft.may_delete:
        return
    reason = f"{places} for {draft.size}"
    newcomers = draft.newcomers()
    linked = {m.id for group in newcomers.values() for m in group}
    heap = [(_worth(draft, m), m) for m in draft.capacity() if m.id not in linked]
    heapq.heapify(heap)
    while places > draft.size:
        _, instance = heapq.heappop(heap)
        places -= 1
        _send_away(draft, instance, reason)
        waiting = list(newcomers.get(instance.id, ()))
        while waiting:
            newcomer = waiting.pop()
            if newcomer.state is State.RUNNING:
                places += 1
                newcomer = draft.change(newcomer, replaces=None, replaces_for=None)
                heapq.heappush(heap, (_worth(draft, newcomer), newcomer))
            else:
                _send_away(draft, newcomer, reason)
                waiting += newcomers.get(newcomer.id, ())


def _send_away(draft: Draft, instance: Instance, reason: str) -> None:
    draft.reason(Code.SCALE_DOWN, reason, instance.id)
    # Without its link: should the group grow again, it comes back to a place of its own.
    instance = draft.change(instance, replaces=None, replaces_for=None)
    leaving.leave(draft, instance, Cause.SCALE_DOWN, f"scale-down: {reason}")


def _worth(draft: Draft, instance: Instance) -> _Worth:
    """Least worth keeping first: never registered, then suspect, then drifted, then oldest."""
    return (
        instance.state is State.RUNNING,
        not instance.suspect,
        not drifted(instance, draft.wish),
        instance.id,
    )
