"""The only writer of `groups.jsonc`.

One task applies queued changes: those that wait together are checked one after the other and written as one file, on
condition that it still has the version that was read. If a person has edited the file meanwhile, it is read again and the
changes are applied again. A caller is answered when its change is stored and active; a caller that has disconnected
cancels nothing. The trap: the file belongs to all tenants, so its other problems are never shown to a caller.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

from grpclib.exceptions import GRPCError

from nstance.clock import Clock, Rng
from nstance.config import dynamic as dynamics
from nstance.config import resolve as resolving
from nstance.config import storage_keys
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.objects import errors, settle
from nstance.objects.port import ObjectStore, Stored, Version
from nstance.server.config import group_changes
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.state.shard import Shard
from nstance.wire import status

log = logging.getLogger(__name__)

Edit = Callable[[Settings, DynamicGroups], DynamicGroups]
"""Returns the changed groups or raises GRPCError. May be called several times."""

MAX_QUEUED_CHANGES = 1_000
MAX_CHANGES_PER_WRITE = 32
STORE_TIMEOUT_SECONDS = 10.0
MAX_ATTEMPTS = 4
RETRY_SECONDS = 0.2

NOT_LEADING = "this server may not be the leader any more, try again"


@dataclass(frozen=True, slots=True)
class _Change:
    edit: Edit
    who: str  # the operator, and the person it acts for
    answer: "asyncio.Future[Configuration]"


@dataclass(eq=False)
class GroupWriter:
    shard: Shard
    active_config: ActiveConfig
    _: KW_ONLY
    store: ObjectStore
    clock: Clock
    rng: Rng
    _queue: asyncio.Queue[_Change] = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED_CHANGES))

    def __post_init__(self) -> None:
        self._key = storage_keys.groups(self.active_config.shard)

    async def change(self, edit: Edit, *, who: str) -> Configuration:
        """Returns the changed configuration. Raises the errors of `edit`, UNAVAILABLE or RESOURCE_EXHAUSTED."""
        answer: asyncio.Future[Configuration] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(_Change(edit, who, answer))
        except asyncio.QueueFull:
            raise status.exhausted("too many changes of groups are waiting, try again") from None
        return await answer

    def preview(self, edit: Edit, *, of: Configuration | None = None) -> Configuration:
        """The changed configuration, without writing it. `of`: another one than the active one."""
        now = of or self.active_config.configuration
        return self._resolved(now, now.dynamic, edit(now.settings, now.dynamic), now.dynamic_version)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            changes = [await self._queue.get()]
            while len(changes) < MAX_CHANGES_PER_WRITE and not self._queue.empty():
                changes.append(self._queue.get_nowait())
            try:
                async with self.active_config.changing:
                    await self._write(changes)
            except GRPCError as error:
                _fail(changes, error)
            except (errors.StorageError, TimeoutError) as error:
                log.warning("failed to store groups", extra={"error": str(error) or "timed out"})
                _fail(changes, status.unavailable("failed to store the change for certain, try again"))
            except Exception as bug:
                log.exception("failed to change groups")
                _fail(changes, bug)

    async def _write(self, changes: list[_Change]) -> None:
        for _ in range(MAX_ATTEMPTS):
            self._check_leading()
            base, seen = await self._read()
            before = self.active_config.configuration
            wanted, accepted, authors = await self._apply(changes, before.settings, base)
            if not accepted:
                return
            version = seen
            if wanted != base:
                try:
                    version = await self._store_groups(wanted, seen)
                except errors.ConflictError:
                    continue
            found = before if seen == before.dynamic_version else self._with_groups(before, base, seen)
            after = self._resolved(found, base, wanted, version)
            for key in authors:
                if key not in after.groups:
                    self.shard.delete_group(key)  # decided together with its absence
            self.active_config.activate(after)
            self._record_changes(before, found, {})  # what a person wrote into the file
            self._record_changes(found, after, authors)
            for change in accepted:
                if not change.answer.done():
                    change.answer.set_result(after)
            return
        raise status.aborted("the groups are changed by somebody else at the same time, try again")

    async def _read(self) -> tuple[DynamicGroups, Version | None]:
        now = self.active_config.configuration
        try:
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                stored: Stored = await self.store.get(self._key, limit=dynamics.MAX_BYTES)
        except errors.NotFoundError:
            if now.dynamic_version is not None:  # a new file would delete all other groups
                log.error("groups file is missing", extra={"key": self._key})
                raise status.failed_precondition(
                    "the shard's groups.jsonc is missing: restore it before you change a group"
                ) from None
            return DynamicGroups(), None
        except errors.ObjectTooLargeError as error:
            raise self._invalid(error) from None
        if stored.version == now.dynamic_version:
            return now.dynamic, stored.version
        try:
            base = dynamics.parse(stored.body, source=self._key)
            problems = dynamics.check(now.settings, dynamics.prune(now.settings, base))
            if problems:
                raise ConfigError(tuple(problems))
        except ConfigError as error:
            raise self._invalid(error) from None
        return base, stored.version

    def _invalid(self, error: Exception) -> GRPCError:
        log.error("groups file is not valid: it was edited by hand", extra={"key": self._key, "error": str(error)})
        return status.failed_precondition("the shard's groups.jsonc is not valid: repair it before you change a group")

    async def _apply(
        self, changes: list[_Change], settings: Settings, base: DynamicGroups
    ) -> tuple[DynamicGroups, list[_Change], dict[GroupKey, list[str]]]:
        """The changed groups, the accepted changes, and the authors of each group's changes."""
        wanted, accepted = base, []
        authors: dict[GroupKey, list[str]] = {}
        for change in changes:
            if change.answer.done():  # rejected before, or its caller has disconnected
                continue
            try:
                before, wanted = wanted, change.edit(settings, wanted)
                accepted.append(change)
                for key in _changed(before, wanted):
                    authors.setdefault(key, []).append(change.who)
            except GRPCError as error:
                change.answer.set_exception(error)
            await asyncio.sleep(0)  # with many groups a check takes a while
        return wanted, accepted, authors

    async def _store_groups(self, wanted: DynamicGroups, seen: Version | None) -> Version:
        """Raises ConflictError, or another storage error if the outcome stays unknown."""
        operation = f"{self.shard.term.epoch}-{self.rng.bits(64):016x}"
        failures = 0

        async def retry(error: errors.StorageError) -> None:
            nonlocal failures
            failures += 1
            if failures >= MAX_ATTEMPTS:
                raise error
            await self.clock.sleep(RETRY_SECONDS)
            self._check_leading()

        body = dynamics.dump(wanted, operation=operation).encode()
        intended = settle.ConditionalWrite(key=self._key, body=body, op=None, seen=seen, limit=dynamics.MAX_BYTES)
        return await settle.write(self.store, intended, timeout=lambda: STORE_TIMEOUT_SECONDS, retry=retry)

    def _check_leading(self) -> None:
        if not self.shard.term.leading():
            raise status.unavailable(NOT_LEADING)

    def _with_groups(self, now: Configuration, found: DynamicGroups, version: Version | None) -> Configuration:
        """The configuration with groups that somebody else wrote."""
        return replace(
            now, dynamic=found, groups=resolving.resolve_groups(now.settings, found), dynamic_version=version
        )

    def _resolved(
        self, now: Configuration, base: DynamicGroups, wanted: DynamicGroups, version: Version | None
    ) -> Configuration:
        """The configuration with these groups. They were checked; only changed ones are resolved again."""
        groups = dict(now.groups)
        for key in _changed(base, wanted):
            group = wanted.groups.get(key)
            if group is not None or key in now.settings.groups:
                groups[key] = resolving.resolve_group(now.settings, key, group)
            else:
                groups.pop(key, None)
        return replace(now, dynamic=wanted, groups=groups, dynamic_version=version)

    def _record_changes(
        self, before: Configuration, after: Configuration, authors: Mapping[GroupKey, list[str]]
    ) -> None:
        if before is after:
            return
        for key, message in group_changes.changes(
            before, after, lambda key: ", ".join(dict.fromkeys(authors.get(key, ())))
        ):
            self.shard.event_log.record(key, ReasonCode.CONFIG, message)


def _changed(before: DynamicGroups, after: DynamicGroups) -> list[GroupKey]:
    old, new = before.groups, after.groups
    return [key for key in {**old, **new} if old.get(key) is not new.get(key) and old.get(key) != new.get(key)]


def _fail(changes: list[_Change], error: Exception) -> None:
    for change in changes:
        if not change.answer.done():
            change.answer.set_exception(error)


def resolve_group(settings: Settings, dynamic: DynamicGroups, key: GroupKey) -> resolving.Resolved | None:
    """None if there is no such group."""
    group = dynamic.groups.get(key)
    if key not in settings.groups and (group is None or group.template is None):
        return None
    return resolving.resolve_group(settings, key, group)
