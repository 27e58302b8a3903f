"""The leader's rate limiter for provider API calls.

Calls are not limited until one is throttled. From then on all calls share a token bucket, whose rate is halved when calls
are throttled and grows with each success. Each kind of call has its own queue, and queues take turns, so that none
starves another. The traps: calls that were in flight together are throttled together, which counts once; a throttled
call keeps its place in its queue; and calls that waited together must not be sent at the same moment.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from math import inf

from nstance.clock import Clock, Rng

MIN_RATE = 1 / 60.0  # calls a second
MIN_FIRST_GUESS = 10  # calls a second: the first limit is not below half of it
WINDOW_SECONDS = 1.0  # after a back-off, in which further throttling is not counted
RECOVERY_SECONDS = 60.0  # without throttling, after which there is no limit
FAST_GROWTH = 0.5  # calls a second that a success adds, well below the rate that was too high
SLOW_GROWTH_FROM = 0.75  # of the rate that was too high: from here on the rate grows by so much a second
BURST_CALLS = 10  # that our own limit lets through at once
EPSILON = 1e-9


def _unlimited() -> float:
    return 0.0


def _always() -> bool:
    return True


class RateLimiter:
    """Limits all calls to one provider."""

    def __init__(self, clock: Clock, rng: Rng, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the provider's limit begins or ends."""
        self.clock = clock
        self._rng = rng
        self._on_change = on_change
        self._queues: list[RequestQueue] = []  # the one that has waited longest for a turn comes first
        self._sent: deque[float] = deque(maxlen=10_000)  # calls of the last second, for the first guess
        self.rate = inf
        self._too_high = inf
        self._tokens = 1.0
        self._counted_at = clock.monotonic()
        self._paused_until = 0.0
        self._backed_off_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._recovery: asyncio.TimerHandle | None = None

    @property
    def is_limited(self) -> bool:
        return self.rate < inf

    def add_queue(self, *, min_interval: Callable[[], float] = _unlimited) -> "RequestQueue":
        """For calls of one kind. `min_interval`: configured seconds between them."""
        queue = RequestQueue(self, min_interval)
        self._queues.append(queue)
        return queue

    def on_success(self) -> None:
        if self.is_limited:
            self._refill()
            is_slow = self.rate >= SLOW_GROWTH_FROM * self._too_high
            self.rate += SLOW_GROWTH_FROM / self.rate if is_slow else FAST_GROWTH
            self.serve()

    def on_throttled(self, *, sent: float, delay: float) -> None:
        """`sent`: when the call was made; `delay`: how long the provider wants no calls."""
        now = self.clock.monotonic()
        self._paused_until = max(self._paused_until, min(now + delay, now + 1 / MIN_RATE))
        if sent >= self._backed_off_at and now >= self._backed_off_at + WINDOW_SECONDS:
            self._back_off(now)
        self.serve()

    def _back_off(self, now: float) -> None:
        begins = not self.is_limited
        self._refill()
        self._too_high = max(MIN_FIRST_GUESS, len(self._sent)) if begins else self.rate
        self.rate = max(MIN_RATE, self._too_high / 2)
        self._tokens = self._rng.uniform(0.0, 1.0)  # other shards were throttled too and must not retry together
        self._backed_off_at = max(now, self._paused_until)
        if self._recovery is not None:
            self._recovery.cancel()
        delay = self._backed_off_at - now + RECOVERY_SECONDS
        self._recovery = asyncio.get_running_loop().call_later(delay, self._recover)
        if begins:
            self._on_change()

    def _recover(self) -> None:
        self._recovery = None
        self.rate = self._too_high = inf
        self._on_change()
        self.serve()

    def close(self) -> None:
        for timer in (self._timer, self._recovery):
            if timer is not None:
                timer.cancel()

    def serve(self) -> None:
        """Releases the calls whose turn it is: queue by queue, in each by place."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while waiting := [queue for queue in self._queues if queue.has_waiting()]:
            queue = min(waiting, key=RequestQueue.delay)
            delay = max(queue.delay(), self._delay())
            if delay > EPSILON:  # a timer for less would fire before the clock has moved, again and again
                self._timer = asyncio.get_running_loop().call_later(delay, self.serve)
                return
            self._spend()
            self._queues.remove(queue)
            self._queues.append(queue)
            queue.release_next()

    def _delay(self) -> float:
        """Seconds until the next call of any kind may be sent."""
        self._refill()
        lacking = 1.0 - self._tokens
        return max(self._paused_until - self._counted_at, lacking / self.rate if lacking > EPSILON else 0.0)

    def _refill(self) -> None:
        now = self.clock.monotonic()
        self._tokens = min(1.0, self._tokens + (now - self._counted_at) * self.rate) if self.is_limited else 1.0
        self._counted_at = now

    def _spend(self) -> None:
        if self.is_limited:
            self._tokens -= self._rng.uniform(0.5, 1.5)
        while self._sent and self._sent[0] <= self._counted_at - WINDOW_SECONDS:
            self._sent.popleft()
        self._sent.append(self._counted_at)


class RequestQueue:
    """Calls of one kind, in order."""

    def __init__(self, limiter: RateLimiter, min_interval: Callable[[], float]) -> None:
        self.limiter = limiter
        self._min_interval = min_interval
        self._places = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None], Callable[[], bool]]] = []
        self._tokens = float(BURST_CALLS)
        self._counted_at = limiter.clock.monotonic()

    async def wait_turn(self, place: int | None = None, *, is_wanted: Callable[[], bool] = _always) -> int:
        """Waits until a call may be sent, or is not wanted any more. Returns the place in the queue; a call that passes it
        again keeps it."""
        place = next(self._places) if place is None else place
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (place, turn, is_wanted))
        self.limiter.serve()
        await turn
        return place

    def has_waiting(self) -> bool:
        """Whether a call waits that is still wanted. Others are released at once when they are the first."""
        while self._waiting:
            _, turn, is_wanted = self._waiting[0]
            if not turn.done():
                if is_wanted():
                    return True
                turn.set_result(None)
            heapq.heappop(self._waiting)
        return False

    def delay(self) -> float:
        """Seconds until the configured interval allows the next call."""
        now, interval = self.limiter.clock.monotonic(), self._min_interval()
        earned = (now - self._counted_at) / interval if interval > 0 else float(BURST_CALLS)
        self._tokens = min(float(BURST_CALLS), self._tokens + earned)
        self._counted_at = now
        lacking = 1.0 - self._tokens
        return lacking * interval if lacking > EPSILON else 0.0

    def release_next(self) -> None:
        self._tokens -= 1.0
        heapq.heappop(self._waiting)[1].set_result(None)
