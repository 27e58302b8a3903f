"""A provider that throttles calls is used to the full, in order, without a standstill."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from nstance.core.rate_limit import BURST_CALLS, MIN_FIRST_GUESS, MIN_RATE, RECOVERY_SECONDS
from nstance.server.cloud.rate_limiter import RateLimiter, RequestQueue
from nstance.sim.loop import Machine
from nstance.sim.rng import SeededRng
from support.virtual_time import virtually

LATENCY = 0.05


class Cloud:
    """Takes so many calls a second, and as many at once; refuses the others with a hint."""

    def __init__(self, clock: Machine, *, rate: float, hint: float, burst: float | None = None) -> None:
        self._clock = clock
        self.rate = rate
        self._hint = hint
        self._most = self._tokens = rate if burst is None else burst
        self._at = clock.monotonic()
        self.taken: list[int] = []  # by their places in the row
        self.refused = 0

    async def call(self, queue: RequestQueue) -> None:
        place = await queue.wait_turn()
        while True:
            sent = self._clock.monotonic()
            await self._clock.sleep(LATENCY)
            now = self._clock.monotonic()
            self._tokens = min(self._most, self._tokens + (now - self._at) * self.rate)
            self._at = now
            if self._tokens >= 1:
                self._tokens -= 1
                self.taken.append(place)
                queue.limiter.on_success()
                return
            self.refused += 1
            queue.limiter.on_throttled(sent=sent, delay=self._hint)
            await queue.wait_turn(place)


def make(clock: Machine, changes: list[bool] | None = None, **options: Callable[[], float]) -> RequestQueue:
    limiter = RateLimiter(
        clock,
        SeededRng("pace"),
        on_change=lambda: changes.append(limiter.is_limited) if changes is not None else None,
    )
    return limiter.add_queue(**options)


async def at_once(most: int, work: list[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(most)

    async def one(each: Awaitable[None]) -> None:
        async with gate:
            await each

    await asyncio.gather(*map(one, work))


@pytest.mark.parametrize("hint", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("rate", [5.0, 20.0, 100.0])
def test_a_wave_is_taken_within_twice_the_ideal_time(rate: float, hint: float) -> None:
    @virtually
    async def story(clock: Machine) -> None:
        cloud, queue = Cloud(clock, rate=rate, hint=hint), make(clock)
        calls = round(5 * rate)
        began = clock.monotonic()
        await at_once(32, [cloud.call(queue) for _ in range(calls)])
        ideal = (calls - rate) / rate + LATENCY
        assert clock.monotonic() - began < 2 * ideal + hint
        assert cloud.refused < 32 + calls / 2
        queue.limiter.close()

    story()


@virtually
async def test_the_order_is_kept(clock: Machine) -> None:
    """Who was refused goes before those that came later."""
    cloud, queue = Cloud(clock, rate=5.0, hint=0.5), make(clock)
    await at_once(10, [cloud.call(queue) for _ in range(60)])
    assert max(abs(place - position) for position, place in enumerate(cloud.taken)) < 10
    queue.limiter.close()


@virtually
async def test_a_wave_that_is_refused_is_one_sign(clock: Machine) -> None:
    cloud, queue = Cloud(clock, rate=0.0, hint=0.0), make(clock)
    calls = [asyncio.create_task(cloud.call(queue)) for _ in range(32)]
    await clock.sleep(LATENCY + 0.01)
    assert cloud.refused >= 32
    assert queue.limiter.rate == 16.0
    for call in calls:
        call.cancel()
    queue.limiter.close()


@virtually
async def test_it_backs_off_once_for_what_was_under_way(clock: Machine) -> None:
    """Neither the calls that follow at once are a new sign, nor one that was made before and took its time."""
    queue = make(clock)
    for _ in range(32):
        await queue.wait_turn()
    early = clock.monotonic()
    queue.limiter.on_throttled(sent=early, delay=0.0)
    await clock.sleep(0.5)
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=0.0)
    assert queue.limiter.rate == 16.0
    await clock.sleep(5.0)
    queue.limiter.on_throttled(sent=early - 0.1, delay=0.0)
    assert queue.limiter.rate == 16.0
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=0.0)
    assert queue.limiter.rate == 8.0
    queue.limiter.close()


@virtually
async def test_without_a_hint_it_backs_off_as_well(clock: Machine) -> None:
    """And finds back by itself when the provider does."""
    changes: list[bool] = []
    cloud, queue = Cloud(clock, rate=0.0, hint=0.0), make(clock, changes)
    calls = [asyncio.create_task(cloud.call(queue)) for _ in range(32)]
    await clock.sleep(600.0)
    refused = cloud.refused
    assert queue.limiter.rate == MIN_RATE
    await clock.sleep(600.0)
    assert cloud.refused - refused <= 25
    cloud.rate = 20.0
    cloud._most = 20.0
    await asyncio.wait_for(asyncio.gather(*calls), 200.0)
    assert queue.limiter.is_limited
    await clock.sleep(RECOVERY_SECONDS + 61.0)
    assert not queue.limiter.is_limited
    assert changes == [True, False]


@virtually
async def test_a_hint_is_respected(clock: Machine) -> None:
    queue = make(clock)
    place = await queue.wait_turn()
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=7.0)
    began = clock.monotonic()
    await queue.wait_turn(place)
    assert 7.0 <= clock.monotonic() - began < 12.0
    queue.limiter.close()


@virtually
async def test_calls_that_wait_do_not_wake_together(clock: Machine) -> None:
    queue = make(clock)
    for _ in range(20):
        await queue.wait_turn()
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=1.0)
    times: list[float] = []

    async def one() -> None:
        await queue.wait_turn()
        times.append(clock.monotonic())

    await asyncio.gather(*(one() for _ in range(20)))
    assert len(set(times)) == 20
    assert len({round(b - a, 6) for a, b in itertools.pairwise(times)}) > 10
    queue.limiter.close()


@virtually
async def test_who_leaves_the_row_holds_nobody_up(clock: Machine) -> None:
    queue = make(clock)
    place = await queue.wait_turn()
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=1.0)
    waiting = [asyncio.create_task(queue.wait_turn(place)), asyncio.create_task(queue.wait_turn())]
    await clock.sleep(0.1)
    waiting[0].cancel()
    await asyncio.wait_for(waiting[1], 10.0)
    queue.limiter.close()


@virtually
async def test_our_own_limit(clock: Machine) -> None:
    """`create_rate_limit`: some at once, then one each so many seconds."""
    queue = make(clock, min_interval=lambda: 2.0)
    began = clock.monotonic()
    for _ in range(BURST_CALLS):
        await queue.wait_turn()
    assert clock.monotonic() == began
    for _ in range(5):
        await queue.wait_turn()
    assert clock.monotonic() - began == pytest.approx(10.0)


def test_any_weather_ends() -> None:
    """Refusals come and go as they like: when they end, everybody gets through."""

    @virtually
    async def story(clock: Machine) -> None:
        r = random.Random(7)
        cloud, queue = Cloud(clock, rate=10.0, hint=0.3), make(clock)
        calls = asyncio.gather(*(cloud.call(queue) for _ in range(200)))
        for _ in range(20):
            await clock.sleep(r.uniform(0.1, 5.0))
            cloud.rate = r.choice((0.0, 1.0, 50.0))
        cloud.rate = 20.0
        await asyncio.wait_for(calls, 300.0)
        assert sorted(cloud.taken) == list(range(200))
        queue.limiter.close()

    story()


def test_a_pause_ends_although_clocks_round() -> None:
    """A hair was left when the timer fired, and a timer for a hair fires at once: the loop never came to an end (seed
    60161)."""

    @virtually
    async def story(clock: Machine) -> None:
        await clock.sleep(5e5)
        clock._frozen = 5e5  # its own time is young, and finer than the loop's
        queue = make(clock)
        for seconds in range(50):
            queue.limiter.on_throttled(sent=clock.monotonic(), delay=0.1 + seconds / 7)
            async with asyncio.timeout(500.0):
                await queue.wait_turn()

    story()


@virtually
async def test_one_lane_that_is_refused_slows_the_others_down(clock: Machine) -> None:
    """The provider as a whole is given time, not one kind of call; and none waits behind all of another kind."""
    creates = make(clock)
    looks = creates.limiter.add_queue()
    creates.limiter.on_throttled(sent=clock.monotonic(), delay=2.0)
    began = clock.monotonic()
    order: list[str] = []

    async def call(name: str, queue: RequestQueue) -> None:
        await queue.wait_turn()
        assert clock.monotonic() - began >= 2.0
        order.append(name)

    await asyncio.gather(*(call("create", creates) for _ in range(20)), *(call("look", looks) for _ in range(5)))
    assert clock.monotonic() - began >= 2.0 + 24 / MIN_FIRST_GUESS  # at the first guess
    assert order[:10].count("look") == 5
    creates.limiter.close()


@virtually
async def test_few_calls_are_no_reason_to_stand_still(clock: Machine) -> None:
    """One refused listing in an idle shard says nothing about how many creates are too many."""
    queue = make(clock)
    await queue.wait_turn()
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=0.0)
    assert queue.limiter.rate == MIN_FIRST_GUESS / 2
    queue.limiter.close()


@virtually
async def test_who_does_not_want_to_call_any_more_needs_no_turn(clock: Machine) -> None:
    queue = make(clock)
    queue.limiter.on_throttled(sent=clock.monotonic(), delay=30.0)
    wanted = True
    began = clock.monotonic()
    waiting = [asyncio.create_task(queue.wait_turn(is_wanted=lambda: wanted)) for _ in range(100)]
    await clock.sleep(1.0)
    assert not any(task.done() for task in waiting)
    wanted = False
    late = asyncio.create_task(queue.wait_turn())
    await asyncio.gather(*waiting)
    assert clock.monotonic() - began < 2.0
    assert not late.done()  # it does want to
    await late
    assert clock.monotonic() - began >= 30.0
    queue.limiter.close()
