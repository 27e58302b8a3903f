"""Reads a shard's journal slot by slot, for people.

Unlike a server, it continues after a damaged slot, because a person wants to see the rest. It reports every damaged one.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from nstance.admin import errors, output
from nstance.admin.cluster import shards
from nstance.admin.cluster.storage import ClusterStorage, open_storage
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import errors as storage
from nstance.objects import journal, settle, slots

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DamagedSlot:
    """A damaged or missing slot."""

    number: int
    message: str


JournalSlot = slots.Slot | DamagedSlot


async def read(
    target: Target, shard: ShardId, *, start: int | None, limit: int | None, follow: bool
) -> AsyncGenerator[JournalSlot, None]:
    """From slot `start`, or the last ones; at most `limit` existing ones, then new ones."""
    async with open_storage(target) as place:
        reader = place.journal(shard)
        epoch = 0
        async for found in _read_slots(place, reader, shard, start=start, limit=limit, follow=follow):
            if isinstance(found, slots.Slot):
                if found.epoch < epoch:
                    yield DamagedSlot(
                        found.number, f"journal slot {found.number} has epoch {found.epoch} after {epoch}"
                    )
                epoch = max(epoch, found.epoch)
            yield found


async def _read_slots(
    place: ClusterStorage,
    reader: journal.Journal,
    shard: ShardId,
    *,
    start: int | None,
    limit: int | None,
    follow: bool,
) -> AsyncGenerator[JournalSlot, None]:
    wanted = await _numbers(place, reader, shard, start)
    if limit is not None:
        wanted = wanted[:limit] if start is not None else wanted[max(0, len(wanted) - limit) :]
    for first in range(0, len(wanted), journal.PARALLEL_READS):
        for found in await asyncio.gather(
            *(_read_wanted(reader, number) for number in wanted[first : first + journal.PARALLEL_READS])
        ):
            yield found
    if not follow:
        return
    last = wanted[-1] if wanted else (start or 1) - 1
    number = last.number if isinstance(last, DamagedSlot) else last
    while True:
        slot = await _read_next(reader, number + 1)
        if slot is None:
            await place.clock.sleep(POLL_SECONDS)
        else:
            number += 1
            yield slot


async def _numbers(
    place: ClusterStorage, reader: journal.Journal, shard: ShardId, start: int | None
) -> Sequence[int | DamagedSlot]:
    """A short gap in the listing is read, in case the listing lags. A long one is reported as damage."""
    listed = await reader.numbers(reader.journal_prefix, after=reader.slot_key(start - 1) if start else "")
    if not listed:
        await _check_shard(place, shard)
        return ()
    if start is not None and listed[0] > max(start, 1):
        output.note(f"slots before {listed[0]} were compacted into snapshots")
    wanted: list[int | DamagedSlot] = [listed[0]]
    for before, number in itertools.pairwise(listed):
        if number - before > journal.PARALLEL_READS:
            wanted.append(DamagedSlot(before + 1, f"journal slots {before + 1} to {number - 1} are missing"))
            wanted.append(number)
        else:
            wanted.extend(range(before + 1, number + 1))
    return wanted


async def _check_shard(place: ClusterStorage, shard: ShardId) -> None:
    if await settle.read(place.store, storage_keys.config(shard)) is None:
        known = ", ".join(await shards.names(place.store)) or "none"
        raise errors.CommandError(f"there is no shard {shard} in {place.store!r} (there are: {known})")


async def _read_wanted(reader: journal.Journal, wanted: int | DamagedSlot) -> JournalSlot:
    if isinstance(wanted, DamagedSlot):
        return wanted
    return await _read(reader, wanted) or DamagedSlot(wanted, f"journal slot {wanted} is missing")


async def _read_next(reader: journal.Journal, number: int) -> JournalSlot | None:
    """None if it does not exist yet, or the store does not answer."""
    try:
        return await _read(reader, number)
    except storage.UnavailableError as problem:
        output.note(f"{problem}; retrying")
        return None


async def _read(reader: journal.Journal, number: int) -> JournalSlot | None:
    try:
        return await reader.read(number)
    except slots.DamagedError as damage:
        return DamagedSlot(number, str(damage))
