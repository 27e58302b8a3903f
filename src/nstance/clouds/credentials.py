"""Credentials that end, kept fresh.

They are fetched again before they end, and while the old ones are valid nobody waits for the new ones. The trap: the
service that gives them may hang, and if each caller waited for its answer in turn, a store would be out of reach although
its token is good for minutes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from nstance.clock import Clock
from nstance.clouds.errors import CredentialsError

RETRY_SECONDS = 10.0  # between fetches while the old credentials are valid

log = logging.getLogger(__name__)


class Ending(Protocol):
    @property
    def expires(self) -> float | None:
        """By the wall clock; None: they do not end."""


C = TypeVar("C", bound=Ending)


class FreshCredentials(Generic[C]):
    """Credentials that are valid now. One fetch at a time, for all callers."""

    def __init__(
        self,
        what: str,
        fetch: Callable[[], Awaitable[C]],
        clock: Clock,
        *,
        refresh_before: float,
        on_failure: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """`what` they are, in messages. `refresh_before`: seconds before their end. A failed fetch is reported while the old
        credentials are valid, and an error afterwards."""
        self._what = what
        self._fetch = fetch
        self._clock = clock
        self._refresh_before = refresh_before
        self._on_failure = on_failure
        self._current: C | None = None
        self._refresh: asyncio.Task[C | CredentialsError] | None = None
        self._next_refresh = 0.0  # on the monotonic clock

    async def get(self) -> C:
        """Raises CredentialsError."""
        current, left = self._current, self._seconds_left()
        if current is not None and left > self._refresh_before:
            return current
        is_valid = left > 0.0
        if self._refresh is None and not (is_valid and self._clock.monotonic() < self._next_refresh):
            self._refresh = asyncio.create_task(self._fetch_again())
        if current is not None and is_valid:
            return current
        assert self._refresh is not None
        found = await asyncio.shield(self._refresh)
        if isinstance(found, CredentialsError):
            raise found
        return found

    def reject(self, credentials: C) -> None:
        """They are no longer accepted: the next `get` fetches others."""
        if self._current is credentials:
            self._current = None

    def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()

    def _seconds_left(self) -> float:
        if self._current is None:
            return 0.0
        expires = self._current.expires
        return float("inf") if expires is None else expires - self._clock.wall()

    async def _fetch_again(self) -> C | CredentialsError:
        try:
            self._current = await self._fetch()
            return self._current
        except CredentialsError as problem:
            if self._seconds_left() > 0.0:
                log.warning("failed to refresh %s: %s", self._what, problem)
                self._on_failure(f"failed to refresh {self._what}; the last one fetched is still valid: {problem}")
            return problem
        finally:
            self._refresh = None
            self._next_refresh = self._clock.monotonic() + RETRY_SECONDS
