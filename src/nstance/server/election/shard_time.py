"""The shard's time, by which ages are counted: it goes on from leader to leader, whatever their machines' clocks say.

A machine whose clock is an hour ahead must not expire a fleet by taking over (F20). So the leader says its time with each
heartbeat and in each lease, and whoever takes over goes on from there, by the time that has passed on its own clock
since. The trap is a server that starts beside a lease which nobody renews: how old that is, only the store can say, by
its own clock.
"""

import asyncio
import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.objects import errors
from nstance.objects.lease import ReadLease
from nstance.objects.port import Key, ObjectStore, Version

log = logging.getLogger(__name__)

ODD = 60.0  # seconds by which a machine's clock may be off before people are told
HEAD_TIMEOUT = 2.0  # or longer, where the store is slow
HEAD_ATTEMPTS = 3


class ShardTime:
    def __init__(
        self,
        store: ObjectStore,
        key: Key,
        *,
        clock: Clock,
        anchor: Callable[[float], None],
        timeout: Callable[[], float] = lambda: HEAD_TIMEOUT,
    ) -> None:
        """`key`: of the lease. `anchor` sets the steady clock. `timeout`: how long to wait for the store's next answer."""
        self._store = store
        self._key = key
        self._clock = clock
        self._anchor = anchor
        self._timeout = timeout
        self._told: tuple[float, float] | None = None  # the shard's time, and when it was that, since boot
        self._version: Version | None = None
        self._old: float | None = None  # what a lease says that was there before this server
        self._written = 0.0  # when it was written, by the store's clock

    def last_seen(self, at: float) -> None:
        """Its leader has just said so."""
        if at > 0:
            self._told = (at, self._clock.boot())

    def read(self, found: ReadLease) -> None:
        """The lease. If it changed since the last look, its holder wrote it in between; what is known from a heartbeat
        since then is better."""
        if found.version == self._version:
            return
        first, self._version, at = self._version is None, found.version, found.lease.at
        if first and at > 0:
            self._old = at
        elif self._told is None or not 0.0 <= self._estimate(self._told) - at <= ODD:
            self.last_seen(at)

    async def before_claim(self) -> None:
        """Raises storage errors."""
        if self._told is not None:
            self._anchor(self._estimate(self._told))
        elif self._old is not None:
            self._written = await self._modified()
            self._anchor(self._old)  # at least

    async def claimed(self) -> str:
        """The lease is ours; says what is odd about this machine's clock."""
        if self._told is None and self._old is not None:
            for _ in range(HEAD_ATTEMPTS):
                try:
                    self._anchor(self._old + max(0.0, await self._modified() - self._written))
                    break
                except errors.StorageError as problem:
                    log.warning("how long nobody led is not known: ages go on", extra={"error": str(problem)})
        elif self._told is None:
            return ""
        off = self._clock.wall() - self._clock.steady()
        if abs(off) <= ODD:
            return ""
        return (
            f"this machine's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the shard's time, "
            "by which ages go on; set it right"
        )

    @property
    def late(self) -> bool:
        """It became known only with the lease that was claimed, and that says less: whoever reads it would go back."""
        return self._told is None and self._old is not None

    def led(self, version: Version) -> None:
        """This server has led until now; its last lease is known."""
        self._version = version
        self.last_seen(self._clock.steady())

    def _estimate(self, told: tuple[float, float]) -> float:
        at, then = told
        return at + self._clock.boot() - then

    async def _modified(self) -> float:
        try:
            async with asyncio.timeout(max(HEAD_TIMEOUT, self._timeout())):
                return (await self._store.head(self._key)).modified
        except TimeoutError:
            raise errors.UnavailableError(f"head {self._key}: no answer") from None
