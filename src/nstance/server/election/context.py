"""What the holder of the lease and standbys share: where the lease is, who this server is, and the timings."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nstance.clock import Clock, Rng
from nstance.core import election as rules
from nstance.core.election import Latency, Timings
from nstance.objects import lease
from nstance.objects.lease import Holder, ReadLease
from nstance.objects.port import Key, ObjectStore
from nstance.server.waits import WAITS, Waits
from nstance.tasks import background

READ_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionContext:
    store: ObjectStore
    key: Key
    me: Holder
    timings: Timings  # for a fast store
    clock: Clock
    rng: Rng
    latency: Callable[[], Latency] = Latency  # of the store, as measured
    anchor: Callable[[float], None] = lambda steady: None  # sets the steady clock
    waits: Waits = WAITS

    def adapted(self) -> Timings:
        """The timings for the store as it is now."""
        return rules.adapted(self.timings, self.latency().usual)

    def timeout(self) -> float:
        """How long to wait for a write of the lease."""
        return self.latency().timeout

    async def read(self) -> ReadLease | None:
        """The lease; None only if the store says that there is none. Raises storage errors and TimeoutError."""
        async with asyncio.timeout(max(READ_TIMEOUT_SECONDS, self.timeout())):
            return await lease.read(self.store, self.key)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Until the event is set or the time has passed on `clock`."""
        await background.sleep_until_set(event, seconds, self.clock)
