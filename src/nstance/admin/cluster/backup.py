"""`cluster backup`: everything that Nstance keeps in a bucket, as of one slot of each shard's journal.

Groups and configuration are read before the journal, and read again if they changed meanwhile, so that they belong
together. The journal is read as a server would: a backup of a journal that nobody can lead on is refused. Sealed objects
stay sealed. The lease is left out: whoever restores starts a new one.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from nstance.admin import failures
from nstance.admin.cluster import archive, shards
from nstance.admin.cluster.archive import Manifest, ShardState, Writer
from nstance.admin.cluster.opened import Opened, opened
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import journal, settle, slots
from nstance.objects.port import Key
from nstance.secretstore import sealing

ATTEMPTS = 5
AT_ONCE = 32
LEFT_OUT = ".nstance/"  # what servers use to try out a store

Progress = Callable[[int, str], None]


async def backup(target: Target, path: Path, progress: Progress) -> tuple[Manifest, list[str]]:
    """Returns what is in the backup, and the keys of secrets that were left out because they are not encrypted."""
    async with opened(target) as place:
        taken = _Backup(place, progress)
        with archive.writing(path) as writer:
            cluster = str(await place.owner() or "")
            states = {str(name): await taken.shard(writer, name) for name in await shards.names(place.store)}
            await taken.others(writer, states)
            if not writer.objects:
                raise failures.Refused(
                    f"there is nothing of Nstance in {place.store!r}; check --storage-bucket and --prefix"
                )
            manifest = writer.finish(cluster=cluster, created=place.clock.wall(), shards=states)
        archive.verify(path)
        return manifest, taken.in_clear


class _Backup:
    def __init__(self, place: Opened, progress: Progress) -> None:
        self._place = place
        self._progress = progress
        self.in_clear: list[str] = []

    async def shard(self, writer: Writer, name: ShardId) -> ShardState:
        head = (storage_keys.config(name), storage_keys.groups(name))
        for _ in range(ATTEMPTS):
            before = [await settle.read(self._place.store, key) for key in head]
            book, read = await self._journal(name)
            after = [await settle.read(self._place.store, key) for key in head]
            if before == after:
                break
        else:
            raise failures.Refused(f"the groups of shard {name} change all the time; try again")
        for key, stored in zip(head, before, strict=True):
            if stored is not None:
                writer.add(key, stored.body)
        for slot, body in read.items():
            writer.add(slot, body)
        self._progress(len(writer.objects), f"shard {name}: journal up to slot {book.tail}")
        return ShardState(slot=book.tail, epoch=book.epoch, instances=len(book.instances))

    async def _journal(self, name: ShardId) -> tuple[journal.JournalState, dict[str, bytes]]:
        """The state, and the newest snapshot and the slots behind it that it follows from."""
        books = _Recording(self._place, name)
        try:
            book, alarms = await books.load()
        except slots.DamagedError as damage:
            raise failures.Refused(f"the journal of shard {name} cannot be backed up: {damage}") from damage
        for alarm in alarms:
            self._progress(0, f"shard {name}: {alarm}")
        wanted = {books.snapshot_key(book.snapshot)} if book.snapshot else set()
        wanted |= {books.slot_key(number) for number in range(book.snapshot + 1, book.tail + 1)}
        return book, {key: body for key, body in books.bodies.items() if key in wanted}

    async def others(self, writer: Writer, states: Iterable[str]) -> None:
        """The cluster's objects, the log of certificates, and whatever else is ours."""
        done = tuple(f"shard/{name}/{part}" for name in states for part in ("journal/", "snapshot/", "leader.json"))
        keys = [
            key
            async for key in self._place.store.list("")
            if storage_keys.is_ours(key, cluster=self._place.places.prefix)
            and not key.startswith((*done, LEFT_OUT))
            and key not in writer.objects
        ]
        for start in range(0, len(keys), AT_ONCE):
            part = keys[start : start + AT_ONCE]
            for key, stored in zip(part, await asyncio.gather(*map(self._read, part)), strict=True):
                if stored is None:
                    continue  # removed meanwhile
                if sealing.is_in_clear(stored) and not self._place.target.insecure_dev:
                    self.in_clear.append(key)
                else:
                    writer.add(key, stored)
            self._progress(len(writer.objects), f"{start + len(part)} of {len(keys)} other objects")

    async def _read(self, key: Key) -> bytes | None:
        stored = await settle.read(self._place.store, key)
        return stored.body if stored is not None else None


class _Recording(journal.Journal):
    """Remembers what it reads, byte by byte."""

    def __init__(self, place: Opened, name: ShardId) -> None:
        super().__init__(
            place.store,
            journal_prefix=storage_keys.journal_prefix(name),
            snapshot_prefix=storage_keys.snapshot_prefix(name),
            clock=place.clock,
        )
        self.bodies: dict[str, bytes] = {}

    async def fetch(self, key: Key, what: str, limit: int) -> bytes | None:
        body = await super().fetch(key, what, limit)
        if body is not None:
            self.bodies[key] = body
        return body
