"""What each revision of a group is made of, kept in storage so that a group can be rolled back to it.

The configuration holds only the current revision. So the parts of a revision are stored while it is active, before a
rollout takes its first step. An object's key names its content, so it is written once and never changed. For each group
only the revisions in its record are kept.
"""

import asyncio
import logging
from collections.abc import Mapping

from nstance.config import revision_spec, storage_keys
from nstance.config.resolve import Resolved
from nstance.config.revision_spec import RevisionSpec
from nstance.model.ids import GroupKey
from nstance.model.rollout import Revision
from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.state.shard_parts import ShardParts
from nstance.server.waits import Waits

log = logging.getLogger(__name__)

STORE_SECONDS = 10.0
LIST_SECONDS = 60.0
CONCURRENT_WRITES = 8


class RevisionStore:
    """Of one shard during one term."""

    def __init__(self, shard: ShardParts, active_config: ActiveConfig, store: ObjectStore, waits: Waits) -> None:
        self._shard = shard
        self._name = active_config.shard
        self._store = store
        self._waits = waits
        self._active_config = active_config
        self._stored: dict[GroupKey, set[Key]] | None = None  # None: not listed yet
        self._unstored: set[GroupKey] = set()
        self._outdated: dict[Key, tuple[GroupKey, RevisionSpec]] = {}  # not stored while they were current
        self._wake = asyncio.Event()
        self.update()

    def is_stored(self, key: GroupKey) -> bool:
        """Whether the current revision of the group may be rolled out."""
        return key not in self._unstored

    def update(self, change: ConfigChange | None = None) -> None:
        """The configuration changed: what is not stored yet may not be rolled out."""
        if change is not None:
            self._keep_outdated(change)
        self._unstored = {key for key, each in self._groups().items() if not self._is_stored(key, each)}
        self._wake.set()

    def _keep_outdated(self, change: ConfigChange) -> None:
        """A revision may be replaced before it was stored; its instances, and a rollback, need it."""
        for key, before in change.before.groups.items():
            after = change.after.groups.get(key)
            if after is None or after is before or after.group.infra_hash == before.group.infra_hash:
                continue
            if not self._is_stored(key, before):
                self._outdated[self._key_of(key, before)] = key, before.spec

    def _groups(self) -> Mapping[GroupKey, Resolved]:
        return self._active_config.configuration.groups

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._shard.term.ready()
            try:
                if self._stored is None:
                    await self._list()
                await self._store_all()
            except (errors.StorageError, TimeoutError) as problem:
                log.warning("failed to store a group revision", extra={"error": str(problem) or "timed out"})
                await self._shard.clock.sleep(self._waits.revision_retry)
                self._wake.set()

    async def read(self, group: GroupKey, revision: Revision) -> RevisionSpec:
        """Raises storage errors, and ConfigError for an object that is not valid."""
        key = self._key(group, revision.infra_hash, revision.runtime_hash)
        async with asyncio.timeout(STORE_SECONDS):
            try:
                stored = await self._store.get(key)
            except errors.NotFoundError:
                # A leader may end before it has stored the newest files of a revision. Those that the revision had before
                # suit its instances, those of another revision do not.
                earlier = [other async for other in self._store.list(_of_any_files(key))]
                if not earlier:
                    raise
                key = earlier[-1]
                stored = await self._store.get(key)
        return revision_spec.parse(stored.body, source=key)

    async def _list(self) -> None:
        found: dict[GroupKey, set[Key]] = {}
        async with asyncio.timeout(LIST_SECONDS):
            async for key in self._store.list(storage_keys.revision_prefix(self._name)):
                group = storage_keys.group_of_revision(self._name, key)
                if group is not None:
                    found.setdefault(group, set()).add(key)
        self._stored = found
        before = self._unstored
        self.update()
        self._shard.inbox.look_again(sorted(before - self._unstored))
        for group in [group for group in found if group not in self._groups()]:
            await self._remove_old(group)

    async def _store_all(self) -> None:
        for key, (group, spec) in list(self._outdated.items()):
            await self._shard.term.ready()
            await self._write(key, group, spec)
            self._outdated.pop(key, None)
        waiting = [key for key in self._groups() if key in self._unstored]
        for start in range(0, len(waiting), CONCURRENT_WRITES):
            await self._shard.term.ready()
            await asyncio.gather(*(self._store_one(key) for key in waiting[start : start + CONCURRENT_WRITES]))

    async def _store_one(self, group: GroupKey) -> None:
        resolved = self._groups().get(group)
        if resolved is None or self._stored is None:
            return
        await self._write(self._key_of(group, resolved), group, resolved.spec)
        now = self._groups().get(group)
        if now is None or self._is_stored(group, now):
            self._unstored.discard(group)
            self._shard.inbox.look_again([group])
        await self._remove_old(group)

    async def _write(self, key: Key, group: GroupKey, spec: RevisionSpec) -> None:
        assert self._stored is not None
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._store.create(key, revision_spec.dump(spec))
        except errors.ConflictError:
            pass  # it has the same content, which its key names
        self._stored.setdefault(group, set()).add(key)

    async def _remove_old(self, group: GroupKey) -> None:
        """Remove revisions that the group cannot be rolled back to any more."""
        assert self._stored is not None
        record, resolved = self._shard.state.group_records.get(group), self._groups().get(group)
        kept = {self._key(group, r.infra_hash, r.runtime_hash) for r in (record.revisions if record else ())}
        if resolved is not None:
            kept.add(self._key_of(group, resolved))
        stored = self._stored.get(group, set())
        missing = tuple(map(_of_any_files, kept - stored))
        for key in sorted(key for key in stored - kept if not key.startswith(missing)):
            async with asyncio.timeout(STORE_SECONDS):
                await self._store.delete(key)
            self._stored[group].discard(key)

    def _is_stored(self, group: GroupKey, resolved: Resolved) -> bool:
        return self._stored is not None and self._key_of(group, resolved) in self._stored.get(group, ())

    def _key_of(self, group: GroupKey, resolved: Resolved) -> Key:
        return self._key(group, resolved.group.infra_hash, resolved.group.parts_hash)

    def _key(self, group: GroupKey, infra_hash: str, runtime_hash: str) -> Key:
        return storage_keys.revision(self._name, group, infra_hash=infra_hash, runtime_hash=runtime_hash)


def _of_any_files(key: Key) -> str:
    """The prefix of this and other objects of the same revision, which differ in files, vars and checks."""
    return key.removesuffix(".json").rpartition(".")[0] + "."
