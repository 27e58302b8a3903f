"""A value that ends, such as a token, and is fetched again before that.

While the old value is valid nobody waits for the new one. The trap: the service that gives it may hang, and if each caller
waited for its answer in turn, a store would be out of reach although its token is good for minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from nstance.clock import Clock

RETRY_SECONDS = 10.0  # between fetches while the old value is valid


class Expiring(Protocol):
    @property
    def expires(self) -> float | None:
        """Seconds since 1970; None: never."""
        ...


T = TypeVar("T", bound=Expiring)


class RenewedValue(Generic[T]):
    """One fetch at a time, for all callers."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[T]],
        clock: Clock,
        *,
        early_seconds: float,
        expected: type[Exception],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`fetch` raises `expected`. A failure is reported while the old value is valid, and raised afterwards."""
        self._fetch, self._clock = fetch, clock
        self._early_seconds, self._expected, self._on_failure = early_seconds, expected, on_failure
        self._current: T | None = None
        self._renewal: asyncio.Task[T | Exception] | None = None
        self._next = 0.0  # on the monotonic clock

    async def get(self) -> T:
        current = self._current
        left = self._seconds_left()
        if current is not None and left > self._early_seconds:
            return current
        is_valid = current is not None and left > 0
        if self._renewal is None and not (is_valid and self._clock.monotonic() < self._next):
            self._renewal = asyncio.create_task(self._renew())
        if current is not None and is_valid:
            return current
        assert self._renewal is not None
        found = await asyncio.shield(self._renewal)
        if isinstance(found, Exception):
            raise found
        return found

    def reject(self, value: T) -> None:
        """It is no longer accepted: the next `get` fetches another one."""
        if self._current is value:
            self._current = None

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    def _seconds_left(self) -> float:
        if self._current is None:
            return 0.0
        expires = self._current.expires
        return float("inf") if expires is None else expires - self._clock.wall()

    async def _renew(self) -> T | Exception:
        try:
            self._current = await self._fetch()
            return self._current
        except self._expected as problem:
            if self._seconds_left() > 0:
                self._on_failure(problem)
            return problem
        finally:
            self._renewal = None
            self._next = self._clock.monotonic() + RETRY_SECONDS
