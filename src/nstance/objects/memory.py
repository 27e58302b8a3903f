"""Object storage in a dictionary: for tests and the simulator.

It is deterministic and does no I/O; faults come from `faults`, a callable that decides the `Fate` of each call. Several
clients may share the objects with their own faults: `view`. The trap it shares with real stores: an answer may be lost
after the write was applied, and a write may land long after the caller gave up.
"""

import asyncio
import bisect
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from nstance import clock as clocks
from nstance.objects import errors, keys
from nstance.objects.port import MAX_READ, Head, Key, Stored, Version, check_size

T = TypeVar("T")


class Verb(StrEnum):
    GET = "get"
    HEAD = "head"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one call; by default nothing special."""

    before: float = 0.0  # seconds until the store applies the call
    after: float = 0.0  # seconds from then until the answer is there
    error: errors.StorageError | None = None  # raised instead of applying anything
    lost: bool = False  # applied, but the answer is lost: unknown outcome (for a read: unavailable)
    late: float | None = None  # unknown outcome; applied this many seconds after `before`, even if the caller is gone
    stale: float = 0.0  # a read answers as of this many seconds ago; needs `remember`


Faults = Callable[[Verb, str], Awaitable[Fate]]


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    version: Version
    modified: float


@dataclass(slots=True)
class _Objects:
    """What the views share."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # the keys of `entries`, sorted
    past: dict[str, list[tuple[float, _Entry | None]]] = field(default_factory=dict)  # (replaced at, what was there)
    counter: int = 0


