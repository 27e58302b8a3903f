"""How fast calls of one kind may follow each other, so that a provider that refuses for haste is still used to the full.

As fast as they come, until a call is refused; from then on a token bucket whose rate is halved when calls are refused and
grows with each one that is not. The traps: a wave of calls that were under way together is refused together, and is one
sign, not thirty; whoever was refused keeps its place before those that came later; and waiting together must not mean
waking together.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from math import inf

from nstance.clock import Chance, Clock

SLOWEST = 1 / 60.0  # calls a second
WINDOW = 1.0  # seconds after a back-off in which further refusals are no news
CALM = 60.0  # without a refusal for so long, there is no limit any more
STEEP = 0.5  # how much a call that went well adds to the rate, well below the rate that was too much
GENTLE = 0.75  # of that rate: from here on the rate grows by so much a second, not with each call
BURST = 10  # what a limit of our own lets through at once
NEARLY = 1e-9


class Pace:
    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        *,
        changed: Callable[[], None],
        at_least: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`at_least`: seconds between calls by our own wish; `changed` is told when the provider's limit begins or ends."""
        self._clock = clock
        self._chance = chance
        self._changed = changed
        self._at_least = at_least
        self._places = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._sent: deque[float] = deque(maxlen=10_000)  # calls of the last second, for the first guess
        self.rate = inf
        self._too_much = inf
        self._tokens = float(BURST)
        self._counted = clock.monotonic()
        self._pause_ends = 0.0
        self._backed_off = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._calming: asyncio.TimerHandle | None = None

    @property
    def limited(self) -> bool:
        return self.rate < inf

    async def turn(self, place: int | None = None) -> int:
        """Wait until a call may be made. The place in the row that is returned is kept by calling again with it."""
        place = next(self._places) if place is None else place
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (place, turn))
        self._serve()
        await turn
        return place

    def went_well(self) -> None:
        if self.limited:
            self._count()
            self.rate += STEEP if self.rate < GENTLE * self._too_much else GENTLE / self.rate
            self._serve()

    def refused(self, *, sent: float, delay: float) -> None:
        """For haste. `sent`: when that call was made; `delay`: how long the provider wants to be left alone."""
        now = self._clock.monotonic()
        self._pause_ends = max(self._pause_ends, min(now + delay, now + 1 / SLOWEST))
        if sent >= self._backed_off and now >= self._backed_off + WINDOW:
            self._back_off(now)
        self._serve()

    def _back_off(self, now: float) -> None:
        begins = not self.limited
        self._count()
        self._too_much = len(self._sent) if begins else self.rate
        self.rate = max(SLOWEST, self._too_much / 2)
        self._tokens = self._chance.uniform(0.0, 1.0)  # other shards were refused as well: not all at the same moment
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
        self._serve()

    def close(self) -> None:
        for timer in (self._timer, self._calming):
            if timer is not None:
                timer.cancel()

    def _serve(self) -> None:
        """Let go whose turn it is, in the order of their places."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            if self._waiting[0][1].done():  # nobody waits there any more
                heapq.heappop(self._waiting)
                continue
            left = self._left()
            if left > NEARLY:  # a timer for less would fire before the clock has moved, again and again
                self._timer = asyncio.get_running_loop().call_later(left, self._serve)
                return
            self._spend()
            heapq.heappop(self._waiting)[1].set_result(None)

    def _every(self) -> float:
        return max(self._at_least(), 1 / self.rate)

    def _left(self) -> float:
        """Seconds until the next one may go."""
        self._count()
        lack = 1.0 - self._tokens
        return max(self._pause_ends - self._counted, lack * self._every() if lack > NEARLY else 0.0)

    def _count(self) -> None:
        """What has been saved up since the last time, at the rate that was in force."""
        now, every, most = self._clock.monotonic(), self._every(), 1.0 if self.limited else float(BURST)
        earned = (now - self._counted) / every if every > 0 else most
        self._tokens = min(most, self._tokens + earned)
        self._counted = now

    def _spend(self) -> None:
        self._tokens -= self._chance.uniform(0.5, 1.5) if self.limited else 1.0
        while self._sent and self._sent[0] <= self._counted - WINDOW:
            self._sent.popleft()
        self._sent.append(self._counted)
