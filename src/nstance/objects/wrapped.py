"""Stores that pass everything on to another one: below a prefix, or with their outcomes counted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from nstance.objects import errors, keys
from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version, sign_url, write_gap

T = TypeVar("T")
Observe = Callable[[str, str], None]  # (operation, outcome)


class WrappedStore:
    """The base. A subclass changes the keys or surrounds the calls."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.write_gap_seconds = write_gap(store)

    def __repr__(self) -> str:
        return repr(self._store)

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        return await self._call("get", self._store.get(self._key(key), limit=limit))

    async def head(self, key: Key) -> Head:
        return await self._call("head", self._store.head(self._key(key)))

    async def create(self, key: Key, body: bytes) -> Version:
        return await self._call("create", self._store.create(self._key(key), body))

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        return await self._call("replace", self._store.replace(self._key(key), body, seen=seen))

    async def delete(self, key: Key) -> None:
        await self._call("delete", self._store.delete(self._key(key)))

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        return self._store.list(prefix, after=after)

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        return await sign_url(self._store, self._key(key), seconds=seconds)  # no request to the store

    async def close(self) -> None:
        await self._store.close()

    def _key(self, key: Key) -> Key:
        return key

    async def _call(self, operation: str, call: Awaitable[T]) -> T:
        """Gets every call but listings."""
        return await call


class PrefixedStore(WrappedStore):
    """A view of a store below one prefix, so that several clusters may share a bucket."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        """Slashes around the prefix are ignored."""
        super().__init__(store)
        self._prefix = prefix.strip("/") + "/"
        keys.check(self._prefix[:-1])

    def __repr__(self) -> str:
        return f"{self._store!r} below {self._prefix}"

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        async for key in self._store.list(self._prefix + prefix, after=self._prefix + after if after else ""):
            yield Key(key[len(self._prefix) :])

    def _key(self, key: Key) -> Key:
        keys.check(key)
        return Key(self._prefix + key)


class ObservedStore(WrappedStore):
    """Reports the outcome of each call, for metrics: requests cost money, and error codes explain a slow shard."""

    def __init__(self, store: ObjectStore, observe: Observe) -> None:
        super().__init__(store)
        self._observe = observe

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        try:
            async for key in self._store.list(prefix, after=after):
                yield key
        except errors.StorageError as problem:
            self._observe("list", problem.code)
            raise
        self._observe("list", "ok")

    async def _call(self, operation: str, call: Awaitable[T]) -> T:
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
