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

from nstance.clock import Clock, Rng
from nstance.core.rate_limit import EPSILON, RECOVERY_SECONDS, WINDOW_SECONDS, Interval, RateLimit


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
        self._limit = RateLimit(clock.monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._recovery: asyncio.TimerHandle | None = None

    @property
    def is_limited(self) -> bool:
        return self._limit.is_limited

    @property
    def rate(self) -> float:
        return self._limit.rate

    def add_queue(self, *, min_interval: Callable[[], float] = _unlimited) -> "RequestQueue":
        """For calls of one kind. `min_interval`: configured seconds between them."""
        queue = RequestQueue(self, min_interval)
        self._queues.append(queue)
        return queue

    def on_success(self) -> None:
        if self.is_limited:
            self._limit = self._limit.succeed(self.clock.monotonic())
            self.serve()

    def on_throttled(self, *, sent: float, delay: float) -> None:
        """`sent`: when the call was made; `delay`: how long the provider wants no calls."""
        now = self.clock.monotonic()
        self._limit = self._limit.pause(now, delay)
        if self._limit.is_news(now, sent):
            self._back_off(now)
        self.serve()

    def _back_off(self, now: float) -> None:
        begins = not self.is_limited
        tokens = self._rng.uniform(0.0, 1.0)
        self._limit = self._limit.back_off(now, recent_calls=len(self._sent), tokens=tokens)
        if self._recovery is not None:
            self._recovery.cancel()
        delay = self._limit.backed_off_at - now + RECOVERY_SECONDS
        self._recovery = asyncio.get_running_loop().call_later(delay, self._recover)
        if begins:
            self._on_change()

    def _recover(self) -> None:
        self._recovery = None
        self._limit = self._limit.recover()
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
        self._limit = self._limit.refill(self.clock.monotonic())
        return self._limit.delay()

    def _spend(self) -> None:
        if self.is_limited:
            self._limit = self._limit.spend(self._rng.uniform(0.5, 1.5))
        now = self._limit.counted_at
        while self._sent and self._sent[0] <= now - WINDOW_SECONDS:
            self._sent.popleft()
        self._sent.append(now)


class RequestQueue:
    """Calls of one kind, in order."""

    def __init__(self, limiter: RateLimiter, min_interval: Callable[[], float]) -> None:
        self.limiter = limiter
        self._min_interval = min_interval
        self._places = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None], Callable[[], bool]]] = []
        self._interval = Interval(limiter.clock.monotonic())

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
        interval = self._min_interval()
        self._interval = self._interval.refill(self.limiter.clock.monotonic(), interval)
        return self._interval.delay(interval)

    def release_next(self) -> None:
        self._interval = self._interval.spend()
        heapq.heappop(self._waiting)[1].set_result(None)
