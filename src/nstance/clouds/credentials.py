"""Credentials that end, kept fresh.

They are fetched again before they end. A failed refresh is an error only when the old ones have ended: until then it is
reported and tried again with the next call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from nstance.clock import Clock
from nstance.clouds.errors import CredentialsError

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
        """`what` they are, in messages. `refresh_before`: seconds before their end."""
        self._what = what
        self._fetch = fetch
        self._clock = clock
        self._refresh_before = refresh_before
        self._on_failure = on_failure
        self._current: C | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> C:
        """Raises CredentialsError."""
        async with self._lock:
            current, now = self._current, self._clock.wall()
            if current is not None and (current.expires is None or now < current.expires - self._refresh_before):
                return current
            try:
                self._current = await self._fetch()
            except CredentialsError as problem:
                if current is None or current.expires is None or now >= current.expires:
                    raise
                log.warning("failed to refresh %s: %s", self._what, problem)
                self._on_failure(f"failed to refresh {self._what}; the last one fetched is still valid: {problem}")
                return current
            return self._current

    def reject(self, credentials: C) -> None:
        """They are no longer accepted: the next `get` fetches others."""
        if self._current is credentials:
            self._current = None
