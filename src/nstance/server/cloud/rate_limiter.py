"""How fast calls to a provider may follow each other, so that one that refuses for haste is still used to the full.

As fast as they come, until a call is refused; from then on a token bucket for all calls, whose rate is halved when calls
are refused and grows with each one that is not. Each kind of call has a lane of its own, and lanes take turns, so that
none starves another. The traps: a wave of calls that were under way together is refused together, and is one sign, not
thirty; whoever was refused keeps its place before those that came later; and waiting together must not mean waking
together.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable

from nstance.clock import Clock, Rng
from nstance.core.rate_limit import EPSILON, RECOVERY_SECONDS, WINDOW_SECONDS, Interval, RateLimit


def _no_limit() -> float:
    return 0.0


def _always() -> bool:
    return True


class RateLimiter:
    """Of all calls to one provider."""

    def __init__(self, clock: Clock, rng: Rng, *, changed: Callable[[], None]) -> None:
        """`changed` is told when the provider's limit begins or ends."""
        self.clock = clock
        self._rng = rng
        self._changed = changed
        self._lanes: list[RequestQueue] = []  # the one that waits longest for a turn comes first
        self._sent: deque[float] = deque(maxlen=10_000)  # calls of the last second, for the first guess
        self._limit = RateLimit(clock.monotonic())
        self._timer: asyncio.TimerHandle | None = None
        self._calming: asyncio.TimerHandle | None = None

    @property
    def limited(self) -> bool:
        return self._limit.is_limited

    @property
    def rate(self) -> float:
        return self._limit.rate

    def lane(self, *, at_least: Callable[[], float] = _no_limit) -> "RequestQueue":
        """For calls of one kind. `at_least`: seconds between them by our own wish."""
        made = RequestQueue(self, at_least)
        self._lanes.append(made)
        return made

    def went_well(self) -> None:
        if self.limited:
            self._limit = self._limit.succeed(self.clock.monotonic())
            self.serve()

    def refused(self, *, sent: float, delay: float) -> None:
        """The call sent at that time was throttled. `delay`: how long the provider wants no calls."""
        now = self.clock.monotonic()
        self._limit = self._limit.pause(now, delay)
        if self._limit.is_news(now, sent):
            self._back_off(now)
        self.serve()

    def _back_off(self, now: float) -> None:
        begins = not self.limited
        tokens = self._rng.uniform(0.0, 1.0)
        self._limit = self._limit.back_off(now, recent_calls=len(self._sent), tokens=tokens)
        if self._calming is not None:
            self._calming.cancel()
        delay = self._limit.backed_off_at - now + RECOVERY_SECONDS
        self._calming = asyncio.get_running_loop().call_later(delay, self._calm)
        if begins:
            self._changed()

    def _calm(self) -> None:
        self._calming = None
        self._limit = self._limit.recover()
        self._changed()
        self.serve()

    def close(self) -> None:
        for timer in (self._timer, self._calming):
            if timer is not None:
                timer.cancel()

    def serve(self) -> None:
        """Let go whose turn it is: lane by lane, in each in the order of places."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while waiting := [lane for lane in self._lanes if lane.is_waited_for()]:
            next_lane = min(waiting, key=RequestQueue.left)
            left = max(next_lane.left(), self._left())
            if left > EPSILON:  # a timer for less would fire before the clock has moved, again and again
                self._timer = asyncio.get_running_loop().call_later(left, self.serve)
                return
            self._spend()
            self._lanes.remove(next_lane)
            self._lanes.append(next_lane)
            next_lane.go()

    def _left(self) -> float:
        """Seconds until the next call of any kind may be sent."""
        self._limit = self._limit.refill(self.clock.monotonic())
        return self._limit.delay()

    def _spend(self) -> None:
        if self.limited:
            self._limit = self._limit.spend(self._rng.uniform(0.5, 1.5))
        now = self._limit.counted_at
        while self._sent and self._sent[0] <= now - WINDOW_SECONDS:
            self._sent.popleft()
        self._sent.append(now)


class RequestQueue:
    """Calls of one kind, in their order."""

    def __init__(self, pace: RateLimiter, at_least: Callable[[], float]) -> None:
        self.pace = pace
        self._at_least = at_least
        self._places = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None], Callable[[], bool]]] = []
        self._interval = Interval(pace.clock.monotonic())

    async def turn(self, place: int | None = None, *, wanted: Callable[[], bool] = _always) -> int:
        """Wait until a call may be made, or is not wanted any more. The place in the row that is returned is kept by
        calling again with it."""
        place = next(self._places) if place is None else place
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (place, turn, wanted))
        self.pace.serve()
        await turn
        return place

    def is_waited_for(self) -> bool:
        """By somebody who still wants to call: those who do not need no turn, and go at once when they are the first."""
        while self._waiting:
            _, turn, wanted = self._waiting[0]
            if not turn.done():
                if wanted():
                    return True
                turn.set_result(None)
            heapq.heappop(self._waiting)
        return False

    def left(self) -> float:
        """Seconds until the next one may go by our own wish."""
        every = self._at_least()
        self._interval = self._interval.refill(self.pace.clock.monotonic(), every)
        return self._interval.delay(every)

    def go(self) -> None:
        self._interval = self._interval.spend()
        heapq.heappop(self._waiting)[1].set_result(None)
