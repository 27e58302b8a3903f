"""The rate limit of provider calls: how throttling lowers it, and how it recovers."""

from math import inf

from nstance.core.rate_limit import BURST_CALLS, MIN_RATE, WINDOW_SECONDS, Interval, RateLimit


def throttled(recent_calls: int = 30) -> RateLimit:
    return RateLimit(0.0).back_off(100.0, recent_calls=recent_calls, tokens=0.5)


def test_without_throttling_nothing_is_limited() -> None:
    limit = RateLimit(0.0).refill(5.0)
    assert not limit.is_limited
    assert limit.succeed(6.0) is limit
    assert limit.delay() == 0.0


def test_throttling_halves_the_rate_that_was_too_high() -> None:
    assert throttled().rate == 15.0
    assert throttled(recent_calls=0).rate == 5.0  # a guess: a few calls are never too many
    assert throttled().back_off(200.0, recent_calls=99, tokens=0.0).rate == 7.5
    slow = throttled()
    for _ in range(20):
        slow = slow.back_off(200.0, recent_calls=0, tokens=0.0)
    assert slow.rate == MIN_RATE


def test_calls_in_flight_together_count_once() -> None:
    limit = throttled()
    assert not limit.is_news(100.0 + WINDOW_SECONDS, 99.9)
    assert not limit.is_news(100.0, 100.0)
    assert limit.is_news(100.0 + WINDOW_SECONDS, 100.0)


def test_success_raises_the_rate_fast_and_then_slowly() -> None:
    limit = throttled()
    assert limit.succeed(100.1).rate == 15.5
    while limit.rate < 0.75 * limit.too_high:
        limit = limit.succeed(100.1)
    assert 0.0 < limit.succeed(100.1).rate - limit.rate < 0.04
    assert limit.recover().rate == inf


def test_calls_wait_for_tokens_and_for_the_providers_pause() -> None:
    limit = throttled()
    assert limit.delay() == 0.5 / 15.0
    assert limit.refill(101.0).delay() == 0.0
    assert limit.refill(101.0).spend(1.0).delay() == 1.0 / 15.0
    assert limit.pause(100.0, 7.0).delay() == 7.0
    assert limit.pause(100.0, 1e9).delay() == 1 / MIN_RATE


def test_a_configured_interval_allows_a_burst() -> None:
    interval = Interval(0.0)
    for _ in range(BURST_CALLS):
        assert interval.delay(2.0) == 0.0
        interval = interval.spend()
    assert interval.delay(2.0) == 2.0
    assert interval.refill(1.5, 2.0).delay(2.0) == 0.5
    assert interval.refill(0.0, 0.0).delay(0.0) == 0.0
