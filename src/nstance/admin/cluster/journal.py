"""Reading a shard's journal slot by slot, for people.

Unlike a server this reader goes on behind a damaged slot, because a person wants to see what else there is; it never
hides one.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from nstance.admin import failures, output
from nstance.admin.cluster import shards
from nstance.admin.cluster.opened import Opened, opened
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import errors as storage
from nstance.objects import journal, settle, slots

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """A slot that is damaged or missing."""

    number: int
    message: str


Found = slots.Slot | Trouble


async def read(
    target: Target, shard: ShardId, *, start: int | None, limit: int | None, follow: bool
) -> AsyncGenerator[Found, None]:
    """From slot `start`, or the last ones; at most `limit` of those that are there, then what comes."""
    async with opened(target) as place:
        book = journal.Journal(
            place.store,
            journal_prefix=storage_keys.journal_prefix(shard),
            snapshot_prefix=storage_keys.snapshot_prefix(shard),
            clock=place.clock,
        )
        epoch = 0
        async for found in _all(place, book, shard, start=start, limit=limit, follow=follow):
            if isinstance(found, slots.Slot):
                if found.epoch < epoch:
                    yield Trouble(found.number, f"journal slot {found.number} has epoch {found.epoch} after {epoch}")
                epoch = max(epoch, found.epoch)
            yield found


async def _all(
    place: Opened, book: journal.Journal, shard: ShardId, *, start: int | None, limit: int | None, follow: bool
) -> AsyncGenerator[Found, None]:
    wanted = await _wanted(place, book, shard, start)
    if limit is not None:
        wanted = wanted[:limit] if start is not None else wanted[max(0, len(wanted) - limit) :]
    for first in range(0, len(wanted), journal.PARALLEL_READS):
        for found in await asyncio.gather(
            *(_slot(book, want) for want in wanted[first : first + journal.PARALLEL_READS])
        ):
            yield found
    if not follow:
        return
    last = wanted[-1] if wanted else (start or 1) - 1
    number = last.number if isinstance(last, Trouble) else last
    while True:
        coming = await _next(book, number + 1)
        if coming is None:
            await place.clock.sleep(POLL_SECONDS)
        else:
            number += 1
            yield coming


async def _wanted(place: Opened, book: journal.Journal, shard: ShardId, start: int | None) -> Sequence[int | Trouble]:
    """A slot that a listing lacks between others is asked for, in case the listing lags. A long gap is told at once."""
    listed = await book.numbers(book.journal_prefix, after=book.slot_key(start - 1) if start else "")
    if not listed:
        await _check_shard(place, shard)
        return ()
    if start is not None and listed[0] > max(start, 1):
        output.note(f"slots before {listed[0]} were removed: snapshots hold what they said")
    wanted: list[int | Trouble] = [listed[0]]
    for before, number in itertools.pairwise(listed):
        if number - before > journal.PARALLEL_READS:
            wanted.append(Trouble(before + 1, f"journal slots {before + 1} to {number - 1} are missing"))
            wanted.append(number)
        else:
            wanted.extend(range(before + 1, number + 1))
    return wanted


async def _check_shard(place: Opened, shard: ShardId) -> None:
    if await settle.read(place.store, storage_keys.config(shard)) is None:
        known = ", ".join(await shards.names(place.store)) or "none"
        raise failures.Refused(f"there is no shard {shard} in {place.store!r} (there are: {known})")


async def _slot(book: journal.Journal, wanted: int | Trouble) -> Found:
    if isinstance(wanted, Trouble):
        return wanted
    return await _read(book, wanted) or Trouble(wanted, f"journal slot {wanted} is missing")


async def _next(book: journal.Journal, number: int) -> Found | None:
    """None if it is not there yet, or the store does not answer: whoever follows is told, and goes on."""
    try:
        return await _read(book, number)
    except storage.UnavailableError as problem:
        output.note(f"{problem}; trying on")
        return None


async def _read(book: journal.Journal, number: int) -> Found | None:
    try:
        return await book.read(number)
    except slots.DamagedError as damage:
        return Trouble(number, str(damage))
