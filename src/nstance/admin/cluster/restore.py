"""`cluster restore`: put a backup into a bucket, so that servers start from it.

Everything is verified before the first write and after the last one. While it is under way the lease demands a journal
that is longer than any: a server that is started too early refuses to lead instead of leading on half a journal. The new
lease keeps the highest epoch that was ever used, so that no epoch is used twice. The cluster's objects that are there
already stay (an operator that was revoked since the backup stays revoked).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nstance.admin import failures
from nstance.admin.cluster import archive
from nstance.admin.cluster.archive import Manifest
from nstance.admin.cluster.opened import Opened, opened
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import journal, lease, settle, slots
from nstance.objects.port import Key, Stored

NEVER_REACHED = 10**18  # slots
MARGIN_SECONDS = 1.0
PROGRESS_EVERY = 200  # objects

Progress = Callable[[int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What the person has allowed beyond the usual."""

    overwrite: bool = False  # the shards of the backup are in the bucket already
    running: bool = False  # a server seems to lead one of them


@dataclass(slots=True)
class Outcome:
    manifest: Manifest
    written: int = 0
    same: int = 0
    removed: int = 0
    kept: list[str] = field(default_factory=list)  # the cluster's objects that are there with another content


async def restore(target: Target, path: Path, allowed: Permission, progress: Progress) -> Outcome:
    manifest = archive.verify(path)
    async with opened(target, create=True) as place:
        work = _Restore(place, manifest, allowed, progress)
        leases = await work.check()
        blocked = {name: await work.block(name, seen) for name, seen in leases.items()}
        await work.write(path)
        await work.verify()
        for name, seen in blocked.items():
            await work.unblock(name, seen)
        return work.outcome


class _Restore:
    def __init__(self, place: Opened, manifest: Manifest, allowed: Permission, progress: Progress) -> None:
        self._place = place
        self._store = place.store
        self._manifest = manifest
        self._allowed = allowed
        self._progress = progress
        self.outcome = Outcome(manifest)

    async def check(self) -> dict[ShardId, Stored | None]:
        """Refuse before anything is written. Returns the leases as they are."""
        owner = await self._place.owner()
        if owner is not None and self._manifest.cluster and owner != self._manifest.cluster:
            raise failures.Refused(
                f"the backup is of cluster {self._manifest.cluster}, but {self._store!r} belongs to cluster {owner}"
            )
        await self._check_authority()
        leases = {}
        for name in map(ShardId, self._manifest.shards):
            if not self._allowed.overwrite:
                async for key in self._store.list(f"shard/{name}/"):
                    raise failures.Refused(
                        f"shard {name} is in {self._store!r} already (there is {key}); --overwrite replaces its state"
                    )
            leases[name] = await self._check_leader(name)
        return leases

    async def _check_authority(self) -> None:
        """Agents and servers trust one CA: a backup does not take another one's place."""
        key = storage_keys.ca_sealed(prefix=self._place.places.prefix)
        found, wanted = await settle.read(self._store, key), self._manifest.objects.get(key)
        if found is not None and wanted is not None and hashlib.sha256(found.body).hexdigest() != wanted:
            self._progress(0, f"{key} is another one than in the backup: the one in the bucket stays")

    async def _check_leader(self, name: ShardId) -> Stored | None:
        key = storage_keys.lease(name)
        found = await settle.read(self._store, key)
        if found is None or self._allowed.running:
            return found
        try:
            held = lease.decode(found.body)
        except lease.BadLeaseError as problem:
            raise failures.Refused(f"shard {name}: {problem}") from problem
        if not held.free:
            self._progress(0, f"shard {name}: waiting {held.length:.0f} s to see whether {held.holder.server} leads it")
            await self._place.clock.sleep(held.length + MARGIN_SECONDS)
            now = await settle.read(self._store, key)
            if now is None or now.version != found.version:
                raise failures.Refused(f"{held.holder.server} leads shard {name}: stop its servers first")
        return found

    async def block(self, name: ShardId, seen: Stored | None) -> Stored:
        """From here on no server can lead the shard."""
        return await self._write_lease(name, seen, tail=NEVER_REACHED)

    async def unblock(self, name: ShardId, seen: Stored) -> None:
        await self._write_lease(name, seen, tail=self._manifest.shards[name].slot)

    async def _write_lease(self, name: ShardId, seen: Stored | None, *, tail: int) -> Stored:
        state = self._manifest.shards[name]
        holder = lease.Holder(server="nstance-admin", incarnation=self._operation())
        made = lease.Lease(
            epoch=state.epoch, sequence=1, op=self._operation(), holder=holder, free=True, length=2.0, promise=2.2
        )
        if seen is not None:
            known = lease.decode(seen.body)
            made = replace(
                made,
                epoch=max(known.epoch, state.epoch),
                sequence=known.sequence + 1,
                length=known.length,
                promise=known.promise,
            )
        body = lease.encode(replace(made, tail=tail))
        key = storage_keys.lease(name)
        if seen is None:
            stored = await settle.create_or_adopt(self._store, key, body)
            if stored.body != body:
                raise failures.Refused(f"shard {name}: a server was started meanwhile; stop it and try again")
            return stored
        await settle.replace(self._store, key, body, seen=seen)
        stored_now = await settle.read(self._store, key)
        assert stored_now is not None
        return stored_now

    def _operation(self) -> str:
        return f"{self._place.rng.bits(96):024x}"

    async def write(self, path: Path) -> None:
        await self._remove_newer()
        total = len(self._manifest.objects)
        done = 0
        for key, body in archive.bodies(path):
            if key == archive.MANIFEST:
                continue
            await self._put(Key(key), body)
            done += 1
            if done % PROGRESS_EVERY == 0 or done == total:
                self._progress(done, f"{done} of {total} objects")

    async def _put(self, key: Key, body: bytes) -> None:
        found = await settle.read(self._store, key)
        if found is not None and found.body == body:
            self.outcome.same += 1
        elif found is not None and not key.startswith("shard/"):
            self.outcome.kept.append(key)
        else:
            await settle.put(self._store, key, body)
            self.outcome.written += 1

    async def _remove_newer(self) -> None:
        """Journal, snapshots and groups that the backup does not have. The log of certificates stays."""
        for name in map(ShardId, self._manifest.shards):
            parts = (storage_keys.journal_prefix(name), storage_keys.snapshot_prefix(name), storage_keys.groups(name))
            for part in parts:
                for key in [key async for key in self._store.list(part)]:
                    if key not in self._manifest.objects:
                        await self._store.delete(key)
                        self.outcome.removed += 1

    async def verify(self) -> None:
        """Read everything back, and each journal as a server would."""
        kept = set(self.outcome.kept)
        for key, checksum in self._manifest.objects.items():
            found = await settle.read(self._store, Key(key))
            if key not in kept and (found is None or hashlib.sha256(found.body).hexdigest() != checksum):
                raise failures.Refused(f"{key} is not what was written; restore again")
        for name, state in self._manifest.shards.items():
            shard = ShardId(name)
            books = journal.Journal(
                self._store,
                journal_prefix=storage_keys.journal_prefix(shard),
                snapshot_prefix=storage_keys.snapshot_prefix(shard),
                clock=self._place.clock,
            )
            try:
                book, _ = await books.load()
            except slots.DamagedError as damage:
                raise failures.Refused(f"the restored journal of shard {name} cannot be read: {damage}") from damage
            if book.tail != state.slot:
                raise failures.Refused(
                    f"the restored journal of shard {name} ends at slot {book.tail}, not {state.slot}"
                )
