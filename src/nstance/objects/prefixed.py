"""A view of a store below one prefix, so that several clusters may share a bucket."""

from collections.abc import AsyncIterator

from nstance.objects import keys
from nstance.objects.port import Key, ObjectStore
from nstance.objects.wrapped import WrappedStore


class PrefixedStore(WrappedStore):
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
