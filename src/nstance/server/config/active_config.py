"""The active configuration, and how a newer one replaces it.

The newest valid one is active; what is wrong with a newer one is kept for people. Leader and standby check storage now and
then, the leader also when an operator asks for it. The trap: between reading a configuration and activating it another one
may be written, so the lock `changing` is held for both.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.config import storage_keys
from nstance.config.errors import Problem
from nstance.config.model.shard import ShardConfig
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore, Version
from nstance.server.config import configuration as configurations
from nstance.server.config.configuration import Configuration, NoConfigurationError
from nstance.server.election.term import Term

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
HEAD_SECONDS = 30.0
BEGIN_PAUSES = (0.1, 0.3, 1.0)  # between attempts to read what a term begins with


@dataclass(frozen=True, slots=True)
class ConfigChange:
    before: Configuration
    after: Configuration
    author: str = ""  # which file was edited; empty: the API, which records who changed what


ConfigListener = Callable[[ConfigChange], None]


class ActiveConfig:
    """Of one server, whether it leads or not."""

    def __init__(self, configuration: Configuration, *, store: ObjectStore, shard: ShardId, clock: Clock) -> None:
        self.configuration = configuration  # the newest valid one
        self.booted = configuration  # the one that the process started with
        self.is_readable = True  # whether storage answered the last time
        self.rejection = ""  # why a newer one was rejected
        self.problems: tuple[Problem, ...] = ()  # of that one
        self.changing = asyncio.Lock()  # held while the configuration is being changed
        self.shard = shard
        self._store = store
        self._clock = clock
        self._listeners: list[ConfigListener] = []

    @property
    def shard_settings(self) -> ShardConfig:
        return self.configuration.settings.shard

    def subscribe(self, *listeners: ConfigListener) -> None:
        """They are called after each change, in this order, until the term ends."""
        self._listeners += listeners

    def end_term(self) -> None:
        self._listeners.clear()

    async def begin_term(self) -> None:
        """Read the configuration that a term begins with. Under an older one, groups that were created since would count
        as not desired, and their instances would be deleted. Raises storage errors."""
        for pause in (*BEGIN_PAUSES, None):
            try:
                async with self.changing:
                    self.configuration = await self._read()
                return
            except (errors.StorageError, TimeoutError) as problem:
                if pause is None:
                    raise
                log.warning("failed to read the configuration", extra={"error": str(problem) or "timed out"})
                await self._clock.sleep(pause)

    async def read_newest(self) -> Configuration:
        """What `refresh` would activate. Raises storage errors."""
        return (await self._find_newest())[0]

    async def refresh(self) -> bool:
        """Activate the newest configuration in storage; returns whether it is new and valid."""
        async with self.changing:
            before = self.configuration
            try:
                after = await self._read()
            except (errors.StorageError, TimeoutError) as problem:
                self.is_readable = False
                log.warning("failed to read the configuration, the old one stays active", extra={"error": str(problem)})
                return False
            self.is_readable = True
            if _versions(after) == _versions(before):
                return False
            file_changed = after.version != before.version
            author = "the configuration file" if file_changed else "an edit of groups.jsonc"
            log.info("configuration reloaded", extra={"changed_by": author, "version": after.version})
            self.activate(after, author=author)
            return True

    def activate(self, configuration: Configuration, *, author: str = "") -> None:
        """For callers that hold `changing`."""
        before, self.configuration = self.configuration, configuration
        change = ConfigChange(before, configuration, author)
        for listener in self._listeners:
            listener(change)

    async def watch(self, term: Term) -> None:
        """While this server leads."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            await term.ready()
            await self._check()

    async def follow(self, *, leading: Callable[[], bool]) -> None:
        """While others lead: keep the newest valid configuration, in case an invalid one follows it."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            if not leading():
                await self._check()

    async def _check(self) -> None:
        try:
            stored = (
                await self._stored(storage_keys.config(self.shard)),
                await self._stored(storage_keys.groups(self.shard)),
            )
        except (errors.StorageError, TimeoutError) as problem:
            log.warning("failed to check the configuration", extra={"error": str(problem)})
            return
        if stored != _versions(self.configuration):
            await self.refresh()

    async def _read(self) -> Configuration:
        """The newest configuration; also notes what is wrong with it. Raises storage errors."""
        found, problem = await self._find_newest()
        if problem is None:
            self.rejection, self.problems = "", ()
        else:
            level = logging.DEBUG if str(problem) == self.rejection else logging.ERROR  # it is read again each minute
            self.rejection, self.problems = str(problem), problem.problems
            log.log(level, "failed to load the configuration, the previous one stays active: %s", problem.on_one_line())
        return found

    async def _find_newest(self) -> tuple[Configuration, NoConfigurationError | None]:
        """The newest configuration. If it is not valid, the settings stay as they are, and the groups of the API follow
        storage: their writer has checked them. Raises storage errors."""
        now = self.configuration
        try:
            return await configurations.read(self._store, self.shard, before=now), None
        except NoConfigurationError as problem:
            with contextlib.suppress(NoConfigurationError):
                return await configurations.with_groups(self._store, self.shard, now), problem
            return now, problem

    async def _stored(self, key: Key) -> Version | None:
        async with asyncio.timeout(HEAD_SECONDS):
            try:
                return (await self._store.head(key)).version
            except errors.NotFoundError:
                return None


def _versions(configuration: Configuration) -> tuple[Version | None, Version | None]:
    return configuration.version, configuration.dynamic_version
