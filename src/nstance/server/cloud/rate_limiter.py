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
from math import inf

from nstance.clock import Clock, Rng

SLOWEST = 1 / 60.0  # calls a second
FEW = 10  # calls a second are no haste: the first guess is not below the half of it
WINDOW = 1.0  # seconds after a back-off in which further refusals are no news
CALM = 60.0  # without a refusal for so long, there is no limit any more
STEEP = 0.5  # how much a call that went well adds to the rate, well below the rate that was too much
GENTLE = 0.75  # of that rate: from here on the rate grows by so much a second, not with each call
BURST = 10  # what a limit of our own lets through at once
NEARLY = 1e-9


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
        self.rate = inf
        self._too_much = inf
        self._tokens = 1.0
        self._counted = clock.monotonic()
        self._pause_ends = 0.0
        self._backed_off = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._calming: asyncio.TimerHandle | None = None

    @property
    def limited(self) -> bool:
        return self.rate < inf

    def lane(self, *, at_least: Callable[[], float] = _no_limit) -> "RequestQueue":
        """For calls of one kind. `at_least`: seconds between them by our own wish."""
        made = RequestQueue(self, at_least)
        self._lanes.append(made)
        return made

    def went_well(self) -> None:
        if self.limited:
            self._count()
            self.rate += STEEP if self.rate < GENTLE * self._too_much else GENTLE / self.rate
            self.serve()

    def refused(self, *, sent: float, delay: float) -> None:
        """For haste. `sent`: when that call was made; `delay`: how long the provider wants to be left alone."""
        now = self.clock.monotonic()
        self._pause_ends = max(self._pause_ends, min(now + delay, now + 1 / SLOWEST))
        if sent >= self._backed_off and now >= self._backed_off + WINDOW:
            self._back_off(now)
        self.serve()

    def _back_off(self, now: float) -> None:
        begins = not self.limited
        self._count()
        self._too_much = max(FEW, len(self._sent)) if begins else self.rate
        self.rate = max(SLOWEST, self._too_much / 2)
        self._tokens = self._rng.uniform(0.0, 1.0)  # other shards were refused as well: not all at the same moment
        self._backed_off = max(now, self._pause_ends)
        if self._calming is not None:
            self._calming.cancel()
        self._calming = asyncio.get_running_loop().call_later(self._backed_off - now + CALM, self._calm)
        if begins:
            self._changed()

    def _calm(self) -> None:
        self._calming = None
        self.rate = self._too_much = inf
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
            if left > NEARLY:  # a timer for less would fire before the clock has moved, again and again
                self._timer = asyncio.get_running_loop().call_later(left, self.serve)
                return
            self._spend()
            self._lanes.remove(next_lane)
            self._lanes.append(next_lane)
            next_lane.go()

    def _left(self) -> float:
        """Seconds until the next one may go, whoever that is."""
        self._count()
        lack = 1.0 - self._tokens
        return max(self._pause_ends - self._counted, lack / self.rate if lack > NEARLY else 0.0)

    def _count(self) -> None:
        """What has been saved up since the last time, at the rate that was in force."""
        now = self.clock.monotonic()
        self._tokens = min(1.0, self._tokens + (now - self._counted) * self.rate) if self.limited else 1.0
        self._counted = now

    def _spend(self) -> None:
        if self.limited:
            self._tokens -= self._rng.uniform(0.5, 1.5)
        while self._sent and self._sent[0] <= self._counted - WINDOW:
            self._sent.popleft()
        self._sent.append(self._counted)


class RequestQueue:
    """Calls of one kind, in their order."""

    def __init__(self, pace: RateLimiter, at_least: Callable[[], float]) -> None:
        self.pace = pace
        self._at_least = at_least
        self._places = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None], Callable[[], bool]]] = []
        self._tokens = float(BURST)
        self._counted = pace.clock.monotonic()

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
        now, every = self.pace.clock.monotonic(), self._at_least()
        earned = (now - self._counted) / every if every > 0 else float(BURST)
        self._tokens = min(float(BURST), self._tokens + earned)
        self._counted = now
        lack = 1.0 - self._tokens
        return lack * every if lack > NEARLY else 0.0

    def go(self) -> None:
        self._tokens -= 1.0
        heapq.heappop(self._waiting)[1].set_result(None)
