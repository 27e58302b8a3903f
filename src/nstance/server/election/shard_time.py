"""The shard's time, by which ages are counted. It continues from leader to leader, whatever their machines' clocks say.

A machine whose clock is an hour ahead must not expire a fleet by taking over. So each heartbeat and each lease names the
leader's time, and the next leader continues from there by what has passed on its own clock since. The trap: a server that
starts while nobody renews the lease cannot know how old that is; only the store knows, by its own clock.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from nstance.clock import Clock
from nstance.objects import errors
from nstance.objects.lease import ReadLease
from nstance.objects.port import Key, ObjectStore, Version

log = logging.getLogger(__name__)

MAX_SKEW_SECONDS = 60.0  # of a machine's clock, before people are warned
HEAD_TIMEOUT_SECONDS = 2.0  # longer where the store is slow
HEAD_ATTEMPTS = 3


@dataclass(eq=False)
class ShardTime:
    store: ObjectStore
    key: Key  # of the lease
    _: KW_ONLY
    clock: Clock
    anchor: Callable[[float], None]  # sets the steady clock
    timeout: Callable[[], float] = lambda: HEAD_TIMEOUT_SECONDS  # of the store's next answer
    _reference: tuple[float, float] | None = None  # the shard's time, and the time since boot at which it was that
    _version: Version | None = None
    _lease_time: float | None = None  # in a lease that was there before this server
    _written: float = 0.0  # when it was written, by the store's clock

    def set_leader_time(self, at: float) -> None:
        """The leader has just named its time."""
        if at > 0:
            self._reference = (at, self.clock.boot())

    def on_lease(self, found: ReadLease) -> None:
        """The lease was read. If it changed, its holder wrote it since the last read; a heartbeat since then is newer."""
        if found.version == self._version:
            return
        first, self._version, at = self._version is None, found.version, found.lease.at
        if first and at > 0:
            self._lease_time = at
        elif self._reference is None or not 0.0 <= self._estimate(self._reference) - at <= MAX_SKEW_SECONDS:
            self.set_leader_time(at)

    async def before_claim(self) -> None:
        """Raises storage errors."""
        if self._reference is not None:
            self.anchor(self._estimate(self._reference))
        elif self._lease_time is not None:
            self._written = await self._modified()
            self.anchor(self._lease_time)  # at least

    async def after_claim(self) -> str:
        """The lease is ours. Returns what is wrong with this machine's clock; empty if nothing is."""
        if self._reference is None and self._lease_time is not None:
            for _ in range(HEAD_ATTEMPTS):
                try:
                    self.anchor(self._lease_time + max(0.0, await self._modified() - self._written))
                    break
                except errors.StorageError as problem:
                    log.warning(
                        "leaderless interval unknown: ages continue from the lease", extra={"error": str(problem)}
                    )
        elif self._reference is None:
            return ""
        off = self.clock.wall() - self.clock.steady()
        if abs(off) <= MAX_SKEW_SECONDS:
            return ""
        return (
            f"this machine's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the shard's time, "
            "by which ages are counted; correct it"
        )

    @property
    def is_late(self) -> bool:
        """Whether the time became known only after the claim: the lease names an earlier one and has to be renewed."""
        return self._reference is None and self._lease_time is not None

    def after_term(self, version: Version) -> None:
        """This server led until now, and this was its last lease."""
        self._version = version
        self.set_leader_time(self.clock.steady())

    def _estimate(self, reference: tuple[float, float]) -> float:
        at, then = reference
        return at + self.clock.boot() - then

    async def _modified(self) -> float:
        try:
            async with asyncio.timeout(max(HEAD_TIMEOUT_SECONDS, self.timeout())):
                return (await self.store.head(self.key)).modified
        except TimeoutError:
            raise errors.UnavailableError(f"head {self.key}: no answer") from None
