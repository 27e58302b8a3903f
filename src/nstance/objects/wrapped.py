"""A store that passes everything on to another one: the base of stores that measure, count or prefix."""

from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version, sign_url, write_gap

T = TypeVar("T")


class WrappedStore:
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
