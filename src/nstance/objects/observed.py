"""Reports the outcome of each storage call, for metrics: requests cost money, and error codes explain a slow shard."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from nstance.objects import errors
from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version, sign_url, write_gap

T = TypeVar("T")
Observe = Callable[[str, str], None]  # (operation, outcome)


class ObservedStore:
    def __init__(self, store: ObjectStore, observe: Observe) -> None:
        self._store = store
        self.write_gap_seconds = write_gap(store)
        self._observe = observe

    def __repr__(self) -> str:
        return repr(self._store)

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        return await self._watch("get", self._store.get(key, limit=limit))

    async def head(self, key: Key) -> Head:
        return await self._watch("head", self._store.head(key))

    async def create(self, key: Key, body: bytes) -> Version:
        return await self._watch("create", self._store.create(key, body))

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        return await self._watch("replace", self._store.replace(key, body, seen=seen))

    async def delete(self, key: Key) -> None:
        await self._watch("delete", self._store.delete(key))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        try:
            async for key in self._store.list(prefix, after=after):
                yield key
        except errors.StorageError as problem:
            self._observe("list", problem.code)
            raise
        self._observe("list", "ok")

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        return await sign_url(self._store, key, seconds=seconds)  # no request to the store

    async def close(self) -> None:
        await self._store.close()

    async def _watch(self, operation: str, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except asyncio.CancelledError:
            self._observe(operation, "cancelled")
            raise
        except errors.StorageError as problem:
            self._observe(operation, problem.code)
            raise
        self._observe(operation, "ok")
        return answer
