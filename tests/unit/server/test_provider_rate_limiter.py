"""F45: a provider that refuses for haste is used to the full, in order, without a standstill."""

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

    async def call(self, lane: RequestQueue) -> None:
        place = await lane.turn()
        while True:
            sent = self._clock.monotonic()
            await self._clock.sleep(LATENCY)
            now = self._clock.monotonic()
            self._tokens = min(self._most, self._tokens + (now - self._at) * self.rate)
            self._at = now
            if self._tokens >= 1:
                self._tokens -= 1
                self.taken.append(place)
                lane.pace.went_well()
                return
            self.refused += 1
            lane.pace.refused(sent=sent, delay=self._hint)
            await lane.turn(place)


def make(clock: Machine, changes: list[bool] | None = None, **given: Callable[[], float]) -> RequestQueue:
    pace = RateLimiter(
        clock,
        SeededRng("pace"),
        changed=lambda: changes.append(pace.limited) if changes is not None else None,
    )
    return pace.lane(**given)


async def at_once(most: int, work: list[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(most)

    async def one(each: Awaitable[None]) -> None:
        async with gate:
            await each

    await asyncio.gather(*map(one, work))


@pytest.mark.parametrize("hint", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("rate", [5.0, 20.0, 100.0])
def test_f45_a_wave_is_taken_within_twice_the_ideal_time(rate: float, hint: float) -> None:
    @virtually
    async def story(clock: Machine) -> None:
        cloud, lane = Cloud(clock, rate=rate, hint=hint), make(clock)
        calls = round(5 * rate)
        began = clock.monotonic()
        await at_once(32, [cloud.call(lane) for _ in range(calls)])
        ideal = (calls - rate) / rate + LATENCY
        assert clock.monotonic() - began < 2 * ideal + hint
        assert cloud.refused < 32 + calls / 2
        lane.pace.close()

    story()


@virtually
async def test_the_order_is_kept(clock: Machine) -> None:
    """Who was refused goes before those that came later."""
    cloud, lane = Cloud(clock, rate=5.0, hint=0.5), make(clock)
    await at_once(10, [cloud.call(lane) for _ in range(60)])
    assert max(abs(place - position) for position, place in enumerate(cloud.taken)) < 10
    lane.pace.close()


@virtually
async def test_a_wave_that_is_refused_is_one_sign(clock: Machine) -> None:
    cloud, lane = Cloud(clock, rate=0.0, hint=0.0), make(clock)
    calls = [asyncio.create_task(cloud.call(lane)) for _ in range(32)]
    await clock.sleep(LATENCY + 0.01)
    assert cloud.refused >= 32
    assert lane.pace.rate == 16.0
    for call in calls:
        call.cancel()
    lane.pace.close()


@virtually
async def test_it_backs_off_once_for_what_was_under_way(clock: Machine) -> None:
    """Neither the calls that follow at once are a new sign, nor one that was made before and took its time."""
    lane = make(clock)
    for _ in range(32):
        await lane.turn()
    early = clock.monotonic()
    lane.pace.refused(sent=early, delay=0.0)
    await clock.sleep(0.5)
    lane.pace.refused(sent=clock.monotonic(), delay=0.0)
    assert lane.pace.rate == 16.0
    await clock.sleep(5.0)
    lane.pace.refused(sent=early - 0.1, delay=0.0)
    assert lane.pace.rate == 16.0
    lane.pace.refused(sent=clock.monotonic(), delay=0.0)
    assert lane.pace.rate == 8.0
    lane.pace.close()


@virtually
async def test_without_a_hint_it_backs_off_as_well(clock: Machine) -> None:
    """And finds back by itself when the provider does."""
    changes: list[bool] = []
    cloud, lane = Cloud(clock, rate=0.0, hint=0.0), make(clock, changes)
    calls = [asyncio.create_task(cloud.call(lane)) for _ in range(32)]
    await clock.sleep(600.0)
    refused = cloud.refused
    assert lane.pace.rate == MIN_RATE
    await clock.sleep(600.0)
    assert cloud.refused - refused <= 25
    cloud.rate = 20.0
    cloud._most = 20.0
    await asyncio.wait_for(asyncio.gather(*calls), 200.0)
    assert lane.pace.limited
    await clock.sleep(RECOVERY_SECONDS + 61.0)
    assert not lane.pace.limited
    assert changes == [True, False]


@virtually
async def test_a_hint_is_respected(clock: Machine) -> None:
    lane = make(clock)
    place = await lane.turn()
    lane.pace.refused(sent=clock.monotonic(), delay=7.0)
    began = clock.monotonic()
    await lane.turn(place)
    assert 7.0 <= clock.monotonic() - began < 12.0
    lane.pace.close()


@virtually
async def test_calls_that_wait_do_not_wake_together(clock: Machine) -> None:
    lane = make(clock)
    for _ in range(20):
        await lane.turn()
    lane.pace.refused(sent=clock.monotonic(), delay=1.0)
    times: list[float] = []

    async def one() -> None:
        await lane.turn()
        times.append(clock.monotonic())

    await asyncio.gather(*(one() for _ in range(20)))
    assert len(set(times)) == 20
    assert len({round(b - a, 6) for a, b in itertools.pairwise(times)}) > 10
    lane.pace.close()


@virtually
async def test_who_leaves_the_row_holds_nobody_up(clock: Machine) -> None:
    lane = make(clock)
    place = await lane.turn()
    lane.pace.refused(sent=clock.monotonic(), delay=1.0)
    waiting = [asyncio.create_task(lane.turn(place)), asyncio.create_task(lane.turn())]
    await clock.sleep(0.1)
    waiting[0].cancel()
    await asyncio.wait_for(waiting[1], 10.0)
    lane.pace.close()


@virtually
async def test_our_own_limit(clock: Machine) -> None:
    """`create_rate_limit`: some at once, then one each so many seconds."""
    lane = make(clock, at_least=lambda: 2.0)
    began = clock.monotonic()
    for _ in range(BURST_CALLS):
        await lane.turn()
    assert clock.monotonic() == began
    for _ in range(5):
        await lane.turn()
    assert clock.monotonic() - began == pytest.approx(10.0)


def test_any_weather_ends() -> None:
    """Refusals come and go as they like: when they end, everybody gets through."""

    @virtually
    async def story(clock: Machine) -> None:
        r = random.Random(7)
        cloud, lane = Cloud(clock, rate=10.0, hint=0.3), make(clock)
        calls = asyncio.gather(*(cloud.call(lane) for _ in range(200)))
        for _ in range(20):
            await clock.sleep(r.uniform(0.1, 5.0))
            cloud.rate = r.choice((0.0, 1.0, 50.0))
        cloud.rate = 20.0
        await asyncio.wait_for(calls, 300.0)
        assert sorted(cloud.taken) == list(range(200))
        lane.pace.close()

    story()


def test_a_pause_ends_although_clocks_round() -> None:
    """A hair was left when the timer fired, and a timer for a hair fires at once: the loop never came to an end (seed
    60161)."""

    @virtually
    async def story(clock: Machine) -> None:
        await clock.sleep(5e5)
        clock._frozen = 5e5  # its own time is young, and finer than the loop's
        lane = make(clock)
        for seconds in range(50):
            lane.pace.refused(sent=clock.monotonic(), delay=0.1 + seconds / 7)
            async with asyncio.timeout(500.0):
                await lane.turn()

    story()


@virtually
async def test_one_lane_that_is_refused_slows_the_others_down(clock: Machine) -> None:
    """The provider as a whole is given time, not one kind of call; and none waits behind all of another kind."""
    creates = make(clock)
    looks = creates.pace.lane()
    creates.pace.refused(sent=clock.monotonic(), delay=2.0)
    began = clock.monotonic()
    order: list[str] = []

    async def call(name: str, lane: RequestQueue) -> None:
        await lane.turn()
        assert clock.monotonic() - began >= 2.0
        order.append(name)

    await asyncio.gather(*(call("create", creates) for _ in range(20)), *(call("look", looks) for _ in range(5)))
    assert clock.monotonic() - began >= 2.0 + 24 / MIN_FIRST_GUESS  # at the first guess
    assert order[:10].count("look") == 5
    creates.pace.close()


@virtually
async def test_few_calls_are_no_reason_to_stand_still(clock: Machine) -> None:
    """One refused listing in an idle shard says nothing about how many creates are too many."""
    lane = make(clock)
    await lane.turn()
    lane.pace.refused(sent=clock.monotonic(), delay=0.0)
    assert lane.pace.rate == MIN_FIRST_GUESS / 2
    lane.pace.close()


@virtually
async def test_who_does_not_want_to_call_any_more_needs_no_turn(clock: Machine) -> None:
    lane = make(clock)
    lane.pace.refused(sent=clock.monotonic(), delay=30.0)
    wanted = True
    began = clock.monotonic()
    waiting = [asyncio.create_task(lane.turn(wanted=lambda: wanted)) for _ in range(100)]
    await clock.sleep(1.0)
    assert not any(task.done() for task in waiting)
    wanted = False
    late = asyncio.create_task(lane.turn())
    await asyncio.gather(*waiting)
    assert clock.monotonic() - began < 2.0
    assert not late.done()  # it does want to
    await late
    assert clock.monotonic() - began >= 30.0
    lane.pace.close()
