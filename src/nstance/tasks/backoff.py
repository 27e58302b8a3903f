"""Delays between retries, and repeating a call until it succeeds."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_MAX_EXPONENT = 64  # any delay has reached its maximum by then, and no float overflows


class UniformRng(Protocol):
    """The part of `nstance.clock.Rng` that jitter needs. Decisions use back-offs too and must not import a clock."""

    def uniform(self, low: float, high: float) -> float: ...


class Sleeper(Protocol):
    """The part of `nstance.clock.Clock` that waiting needs."""

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off in seconds. `jitter` is the part of a delay that is random: 0 none, 0.5 half, 1 all of it."""

    first: float
    most: float
    jitter: float = 0.0
    factor: float = 2.0

    def delay(self, failures: int, rng: UniformRng | None = None) -> float:
        """The delay after so many failures in a row; the first failure is number 1."""
        longest = min(self.most, self.first * self.factor ** min(failures - 1, _MAX_EXPONENT))
        if not self.jitter:
            return longest
        assert rng is not None, "jitter needs a random source"
        return rng.uniform(longest * (1.0 - self.jitter), longest)


async def retry(
    work: Callable[[], Awaitable[T]],
    *,
    clock: Sleeper,
    expected: type[E] | tuple[type[E], ...],
    on_failure: Callable[[E, int], float],
) -> T:
    """Repeat `work` until it succeeds. `on_failure` gets the error and the number of failures so far, and returns the
    delay before the next attempt or raises to give up. Errors other than `expected` pass through."""
    for failures in itertools.count(1):
        try:
            return await work()
        except expected as problem:
            delay = on_failure(problem, failures)
        await clock.sleep(delay)
    raise AssertionError("unreachable")
