"""A token bucket for each client, so that one client cannot use up the shards' answers."""

from collections import OrderedDict
from dataclasses import dataclass

from nstance.clock import Clock

MAX_CLIENTS = 1_024  # the one that was away longest is forgotten: its bucket is full again anyway


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


REQUESTS = Rate(50.0, 200.0)
LOGINS = Rate(0.2, 5.0)


class RateLimit:
    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def delay(self, client: str) -> float:
        """Takes a token. 0 if there was one, otherwise the seconds until the next."""
        now = self._clock.monotonic()
        tokens, counted = self._buckets.pop(client, (self._rate.burst, now))
        tokens = min(self._rate.burst, tokens + (now - counted) * self._rate.per_second)
        is_allowed = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if is_allowed else tokens, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1.0 - tokens) / self._rate.per_second
