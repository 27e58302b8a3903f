"""The policy of the rate limit for provider calls.

Calls are not limited until one is throttled. From then on they share a token bucket, whose rate is halved when calls are
throttled and grows with each success. Calls that were in flight together are throttled together, which counts once.
"""

from dataclasses import dataclass, replace
from math import inf

MIN_RATE = 1 / 60.0  # calls a second
MIN_FIRST_GUESS = 10  # calls a second: the first limit is not below half of it
WINDOW_SECONDS = 1.0  # after a back-off, in which further throttling is not counted
RECOVERY_SECONDS = 60.0  # without throttling, after which there is no limit
FAST_GROWTH = 0.5  # calls a second that a success adds, well below the rate that was too high
SLOW_GROWTH_FROM = 0.75  # of the rate that was too high: from here on the rate grows by so much a second
BURST_CALLS = 10  # that a configured interval lets through at once
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limit of a provider, as it was at `counted_at`. Times are monotonic."""

    counted_at: float
    rate: float = inf
    too_high: float = inf  # the rate that was throttled last
    tokens: float = 1.0
    paused_until: float = 0.0
    backed_off_at: float = -inf

    @property
    def is_limited(self) -> bool:
        return self.rate < inf

    def refill(self, now: float) -> "RateLimit":
        earned = (now - self.counted_at) * self.rate if self.is_limited else inf
        return replace(self, tokens=min(1.0, self.tokens + earned), counted_at=now)

    def succeed(self, now: float) -> "RateLimit":
        if not self.is_limited:
            return self
        is_slow = self.rate >= SLOW_GROWTH_FROM * self.too_high
        return replace(self.refill(now), rate=self.rate + (SLOW_GROWTH_FROM / self.rate if is_slow else FAST_GROWTH))

    def pause(self, now: float, delay: float) -> "RateLimit":
        """The provider asked for no calls during `delay` seconds."""
        return replace(self, paused_until=max(self.paused_until, min(now + delay, now + 1 / MIN_RATE)))

    def is_news(self, now: float, sent: float) -> bool:
        """Whether the throttling of a call sent at that time says something about the current rate."""
        return sent >= self.backed_off_at and now >= self.backed_off_at + WINDOW_SECONDS

    def back_off(self, now: float, *, recent_calls: int, tokens: float) -> "RateLimit":
        """`recent_calls`: of the last second, for the first guess. `tokens`: random, because other shards were throttled
        too and must not retry together."""
        too_high = self.rate if self.is_limited else float(max(MIN_FIRST_GUESS, recent_calls))
        return replace(
            self,
            rate=max(MIN_RATE, too_high / 2),
            too_high=too_high,
            tokens=tokens,
            counted_at=now,
            backed_off_at=max(now, self.paused_until),
        )

    def recover(self) -> "RateLimit":
        return replace(self, rate=inf, too_high=inf)

    def delay(self) -> float:
        """Seconds from `counted_at` until the next call of any kind may be sent."""
        lacking = 1.0 - self.tokens
        return max(self.paused_until - self.counted_at, lacking / self.rate if lacking > EPSILON else 0.0)

    def spend(self, tokens: float) -> "RateLimit":
        return replace(self, tokens=self.tokens - tokens)


@dataclass(frozen=True, slots=True)
class Interval:
    """A configured interval between calls of one kind, with a burst."""

    counted_at: float
    tokens: float = BURST_CALLS

    def refill(self, now: float, seconds: float) -> "Interval":
        earned = (now - self.counted_at) / seconds if seconds > 0 else BURST_CALLS
        return Interval(now, min(BURST_CALLS, self.tokens + earned))

    def delay(self, seconds: float) -> float:
        lacking = 1.0 - self.tokens
        return lacking * seconds if lacking > EPSILON else 0.0

    def spend(self) -> "Interval":
        return Interval(self.counted_at, self.tokens - 1.0)
