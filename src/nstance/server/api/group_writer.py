"""The one writer of `groups.jsonc`.

Changes wait in a queue and are applied by one task: those that came together are checked one after the other and written
as one file, conditionally on the version that was read. A person may edit the file at the same time; then it is read
again and the changes are applied anew. A caller is answered when its change is durable and the shard has been told, and
neither depends on whether the caller is still there. The trap: the file belongs to all tenants, so what is wrong in it
elsewhere is never shown to a caller.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from grpclib.exceptions import GRPCError

from nstance.clock import Clock, Rng
from nstance.config import dynamic as dynamics
from nstance.config import resolve as resolving
from nstance.config import storage_keys
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, OperatorId
from nstance.objects import errors, settle
from nstance.objects.port import ObjectStore, Stored, Version
from nstance.server.config import group_changes
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.state.shard import Shard
from nstance.wire import status

log = logging.getLogger(__name__)

Edit = Callable[[Settings, DynamicGroups], DynamicGroups]
"""The groups as they shall be. Refuses with a GRPCError; may be asked several times."""

MAX_WAITING = 1_000
AT_ONCE = 32  # changes in one write
STORE_SECONDS = 10.0
ATTEMPTS = 4
PAUSE_SECONDS = 0.2

NOT_LEADING = "this server is not sure that it leads, try again"


@dataclass(frozen=True, slots=True)
class _Change:
    edit: Edit
    who: OperatorId
    answer: "asyncio.Future[Configuration]"


class GroupWriter:
    def __init__(
        self,
        shard: Shard,
        active_config: ActiveConfig,
        *,
        store: ObjectStore,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._shard = shard
        self._active_config = active_config
        self._store = store
        self._key = storage_keys.groups(active_config.shard)
        self._clock = clock
        self._rng = rng
        self._queue: asyncio.Queue[_Change] = asyncio.Queue(MAX_WAITING)

    async def change(self, edit: Edit, *, who: OperatorId) -> Configuration:
        """The configuration with the change in it. Raises what `edit` refuses with, UNAVAILABLE, RESOURCE_EXHAUSTED."""
        answer: asyncio.Future[Configuration] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Change(edit, who, answer))
        except asyncio.QueueFull:
            raise status.exhausted("too many groups are being changed, try again") from None
        return await answer

    def preview(self, edit: Edit) -> Configuration:
        """The configuration as it would be. Nothing is written."""
        now = self._active_config.configuration
        return self._resolved(now, now.dynamic, edit(now.settings, now.dynamic), now.dynamic_version)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            changes = [await self._queue.get()]
            while len(changes) < AT_ONCE and not self._queue.empty():
                changes.append(self._queue.get_nowait())
            try:
                async with self._active_config.changing:
                    await self._write(changes)
            except GRPCError as refusal:
                _refuse(changes, refusal)
            except (errors.StorageError, TimeoutError) as problem:
                log.warning("groups could not be changed", extra={"error": str(problem) or "timed out"})
                _refuse(changes, status.unavailable("the change could not be stored for certain, ask again"))
            except Exception as bug:
                log.exception("groups could not be changed")
                _refuse(changes, bug)

    async def _write(self, changes: list[_Change]) -> None:
        for _ in range(ATTEMPTS):
            self._check_leading()
            base, seen = await self._read()
            before = self._active_config.configuration
            wanted, accepted, authors = await self._apply(changes, before.settings, base)
            if not accepted:
                return
            version = seen
            if wanted != base:
                try:
                    version = await self._store_groups(wanted, seen)
                except errors.ConflictError:
                    continue
            found = before if seen == before.dynamic_version else self._read_anew(before, base, seen)
            after = self._resolved(found, base, wanted, version)
            for key in authors:
                if key not in after.groups:
                    self._shard.delete_group(key)  # decided together with its absence
            self._active_config.activate(after)
            self._tell(before, found, {})  # what a person wrote into the file
            self._tell(found, after, authors)
            for change in accepted:
                if not change.answer.done():
                    change.answer.set_result(after)
            return
        raise status.aborted("the groups are being changed by somebody else all the time, try again")

    async def _read(self) -> tuple[DynamicGroups, Version | None]:
        now = self._active_config.configuration
        try:
            async with asyncio.timeout(STORE_SECONDS):
                stored: Stored = await self._store.get(self._key, limit=dynamics.MAX_BYTES)
        except errors.NotFoundError:
            if now.dynamic_version is not None:  # without it, everybody's other groups would be gone with this change
                log.error("%s was there before and is missing", self._key)
                raise status.failed_precondition(
                    "the shard's file of groups is lost, no group can be changed until somebody puts it back"
                ) from None
            return DynamicGroups(), None
        if stored.version == now.dynamic_version:
            return now.dynamic, stored.version
        try:
            base = dynamics.parse(stored.body, source=self._key)
            problems = dynamics.check(now.settings, dynamics.prune(now.settings, base))
            if problems:
                raise ConfigError(tuple(problems))
        except ConfigError as problem:
            log.error("%s was changed by hand and is not valid:\n%s", self._key, problem)
            raise status.failed_precondition(
                "the shard's file of groups is not valid, no group can be changed until somebody repairs it"
            ) from None
        return base, stored.version

    async def _apply(
        self, changes: list[_Change], settings: Settings, base: DynamicGroups
    ) -> tuple[DynamicGroups, list[_Change], dict[GroupKey, list[OperatorId]]]:
        """The groups as they shall be, the changes that are in them, and who changed which."""
        wanted, accepted = base, []
        authors: dict[GroupKey, list[OperatorId]] = {}
        for change in changes:
            if change.answer.done():  # refused before, or nobody waits and nothing was begun
                continue
            try:
                before, wanted = wanted, change.edit(settings, wanted)
                accepted.append(change)
                for key in _changed(before, wanted):
                    authors.setdefault(key, []).append(change.who)
            except GRPCError as refusal:
                change.answer.set_exception(refusal)
            await asyncio.sleep(0)  # each check takes a while when there are many groups
        return wanted, accepted, authors

    async def _store_groups(self, wanted: DynamicGroups, seen: Version | None) -> Version:
        """Raises Conflict, and storage errors when the outcome stays unknown."""
        operation = f"{self._shard.term.epoch}-{self._rng.bits(64):016x}"
        failures = 0

        async def retry(problem: errors.StorageError) -> None:
            nonlocal failures
            failures += 1
            if failures >= ATTEMPTS:
                raise problem
            await self._clock.sleep(PAUSE_SECONDS)
            self._check_leading()

        body = dynamics.dump(wanted, operation=operation).encode()
        intended = settle.ConditionalWrite(key=self._key, body=body, op=None, seen=seen, limit=dynamics.MAX_BYTES)
        return await settle.write(self._store, intended, timeout=lambda: STORE_SECONDS, retry=retry)

    def _check_leading(self) -> None:
        if not self._shard.term.leading():
            raise status.unavailable(NOT_LEADING)

    def _read_anew(self, now: Configuration, found: DynamicGroups, version: Version | None) -> Configuration:
        """With the dynamic groups as somebody else left them."""
        return replace(
            now, dynamic=found, groups=resolving.resolve_groups(now.settings, found), dynamic_version=version
        )

    def _resolved(
        self, now: Configuration, base: DynamicGroups, wanted: DynamicGroups, version: Version | None
    ) -> Configuration:
        """With these dynamic groups. Each was checked; only what differs is worked out anew."""
        groups = dict(now.groups)
        for key in _changed(base, wanted):
            told = wanted.groups.get(key)
            if told is not None or key in now.settings.groups:
                groups[key] = resolving.resolve_group(now.settings, key, told)
            else:
                groups.pop(key, None)
        return replace(now, dynamic=wanted, groups=groups, dynamic_version=version)

    def _tell(self, before: Configuration, after: Configuration, authors: Mapping[GroupKey, list[OperatorId]]) -> None:
        if before is after:
            return
        for key, what in group_changes.changes(
            before, after, lambda key: ", ".join(dict.fromkeys(authors.get(key, ())))
        ):
            self._shard.event_log.record(key, ReasonCode.CONFIG, what)


def _changed(before: DynamicGroups, after: DynamicGroups) -> list[GroupKey]:
    old, new = before.groups, after.groups
    return [key for key in {**old, **new} if old.get(key) is not new.get(key) and old.get(key) != new.get(key)]


def _refuse(changes: list[_Change], problem: Exception) -> None:
    for change in changes:
        if not change.answer.done():
            change.answer.set_exception(problem)


def mine(settings: Settings, dynamic: DynamicGroups, key: GroupKey) -> resolving.Resolved | None:
    """The group as it is in these groups, or None."""
    told = dynamic.groups.get(key)
    if key not in settings.groups and (told is None or told.template is None):
        return None
    return resolving.resolve_group(settings, key, told)
