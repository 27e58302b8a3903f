"""The configuration in force, and how a newer one takes its place.

The newest one that is valid is in force; what is wrong with a newer one is kept for whoever asks. Leader and standby look
for it now and then, the leader also when somebody says that there is one. The trap: between reading a configuration and
putting it in force another one may be written, so whoever changes it holds `changing` for all of that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.config import storage_keys
from nstance.config.errors import Problem
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


class ActiveConfig:
    """Of one server, whether it leads or not."""

    def __init__(self, configuration: Configuration, *, store: ObjectStore, shard: ShardId, clock: Clock) -> None:
        self.configuration = configuration  # the last good one
        self.booted = configuration  # the one that the process was built from
        self.readable = True  # whether storage could be asked for it, the last time
        self.refused = ""  # why a newer one was not taken
        self.problems: tuple[Problem, ...] = ()  # of it
        self.changing = asyncio.Lock()  # held by whoever changes it
        self.told: Callable[[Configuration], None] | None = None  # who leads by it, while this server leads
        self.reloaded: Callable[[Configuration, Configuration], None] | None = None  # the same: it was read again
        self._store = store
        self._shard = shard
        self._clock = clock

    async def begin(self) -> None:
        """What a term begins with must have been read in it: under an older configuration, groups that were made since
        would count as not wished, and their instances would be deleted. Raises storage errors."""
        for pause in (*BEGIN_PAUSES, None):
            try:
                async with self.changing:
                    await self._read()
                return
            except (errors.StorageError, TimeoutError) as problem:
                if pause is None:
                    raise
                log.warning("the configuration could not be read yet", extra={"error": str(problem) or "timed out"})
                await self._clock.sleep(pause)

    async def refresh(self) -> bool:
        """Take a newer configuration over; says whether there was one that is valid."""
        async with self.changing:
            before, versions = self.configuration, self._versions()
            await self._reload()
            changed = self._versions() != versions
            if changed:
                self.take(self.configuration)
                if self.reloaded is not None:
                    self.reloaded(before, self.configuration)
                log.info("a new configuration is in force")
            return changed

    def take(self, configuration: Configuration) -> None:
        """Put it in force. For holders of `changing`."""
        self.configuration = configuration
        if self.told is not None:
            self.told(configuration)

    async def watch(self, term: Term) -> None:
        """While this server leads."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            await term.ready()
            await self._check()

    async def follow(self, *, leading: Callable[[], bool]) -> None:
        """While others lead: have the newest valid configuration at hand, in case that it is followed by a bad one."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            if not leading():
                await self._check()

    async def _check(self) -> None:
        try:
            stored = (
                await self._stored(storage_keys.config(self._shard)),
                await self._stored(storage_keys.groups(self._shard)),
            )
        except (errors.StorageError, TimeoutError) as problem:
            log.warning("the configuration could not be checked", extra={"error": str(problem)})
            return
        if stored != self._versions():
            await self.refresh()

    async def _reload(self) -> None:
        """The newest configuration; none to be had leaves the old one in force."""
        try:
            await self._read()
            self.readable = True
        except (errors.StorageError, TimeoutError) as problem:
            self.readable = False
            log.warning(
                "the configuration could not be read, the old one stays in force", extra={"error": str(problem)}
            )

    async def _read(self) -> None:
        """The newest configuration. Where it is not valid, the settings stay as they are, but the groups of the API are
        followed: their writer has checked them. Raises storage errors."""
        try:
            self.configuration = await configurations.read(self._store, self._shard, before=self.configuration)
            self.refused, self.problems = "", ()
        except NoConfigurationError as problem:
            self.refused, self.problems = str(problem), problem.problems
            log.error("the configuration in the bucket is not valid, the old one stays in force:\n%s", problem)
            with contextlib.suppress(NoConfigurationError):
                self.configuration = await configurations.with_groups(self._store, self._shard, self.configuration)

    def _versions(self) -> tuple[Version | None, Version | None]:
        return self.configuration.version, self.configuration.dynamic_version

    async def _stored(self, key: Key) -> Version | None:
        async with asyncio.timeout(HEAD_SECONDS):
            try:
                return (await self._store.head(key)).version
            except errors.NotFoundError:
                return None
