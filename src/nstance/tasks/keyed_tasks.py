"""One background task per key, kept in step with a changing set of keys."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar

from nstance.tasks import background

K = TypeVar("K", bound=Hashable)


class KeyedTasks(Generic[K]):
    def __init__(self, work: Callable[[K], Coroutine[Any, Any, None]]) -> None:
        """`work` handles one key until it is cancelled."""
        self._work = work
        self._wanted: dict[K, None] = {}
        self._changed = asyncio.Event()

    def want(self, keys: Iterable[K]) -> None:
        """Run tasks for exactly these keys from now on."""
        self._wanted = dict.fromkeys(keys)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled, or until one task fails: then all end."""
        tasks: dict[K, asyncio.Task[None]] = {}
        ended: list[asyncio.Task[None]] = []
        try:
            while True:
                self._changed.clear()
                for key in [key for key in tasks if key not in self._wanted]:
                    tasks[key].cancel()
                    ended.append(tasks.pop(key))
                for key in self._wanted:
                    if key not in tasks:
                        tasks[key] = asyncio.create_task(self._work(key))
                change = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait([*tasks.values(), change], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
                ended = [task for task in ended if not task.done()]
                for task in tasks.values():
                    if task.done():
                        task.result()
                        raise AssertionError("a task ended without being cancelled")
        finally:
            await background.end([*tasks.values(), *ended])