class MemoryStore:
    def __init__(
        self,
        clock: clocks.Clock,
        *,
        faults: Faults | None = None,
        ignores: frozenset[Verb] = frozenset(),
        remember: float = 0.0,
    ) -> None:
        """`ignores`: conditions of these verbs are ignored, as some stores do. `remember`: seconds of history that stale reads
        can use."""
        self._clock = clock
        self._faults = faults
        self._ignores = ignores
        self._remember = remember
        self._objects = _Objects()

    def __repr__(self) -> str:
        return "memory store"

    def view(self, faults: Faults | None) -> "MemoryStore":
        """Another client of the same objects."""
        other = MemoryStore(self._clock, faults=faults, ignores=self._ignores, remember=self._remember)
        other._objects = self._objects
        return other

    def contents(self) -> dict[str, bytes]:
        """All objects, without faults: for checks."""
        return {key: self._objects.entries[key].body for key in self._objects.order}

    def tamper(self, key: str, body: bytes | None) -> None:
        """Write or (None) delete without conditions and faults, as a person or a bit flip would."""
        self._set(key, body)

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        def read(at: float | None) -> Stored:
            entry = self._found(key, at)
            check_size(key, len(entry.body), limit)
            return Stored(entry.body, entry.version)

        return await self._read(Verb.GET, key, read)

    async def head(self, key: Key) -> Head:
        def read(at: float | None) -> Head:
            entry = self._found(key, at)
            return Head(entry.version, len(entry.body), entry.modified)

        return await self._read(Verb.HEAD, key, read)

    async def create(self, key: Key, body: bytes) -> Version:
        def write() -> Version:
            if key in self._objects.entries and Verb.CREATE not in self._ignores:
                raise errors.ConflictError(f"create {key}: it already exists")
            return self._set(key, body)

        return await self._write(Verb.CREATE, key, write)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        def write() -> Version:
            if Verb.REPLACE not in self._ignores:
                now = self._found(key, None).version
                if now != seen:
                    raise errors.ConflictError(f"replace {key}: expected version {seen}, found {now}")
            return self._set(key, body)

        return await self._write(Verb.REPLACE, key, write)

    async def delete(self, key: Key) -> None:
        def write() -> Version:
            return self._set(key, None)

        await self._write(Verb.DELETE, key, write)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        def read(at: float | None) -> list[Key]:
            order = self._objects.order if at is None else sorted(self._keys_at(at))
            start = max(bisect.bisect_left(order, prefix), bisect.bisect_right(order, after) if after else 0)
            found = []
            for position in range(start, len(order)):
                if not order[position].startswith(prefix):
                    break
                found.append(Key(order[position]))
            return found

        for key in await self._read(Verb.LIST, prefix, read):
            yield key

    async def close(self) -> None:
        """Nothing to close: pending writes still land, as in a real store."""

    async def _read(self, verb: Verb, key: str, read: Callable[[float | None], T]) -> T:
        if verb is not Verb.LIST:
            keys.check(key)
        fate = await self._fate(verb, key)
        answer = await self._carry_out(fate, lambda: read(self._clock.monotonic() - fate.stale if fate.stale else None))
        if fate.lost or fate.late is not None:
            raise errors.UnavailableError(f"{verb} {key}: the answer was lost")
        return answer

    async def _write(self, verb: Verb, key: str, write: Callable[[], Version]) -> Version:
        keys.check(key)
        fate = await self._fate(verb, key)
        if fate.late is not None:
            _outside(fate.before + fate.late, lambda: _quietly(write))
            await self._carry_out(fate, lambda: None)
            raise errors.UnknownOutcomeError(f"{verb} {key}: no answer came")
        if not fate.lost:
            return await self._carry_out(fate, write)
        with contextlib.suppress(errors.StorageError):
            await self._carry_out(fate, write)
        raise errors.UnknownOutcomeError(f"{verb} {key}: the answer was lost")

    async def _carry_out(self, fate: Fate, act: Callable[[], T]) -> T:
        """The store applies the call at its own time, whether or not the caller still waits."""
        if fate.error is not None:
            await self._clock.sleep(fate.before)
            raise fate.error
        if not fate.before and not fate.after:
            return act()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def apply() -> None:
            settle: Callable[[], None]
            try:
                settle = functools.partial(answer.set_result, act())
            except errors.StorageError as refused:
                settle = functools.partial(answer.set_exception, refused)
            _outside(fate.after, lambda: None if answer.done() else settle())

        _outside(fate.before, apply)
        return await answer

    async def _fate(self, verb: Verb, key: str) -> Fate:
        return Fate() if self._faults is None else await self._faults(verb, key)

    def _found(self, key: str, at: float | None) -> _Entry:
        entry = self._objects.entries.get(key) if at is None else self._at(key, at)
        if entry is None:
            raise errors.NotFoundError(f"no object {key}")
        return entry

    def _set(self, key: str, body: bytes | None) -> Version:
        objects = self._objects
        old = objects.entries.get(key)
        if self._remember:
            now = self._clock.monotonic()
            kept = [past for past in objects.past.get(key, []) if past[0] > now - self._remember]
            objects.past[key] = [*kept, (now, old)]
        objects.counter += 1
        version = Version(f"v{objects.counter}")
        if body is None:
            if objects.entries.pop(key, None) is not None:
                del objects.order[bisect.bisect_left(objects.order, key)]
        else:
            objects.entries[key] = _Entry(bytes(body), version, self._clock.wall())
            if old is None:
                bisect.insort(objects.order, key)
        return version

    def _at(self, key: str, at: float) -> _Entry | None:
        for replaced, entry in self._objects.past.get(key, []):
            if replaced > at:
                return entry
        return self._objects.entries.get(key)

    def _keys_at(self, at: float) -> Iterator[str]:
        for key in {*self._objects.entries, *self._objects.past}:
            if self._at(key, at) is not None:
                yield key


def _outside(seconds: float, act: Callable[[], None]) -> None:
    """Run later in an empty context: what the store does is independent of the caller."""
    asyncio.get_running_loop().call_later(seconds, act, context=contextvars.Context())


def _quietly(write: Callable[[], Version]) -> None:
    """A write that lands late: if its condition no longer holds, there is no caller to report to."""
    with contextlib.suppress(errors.StorageError):
        write()
