"""The account's launch budget: a burst of instances, then a few each second.

EC2 refuses launches beyond it, and refusals slow down all calls. So launches wait here instead, in order. Another shard of
the account may spend from the same budget; then EC2 throttles, and the server's rate limiter takes over.
"""

from nstance.clock import Clock
from nstance.providers.errors import ThrottledError

BURST_LAUNCHES = 1000.0
LAUNCHES_PER_SECOND = 2.0
MAX_WAIT_SECONDS = 10.0  # a call must not use up its deadline in here


class LaunchBudget:
    def __init__(self, clock: Clock, *, burst: float = BURST_LAUNCHES, rate: float = LAUNCHES_PER_SECOND) -> None:
        self._clock = clock
        self._burst, self._rate = burst, rate
        self._tokens = burst
        self._counted_at = clock.monotonic()

    async def spend(self) -> None:
        """Waits for its turn. Raises ThrottledError if that takes too long."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._rate)
        self._counted_at = now
        wait = (1.0 - self._tokens) / self._rate
        if wait > MAX_WAIT_SECONDS:
            raise ThrottledError("the launch budget of the account is used up", delay=1.0 / self._rate)
        self._tokens -= 1.0
        if wait > 0:
            await self._clock.sleep(wait)
