"""Reports the outcome of each storage call, for metrics: requests cost money, and error codes explain a slow shard."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore
from nstance.objects.wrapped import WrappedStore

T = TypeVar("T")
Observe = Callable[[str, str], None]  # (operation, outcome)


class ObservedStore(WrappedStore):
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
