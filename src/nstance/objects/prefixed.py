"""A view of a store below one prefix, so that several clusters may share a bucket."""

from collections.abc import AsyncIterator

from nstance.objects import keys
from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version, sign_url, write_gap


class PrefixedStore:
    def __init__(self, store: ObjectStore, prefix: str) -> None:
        """Slashes around the prefix are ignored."""
        self._store = store
        self.write_gap_seconds = write_gap(store)
        self._prefix = prefix.strip("/") + "/"
        keys.check(self._prefix[:-1])

    def __repr__(self) -> str:
        return f"{self._store!r} below {self._prefix}"

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        return await self._store.get(self._full(key), limit=limit)

    async def head(self, key: Key) -> Head:
        return await self._store.head(self._full(key))

    async def create(self, key: Key, body: bytes) -> Version:
        return await self._store.create(self._full(key), body)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        return await self._store.replace(self._full(key), body, seen=seen)

    async def delete(self, key: Key) -> None:
        await self._store.delete(self._full(key))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        async for key in self._store.list(self._prefix + prefix, after=self._prefix + after if after else ""):
            yield Key(key[len(self._prefix) :])

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        return await sign_url(self._store, self._full(key), seconds=seconds)

    async def close(self) -> None:
        await self._store.close()

    def _full(self, key: Key) -> Key:
        keys.check(key)
        return Key(self._prefix + key)
