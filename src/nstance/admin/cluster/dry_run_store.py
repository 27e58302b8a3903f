"""A store for `--dry-run`: reads go to the real store, writes stay in memory, so commands run their usual code.

The trap: written objects must be readable, because commands verify their writes by reading.
"""

import heapq
from collections.abc import AsyncIterator

from nstance.objects import errors
from nstance.objects.port import MAX_READ, Head, Key, ObjectStore, Stored, Version


class DryRunStore:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._written: dict[Key, Stored | None] = {}  # None: deleted
        self._count = 0

    def __repr__(self) -> str:
        return repr(self._store)

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        if key not in self._written:
            return await self._store.get(key, limit=limit)
        stored = self._written[key]
        if stored is None:
            raise errors.NotFoundError(key)
        return stored

    async def head(self, key: Key) -> Head:
        if key not in self._written:
            return await self._store.head(key)
        stored = await self.get(key)
        return Head(stored.version, len(stored.body), 0.0)

    async def create(self, key: Key, body: bytes) -> Version:
        try:
            await self.get(key)
        except errors.NotFoundError:
            return self._write(key, body)
        raise errors.ConflictError(key)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        if (await self.get(key)).version != seen:
            raise errors.ConflictError(key)
        return self._write(key, body)

    async def delete(self, key: Key) -> None:
        self._written[key] = None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        existing = [key async for key in self._store.list(prefix, after=after) if key not in self._written]
        written = sorted(k for k, stored in self._written.items() if stored and k.startswith(prefix) and k > after)
        for key in heapq.merge(existing, written):
            yield key

    async def close(self) -> None:
        await self._store.close()

    def _write(self, key: Key, body: bytes) -> Version:
        self._count += 1
        version = Version(f"rehearsed-{self._count}")
        self._written[key] = Stored(body, version)
        return version
