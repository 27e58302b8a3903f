"""Tenants whose deletions wait for a drain, because they have an operator that drains.

Only a watch with `drains` makes an operator a drainer; reading, scaling and other watches never change what happens to
instances. It counts while such a watch is open, and for its lease after the last one ended. The journal keeps which
tenants have one, so that a new leader waits for drainers that are about to reconnect.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, field

from nstance.clock import Clock
from nstance.model.ids import TenantId


@dataclass(eq=False)
class Drainers:
    """Of one shard during one term."""

    known: InitVar[Iterable[TenantId]]  # tenants that had a drainer when the last term ended
    _: KW_ONLY
    clock: Clock
    lease: Callable[[], float]
    record: Callable[[TenantId, bool], None]  # writes to the journal whether a tenant has a drainer
    _open: Counter[TenantId] = field(default_factory=Counter)  # drain watches
    _timers: dict[TenantId, asyncio.TimerHandle] = field(default_factory=dict)
    _closed: bool = False

    def __post_init__(self, known: Iterable[TenantId]) -> None:
        self._last_seen = dict.fromkeys(known, self.clock.steady())

    def start(self) -> None:
        """Start the leases of those that have not reconnected."""
        for tenant in self._last_seen:
            if not self._open[tenant] and tenant not in self._timers:
                self._start_lease(tenant)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    def last_seen(self, tenant: TenantId) -> float | None:
        """Steady time; None if the tenant has no drainer."""
        return self.clock.steady() if self._open[tenant] else self._last_seen.get(tenant)

    @contextmanager
    def watching(self, tenant: TenantId) -> Iterator[None]:
        """While a drainer of the tenant watches."""
        if tenant not in self._last_seen:
            self.record(tenant, True)
        if (timer := self._timers.pop(tenant, None)) is not None:
            timer.cancel()
        self._open[tenant] += 1
        self._last_seen[tenant] = self.clock.steady()
        try:
            yield
        finally:
            self._open[tenant] -= 1
            self._last_seen[tenant] = self.clock.steady()
            if not self._open[tenant]:
                self._start_lease(tenant)

    def _start_lease(self, tenant: TenantId) -> None:
        """The tenant's last drainer disconnected: its lease runs."""
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[tenant] = loop.call_later(self.lease(), self._expire, tenant)

    def _expire(self, tenant: TenantId) -> None:
        del self._timers[tenant], self._last_seen[tenant]
        self.record(tenant, False)
