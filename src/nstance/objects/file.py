"""Object storage in a directory, with threads: the embedded default, and what the development S3 server serves.

The work is in `directory`. The trap: a thread cannot be cancelled, so a cancelled write may still complete, as the port
says.
"""

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from nstance import clock as clocks
from nstance.objects import directory, errors
from nstance.objects.port import MAX_READ, Head, Key, Stored, Version

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16


class FileStore:
    def __init__(self, root: str | os.PathLike[str], *, clock: clocks.Clock | None = None) -> None:
        """Creates the directory if it is missing."""
        self._directory = directory.Directory(pathlib.Path(root).absolute(), clock or clocks.SystemClock())
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="objects")

    def __repr__(self) -> str:
        return f"file store {self._directory.root}"

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        return await self._run(self._directory.get, key, limit)

    async def head(self, key: Key) -> Head:
        return await self._run(self._directory.head, key)

    async def heads(self, wanted: Iterable[Key]) -> dict[Key, Head]:
        """Not part of the port: the heads of existing objects, in one call."""

        def look() -> dict[Key, Head]:
            found = {}
            for key in wanted:
                try:
                    found[key] = self._directory.head(key)
                except errors.NotFoundError:
                    continue
            return found

        return await self._run(look)

    async def create(self, key: Key, body: bytes) -> Version:
        def absent(found: Version | None) -> None:
            if found is not None:
                raise errors.ConflictError(f"create {key}: it already exists")

        return await self._run(self._directory.write, key, body, absent)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        def unchanged(found: Version | None) -> None:
            if found is None:
                raise errors.NotFoundError(f"replace {key}: there is no such object")
            if found != seen:
                raise errors.ConflictError(f"replace {key}: expected version {seen}, found {found}")

        return await self._run(self._directory.write, key, body, unchanged)

    async def put(self, key: Key, body: bytes) -> Version:
        """Not part of the port: write unconditionally."""
        return await self._run(self._directory.write, key, body, lambda found: None)

    async def delete(self, key: Key) -> None:
        await self._run(self._directory.delete, key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        for key in await self._run(self._directory.keys, prefix, after):
            yield key

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        try:
            future = self._threads.submit(work, *arguments, **named)
        except RuntimeError as problem:
            raise errors.UnavailableError(f"{self!r} is closed") from problem
        return await asyncio.wrap_future(future)
