"""`cluster restore`: writes a backup into a bucket, so that servers start from it.

The backup is verified before the first write and after the last one. In between, the lease demands a journal that is longer
than any: a server that is started too early refuses to lead instead of using half a journal. The new lease keeps the
highest epoch that was ever used, so that no epoch is used twice. Existing objects of the cluster stay: an operator that was
revoked since the backup stays revoked.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nstance.admin import errors
from nstance.admin.cluster import archive
from nstance.admin.cluster.archive import Manifest
from nstance.admin.cluster.storage import ClusterStorage, open_storage
from nstance.admin.options import Target
from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import lease, settle, slots
from nstance.objects.errors import ObjectTooLargeError
from nstance.objects.port import Key, Stored

UNREACHABLE_SLOT = 10**18
MARGIN_SECONDS = 1.0
PROGRESS_EVERY = 200  # objects

OnProgress = Callable[[int, str], None]  # objects done, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What the user explicitly allowed."""

    overwrite: bool = False  # replace shards that are in the bucket already
    running: bool = False  # although a server seems to lead one of them


@dataclass(slots=True)
class Outcome:
    manifest: Manifest
    written: int = 0
    same: int = 0
    removed: int = 0
    kept: list[str] = field(default_factory=list)  # the cluster's objects that the bucket has with other content


async def restore(target: Target, path: Path, permission: Permission, on_progress: OnProgress) -> Outcome:
    manifest = archive.verify(path)
    async with open_storage(target, create=True) as place:
        work = _Restore(place, manifest, permission, on_progress)
        leases = await work.check()
        blocked = {name: await work.block(name, seen) for name, seen in leases.items()}
        await work.write(path)
        await work.verify()
        for name, seen in blocked.items():
            await work.unblock(name, seen)
        return work.outcome


class _Restore:
    def __init__(
        self, place: ClusterStorage, manifest: Manifest, permission: Permission, on_progress: OnProgress
    ) -> None:
        self._place = place
        self._store = place.store
        self._manifest = manifest
        self._permission = permission
        self._on_progress = on_progress
        self.outcome = Outcome(manifest)

    async def check(self) -> dict[ShardId, Stored | None]:
        """Before anything is written. Returns the current leases."""
        owner = await self._place.owner()
        if owner is not None and self._manifest.cluster and owner != self._manifest.cluster:
            raise errors.CommandError(
                f"the backup is of cluster {self._manifest.cluster}, but {self._store!r} belongs to cluster {owner}"
            )
        await self._check_authority()
        leases = {}
        for name in map(ShardId, self._manifest.shards):
            if not self._permission.overwrite:
                async for key in self._store.list(f"shard/{name}/"):
                    raise errors.CommandError(
                        f"shard {name} is in {self._store!r} already (it has {key}); --overwrite replaces its state"
                    )
            leases[name] = await self._check_leader(name)
        return leases

    async def _check_authority(self) -> None:
        """Agents and servers trust the bucket's CA: a backup does not replace it."""
        key = storage_keys.ca_sealed(prefix=self._place.places.prefix)
        found, wanted = await settle.read(self._store, key), self._manifest.objects.get(key)
        if found is not None and wanted is not None and hashlib.sha256(found.body).hexdigest() != wanted:
            self._on_progress(0, f"{key} differs from the backup: the one in the bucket stays")

    async def _check_leader(self, name: ShardId) -> Stored | None:
        key = storage_keys.lease(name)
        found = await settle.read(self._store, key)
        if found is None or self._permission.running:
            return found
        try:
            held = lease.decode(found.body)
        except lease.BadLeaseError as problem:
            raise errors.CommandError(f"shard {name}: {problem}") from problem
        if not held.free:
            self._on_progress(
                0, f"shard {name}: waiting {held.length:.0f} s to see whether {held.holder.server} leads it"
            )
            await self._place.clock.sleep(held.length + MARGIN_SECONDS)
            now = await settle.read(self._store, key)
            if now is None or now.version != found.version:
                raise errors.CommandError(f"{held.holder.server} leads shard {name}: stop its servers first")
        return found

    async def block(self, name: ShardId, seen: Stored | None) -> Stored:
        """From now on no server can lead the shard."""
        return await self._write_lease(name, seen, tail=UNREACHABLE_SLOT)

    async def unblock(self, name: ShardId, seen: Stored) -> None:
        await self._write_lease(name, seen, tail=self._manifest.shards[name].slot)

    async def _write_lease(self, name: ShardId, seen: Stored | None, *, tail: int) -> Stored:
        state = self._manifest.shards[name]
        holder = lease.Holder(server="nstance-admin", incarnation=self._operation())
        written = lease.Lease(
            epoch=state.epoch, sequence=1, op=self._operation(), holder=holder, free=True, length=2.0, promise=2.2
        )
        if seen is not None:
            previous = lease.decode(seen.body)
            written = replace(
                written,
                epoch=max(previous.epoch, state.epoch),
                sequence=previous.sequence + 1,
                length=previous.length,
                promise=previous.promise,
            )
        body = lease.encode(replace(written, tail=tail))
        key = storage_keys.lease(name)
        if seen is None:
            stored = await settle.create_or_adopt(self._store, key, body)
            if stored.body != body:
                raise errors.CommandError(f"shard {name}: a server was started in the meantime; stop it and try again")
            return stored
        await settle.replace(self._store, key, body, seen=seen)
        replaced = await settle.read(self._store, key)
        assert replaced is not None
        return replaced

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
                self._on_progress(done, f"{done} of {total} objects")

    async def _put(self, key: Key, body: bytes) -> None:
        try:
            found = await settle.read(self._store, key, limit=archive.MAX_OBJECT_BYTES)
        except ObjectTooLargeError:
            if not key.startswith("shard/"):
                raise
            await settle.delete(self._store, key)  # it may be why the backup is restored
            found = None
        if found is not None and found.body == body:
            self.outcome.same += 1
        elif found is not None and not key.startswith("shard/"):
            self.outcome.kept.append(key)
        else:
            await settle.put(self._store, key, body, limit=archive.MAX_OBJECT_BYTES)
            self.outcome.written += 1

    async def _remove_newer(self) -> None:
        """Deletes journal, snapshots and groups that the backup does not have. The log of certificates stays."""
        for name in map(ShardId, self._manifest.shards):
            parts = (storage_keys.journal_prefix(name), storage_keys.snapshot_prefix(name), storage_keys.groups(name))
            for part in parts:
                for key in [key async for key in self._store.list(part)]:
                    if key not in self._manifest.objects:
                        await self._store.delete(key)
                        self.outcome.removed += 1

    async def verify(self) -> None:
        """Reads all objects back, and each journal as a server would."""
        kept = set(self.outcome.kept)
        for key, checksum in self._manifest.objects.items():
            stored = await settle.read(self._store, Key(key), limit=archive.MAX_OBJECT_BYTES)
            if key not in kept and (stored is None or hashlib.sha256(stored.body).hexdigest() != checksum):
                raise errors.CommandError(f"{key} has changed after it was written; restore again")
        for name, state in self._manifest.shards.items():
            try:
                found, _ = await self._place.journal(ShardId(name)).load()
            except slots.DamagedError as damage:
                raise errors.CommandError(f"the restored journal of shard {name} cannot be read: {damage}") from damage
            if found.tail != state.slot:
                raise errors.CommandError(
                    f"the restored journal of shard {name} ends at slot {found.tail}, expected {state.slot}"
                )
