"""Measures how long object storage takes to answer, so that leadership can adapt to a slow one.

One per process, for the lease and the journal: what was measured in one term is known in the next. A request that was
cancelled counts as well: it took at least as long as somebody waited.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from nstance.clock import Clock
from nstance.core.latency import Latency
from nstance.objects import errors
from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version, write_gap

T = TypeVar("T")


class TimedStore:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self.write_gap_seconds = write_gap(store)
        self._clock = clock
        self._latency = Latency()

    def __repr__(self) -> str:
        return repr(self._store)

    def latency(self) -> Latency:
        return self._latency

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        return await self._measure(self._store.get(key, limit=limit))

    async def head(self, key: Key) -> Head:
        return await self._measure(self._store.head(key))

    async def create(self, key: Key, body: bytes) -> Version:
        return await self._measure(self._store.create(key, body))

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        return await self._measure(self._store.replace(key, body, seen=seen))

    async def delete(self, key: Key) -> None:
        await self._store.delete(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        return self._store.list(prefix, after=after)

    async def close(self) -> None:
        await self._store.close()

    async def _measure(self, call: Awaitable[T]) -> T:
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
