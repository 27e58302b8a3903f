"""Measures how long object storage takes to answer, so that leadership can adapt to a slow one.

One per process, for the lease and the journal: what was measured in one term is known in the next. A request that was
cancelled counts as well: it took at least as long as somebody waited.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from nstance.clock import Clock
from nstance.core.election import Latency
from nstance.objects import errors
from nstance.objects.port import ObjectStore
from nstance.objects.wrapped import WrappedStore

T = TypeVar("T")


class TimedStore(WrappedStore):
    """Deletions and listings are not measured: leadership does not wait for them."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store)
        self._clock = clock
        self._latency = Latency()

    def latency(self) -> Latency:
        return self._latency

    async def _call(self, operation: str, call: Awaitable[T]) -> T:
        if operation == "delete":
            return await call
        began = self._clock.monotonic()
        try:
            answer = await call
        except (errors.ConflictError, errors.NotFoundError):
            self._latency = self._latency.answered(self._clock.monotonic() - began)
            raise
        except asyncio.CancelledError:
            self._latency = self._latency.timed_out(self._clock.monotonic() - began)
            raise
        self._latency = self._latency.answered(self._clock.monotonic() - began)
        return answer
