"""`cluster backup`: all of Nstance's objects in a bucket, as of one slot of each shard's journal.

Groups and configuration are read before and after the journal, and again if they changed, so that they match. The journal
is read as a server reads it: one that no server could use is not backed up. Encrypted objects stay encrypted. The lease is
left out: a restore writes a new one.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from nstance.admin import errors
from nstance.admin.cluster import archive, shards
from nstance.admin.cluster.archive import Manifest, ShardState, Writer
from nstance.admin.cluster.storage import ClusterStorage, open_storage
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import journal, settle, slots
from nstance.objects.port import Key
from nstance.secretstore import sealing

ATTEMPTS = 5
MAX_READS = 32  # at once
PROBE_PREFIX = ".nstance/"  # objects with which servers test a store

OnProgress = Callable[[int, str], None]  # objects done, text


async def backup(target: Target, path: Path, on_progress: OnProgress) -> tuple[Manifest, list[str]]:
    """Returns the manifest, and the keys of secrets that were left out because they are not encrypted."""
    async with open_storage(target) as place:
        work = _Backup(place, on_progress)
        with archive.writing(path) as writer:
            cluster = str(await place.owner() or "")
            states = {str(name): await work.add_shard(writer, name) for name in await shards.names(place.store)}
            await work.add_others(writer, states)
            if not writer.objects:
                raise errors.CommandError(
                    f"there are no objects of Nstance in {place.store!r}; check --storage-bucket and --prefix"
                )
            manifest = writer.finish(cluster=cluster, created=place.clock.wall(), shards=states)
        archive.verify(path)
        return manifest, work.unencrypted


class _Backup:
    def __init__(self, place: ClusterStorage, on_progress: OnProgress) -> None:
        self._place = place
        self._on_progress = on_progress
        self.unencrypted: list[str] = []

    async def add_shard(self, writer: Writer, name: ShardId) -> ShardState:
        head = (storage_keys.config(name), storage_keys.groups(name))
        for _ in range(ATTEMPTS):
            before = [await self._read(key) for key in head]
            state, bodies = await self._read_journal(name)
            after = [await self._read(key) for key in head]
            if before == after:
                break
        else:
            raise errors.CommandError(f"the groups of shard {name} keep changing; try again")
        for key, body in zip(head, before, strict=True):
            if body is not None:
                writer.add(key, body)
        for slot, body in bodies.items():
            writer.add(slot, body)
        self._on_progress(len(writer.objects), f"shard {name}: journal up to slot {state.tail}")
        return ShardState(slot=state.tail, epoch=state.epoch, instances=len(state.instances))

    async def _read_journal(self, name: ShardId) -> tuple[journal.JournalState, dict[str, bytes]]:
        """The state, and the newest snapshot with the slots after it."""
        recorder = _RecordingJournal(self._place, name)
        try:
            state, warnings = await recorder.load()
        except slots.DamagedError as damage:
            raise errors.CommandError(f"the journal of shard {name} cannot be backed up: {damage}") from damage
        for warning in warnings:
            self._on_progress(0, f"shard {name}: {warning}")
        wanted = {recorder.snapshot_key(state.snapshot)} if state.snapshot else set()
        wanted |= {recorder.slot_key(number) for number in range(state.snapshot + 1, state.tail + 1)}
        return state, {key: body for key, body in recorder.bodies.items() if key in wanted}

    async def add_others(self, writer: Writer, states: Iterable[str]) -> None:
        """The cluster's objects, the log of certificates, and all other objects of Nstance."""
        done = tuple(f"shard/{name}/{part}" for name in states for part in ("journal/", "snapshot/", "leader.json"))
        keys = [
            key
            async for key in self._place.store.list("")
            if storage_keys.is_ours(key, cluster=self._place.places.prefix)
            and not key.startswith((*done, PROBE_PREFIX))
            and key not in writer.objects
        ]
        for start in range(0, len(keys), MAX_READS):
            part = keys[start : start + MAX_READS]
            for key, stored in zip(part, await asyncio.gather(*map(self._read, part)), strict=True):
                if stored is None:
                    continue  # removed in the meantime
                if sealing.is_in_clear(stored) and not self._place.target.insecure_dev:
                    self.unencrypted.append(key)
                else:
                    writer.add(key, stored)
            self._on_progress(len(writer.objects), f"{start + len(part)} of {len(keys)} other objects")

    async def _read(self, key: Key) -> bytes | None:
        stored = await settle.read(self._place.store, key, limit=archive.MAX_OBJECT_BYTES)
        return stored.body if stored is not None else None


class _RecordingJournal(journal.Journal):
    """Keeps the bytes that it reads."""

    def __init__(self, place: ClusterStorage, name: ShardId) -> None:
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
