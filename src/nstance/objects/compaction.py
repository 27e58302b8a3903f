"""Removing old journal slots and snapshots.

Slots are removed only if they lie before the last two snapshots and are older than seven days: a removed slot is free
again, and a leader that was frozen for long must not find it so.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nstance import points
from nstance.objects import slots

if TYPE_CHECKING:
    from nstance.objects.journal import Journal


async def compact(journal: "Journal", *, guard: Callable[[], Awaitable[None]], compacted: int) -> int:
    """Returns the snapshot before which everything is removed; `compacted` is the result of the last call."""
    numbers = await journal.numbers(journal.snapshot_prefix)
    horizon = await _horizon(journal, numbers, compacted)
    if horizon <= compacted:
        return compacted
    await points.reach(points.Point.BEFORE_COMPACTION)
    slot_numbers = await journal.numbers(journal.journal_prefix)
    # Oldest first, so that a crash never leaves a gap in what remains.
    for key_of, listed in ((journal.slot_key, slot_numbers), (journal.snapshot_key, numbers)):
        for number in listed:
            if number >= horizon:
                break
            await guard()
            await journal.store.delete(key_of(number))
    return horizon


async def _horizon(journal: "Journal", numbers: list[int], compacted: int) -> int:
    """The newest readable snapshot that is old enough, the last one excepted. Oldest first, so that of a week's snapshots
    only the old ones are read."""
    horizon = 0
    for number in numbers[:-1]:
        try:
            body = await journal.snapshot(number)
            if body is None:
                continue
            if slots.claimed_time(number, body) > journal.clock.steady() - journal.limits.keep_seconds:
                break
            if number > compacted:
                slots.decode_snapshot(number, body)  # it must be readable before older slots are removed
            horizon = number
        except slots.DamagedError:
            continue
    return horizon
