"""Tenants whose deletions wait for a drain: those with an operator that drains.

An operator says so when it watches (`drains`), and nothing else makes it a drainer: reading, scaling and watching never
change what happens to instances. It counts while such a watch is open, and for its lease after the last one ended. The
journal keeps which tenants have one, so that a new leader waits for drainers that are about to reconnect.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from nstance.clock import Clock
from nstance.model.ids import TenantId


class Drainers:
    """Of one shard during one term."""

    def __init__(
        self,
        known: Iterable[TenantId],
        *,
        clock: Clock,
        lease: Callable[[], float],
        record: Callable[[TenantId, bool], None],
    ) -> None:
        """`known`: tenants that had a drainer when the last term ended. `record` writes to the journal that a tenant has
        a drainer now, or has none any more."""
        self._clock = clock
        self._lease = lease
        self._record = record
        self._open: Counter[TenantId] = Counter()  # drain watches
        self._last_seen: dict[TenantId, float] = dict.fromkeys(known, clock.steady())
        self._timers: dict[TenantId, asyncio.TimerHandle] = {}
        self._closed = False

    def start(self) -> None:
        """The leases of those that are not back yet run from now on."""
        for tenant in self._last_seen:
            if not self._open[tenant] and tenant not in self._timers:
                self._wait(tenant)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def last_seen(self, tenant: TenantId) -> float | None:
        """Steady time; None if nobody drains."""
        return self._clock.steady() if self._open[tenant] else self._last_seen.get(tenant)

    @contextmanager
    def watching(self, tenant: TenantId) -> Iterator[None]:
        """While an operator of the tenant watches that drains."""
        if tenant not in self._last_seen:
            self._record(tenant, True)
        if (timer := self._timers.pop(tenant, None)) is not None:
            timer.cancel()
        self._open[tenant] += 1
        self._last_seen[tenant] = self._clock.steady()
        try:
            yield
        finally:
            self._open[tenant] -= 1
            self._last_seen[tenant] = self._clock.steady()
            if not self._open[tenant]:
                self._wait(tenant)

    def _wait(self, tenant: TenantId) -> None:
        """Nobody of the tenant watches to drain any more: its lease runs."""
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[tenant] = loop.call_later(self._lease(), self._expire, tenant)

    def _expire(self, tenant: TenantId) -> None:
        del self._timers[tenant], self._last_seen[tenant]
        self._record(tenant, False)
