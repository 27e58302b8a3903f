"""Bring a group to its size.

The size counts places. A replacement shares the place of the instance that it replaces, so it is never mistaken for a
surplus. An instance whose creation has an unknown outcome counts too: treating it as missing would create two.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from nstance.core import adopting, creating, draining, leaving, rotation
from nstance.core.draft import Draft, drifted
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State


def scale_up(draft: Draft) -> None:
    missing = draft.size - draft.count_places()
    if missing > 0:
        missing -= draining.cancel_for_size(draft, missing)
    if missing > 0:
        missing = max(0, missing - rotation.count_occupied_places(draft))
    if missing > 0:
        missing = adopting.adopt_missing(draft, missing)
    vacancies = sorted((m for m in draft.needs_attention() if m.vacant), key=lambda m: _urgency(draft, m))
    if draft.count_places() >= draft.size:
        for vacancy in vacancies:  # filled just now, or no longer wanted: later instances are growth
            draft.put(replace(vacancy, vacant=False))
        return
    message = f"scaling up: {draft.count_places()} of {draft.size} instances running"
    for place in [*vacancies, *[None] * missing][:missing]:
        old = _find_predecessor(draft, place) if place is not None else None
        if old is None or old.cause is None:
            created = creating.create_instance(draft, None, message)
        else:
            why = f"replacing {old.id}: {old.cause.value}"
            created = creating.create_instance(draft, old.cause, why, predecessor=old)
        if created is None:
            return
        if place is not None:
            draft.put(replace(place, vacant=False))


def _urgency(draft: Draft, vacancy: Instance) -> tuple[bool, InstanceId]:
    """Losses first: they may be filled where the others have to wait."""
    return _find_predecessor(draft, vacancy).cause in creating.CAN_WAIT, vacancy.id


def _find_predecessor(draft: Draft, vacancy: Instance) -> Instance:
    """Whose place it is: for a replacement that never registered, the instance that it was to replace."""
    seen = {vacancy.id}
    while vacancy.registered is None:
        before = vacancy.replaces or vacancy.predecessor
        old = draft.members.get(before) if before is not None and before not in seen else None
        if old is None:
            break
        seen.add(old.id)
        vacancy = old
    return vacancy


def scale_down(draft: Draft) -> None:
    """Free whole places: with an instance goes its replacement, unless that one has registered."""
    places = draft.count_places()
    if places <= draft.size or not draft.can_delete:
        return
    message = f"scaling down: {places} instances, desired size is {draft.size}"
    replacements = draft.replacements()
    linked = {m.id for group in replacements.values() for m in group}
    chosen = _chosen_ranks(draft, replacements)
    heap = [(_rank(draft, m, chosen), m) for m in draft.capacity() if m.id not in linked]
    heapq.heapify(heap)
    while places > draft.size:
        _, instance = heapq.heappop(heap)
        places -= 1
        _remove_surplus(draft, instance, message)
        waiting = list(replacements.get(instance.id, ()))
        while waiting:
            replacement = waiting.pop()
            if replacement.state is State.RUNNING:
                places += 1
                replacement = draft.put(replace(replacement, replaces=None, replaces_for=None))
                heapq.heappush(heap, (_rank(draft, replacement, chosen), replacement))
            else:
                _remove_surplus(draft, replacement, message)
                waiting += replacements.get(replacement.id, ())


def _remove_surplus(draft: Draft, instance: Instance, message: str) -> None:
    # Without its link: if the group grows again, it gets a place of its own.
    instance = draft.put(replace(instance, replaces=None, replaces_for=None))
    leaving.remove_instance(draft, instance, Cause.SCALE_DOWN, message)


def _chosen_ranks(draft: Draft, replacements: Mapping[InstanceId, Sequence[Instance]]) -> dict[InstanceId, int]:
    """The chosen instances with their ranks. An instance shares its place with its replacement: if that one is chosen, the
    place is."""
    ranks = {m.id: m.removal_rank for m in draft.capacity() if m.removal_rank is not None}
    for id, group in replacements.items():
        if found := [m.removal_rank for m in group if m.removal_rank is not None]:
            ranks[id] = min([*found, ranks.get(id, found[0])])
    return ranks


def _rank(
    draft: Draft, instance: Instance, chosen: Mapping[InstanceId, int]
) -> tuple[float, bool, bool, bool, bool, InstanceId]:
    """Sorts the first to be removed first: chosen by a caller, then never registered, suspect, unready, drifted, oldest."""
    return (
        chosen.get(instance.id, inf),
        instance.state is State.RUNNING,
        not instance.suspect,
        not draft.is_unready(instance),
        not drifted(instance, draft.desired),
        instance.id,
    )
