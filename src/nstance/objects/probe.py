"""Checks at start that a store honors conditions, also when writers race, because everything else relies on it.

Some S3 imitations accept `If-None-Match` and `If-Match` and ignore them; others honor them one request at a time and let
several writers win a race. On such a store two servers would both lead. The probe races 16 writers to create an object
of a random name, then 16 to replace it, and does so with two objects at once: exactly one writer may win each race. Racy
stores pass most races, so a fast store is raced again and again for half a second; a slow one delays no server for that. To
pass is evidence, not proof. A lost answer says nothing about the store: the error is raised and the caller retries. A store
that takes a write per second and object gets that time.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

from nstance.clock import Clock, Rng
from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore, Version, write_gap

WRITERS = 16
OBJECTS = 2
REPLACE_RACES = 24  # of each object, at most
RACING_SECONDS = 0.5  # then no further race is started

_CREATE = "create-if-absent (If-None-Match: *)"
_REPLACE = "write-if-match (If-Match with a stale ETag)"


class UnsuitableStoreError(Exception):
    """The store does not honor conditions: two servers could both lead. Never run on it."""


async def probe(store: ObjectStore, prefix: str, *, clock: Clock, rng: Rng, replace_races: int = REPLACE_RACES) -> None:
    """Raises UnsuitableStoreError, or storage errors if the store could not be checked. On a slow store it takes as long as
    five requests in a row."""
    keys = [Key(f"{prefix.rstrip('/')}/probe-{rng.bits(64):016x}".lstrip("/")) for _ in range(OBJECTS)]
    try:
        outcomes = await asyncio.gather(
            *(_ask(store, key, clock, replace_races) for key in keys), return_exceptions=True
        )
    except BaseException:
        with contextlib.suppress(errors.StorageError):
            await _remove(store, keys)
        raise
    problems = [outcome for outcome in outcomes if outcome is not None]
    await clock.sleep(write_gap(store))
    # That one round could not be finished does not excuse the store from what the other one has shown.
    problems.sort(key=lambda problem: not isinstance(problem, UnsuitableStoreError))
    if not problems:
        await _remove(store, keys)
        return
    with contextlib.suppress(errors.StorageError):  # the first error is the one to report
        await _remove(store, keys)
    raise problems[0]


async def _ask(store: ObjectStore, key: Key, clock: Clock, replace_races: int) -> None:
    end = clock.monotonic() + RACING_SECONDS
    winner, version = await _race(store, _CREATE, "create", lambda body: store.create(key, body))
    for number in range(replace_races):
        await clock.sleep(write_gap(store))
        stale = version
        replace = functools.partial(store.replace, key, seen=stale)
        winner, version = await _race(store, _REPLACE, f"replace {number}", replace)
        if version == stale:
            raise UnsuitableStoreError(_ignores(store, "a new version for each write (ETag)"))
        if clock.monotonic() >= end:
            break
    await clock.sleep(write_gap(store))
    try:
        await store.replace(key, b"stale", seen=stale)
    except errors.ConflictError:
        pass
    else:
        raise UnsuitableStoreError(_ignores(store, _REPLACE))
    if (await store.get(key)).body != winner:
        raise UnsuitableStoreError(_ignores(store, "reading what was written last"))


async def _race(
    store: ObjectStore, condition: str, name: str, write: Callable[[bytes], Awaitable[Version]]
) -> tuple[bytes, Version]:
    """What the only winner wrote, and its version. No two bodies are equal: some versions are hashes of the content."""
    bodies = [f"{name} by writer {number}".encode() for number in range(WRITERS)]
    outcomes = await asyncio.gather(*map(write, bodies), return_exceptions=True)
    won = [(body, version) for body, version in zip(bodies, outcomes, strict=True) if isinstance(version, str)]
    if len(won) == WRITERS:
        raise UnsuitableStoreError(_ignores(store, condition))
    if len(won) > 1:
        raise UnsuitableStoreError(_refusal(store, f"lets {len(won)} of {WRITERS} writers win a race for {condition}"))
    # A write that met another one and was turned away has lost, like one that came too late.
    lost = (errors.ContendedError,) if won else ()
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, (errors.ConflictError, *lost)):
            raise outcome
    if not won:
        raise UnsuitableStoreError(_refusal(store, f"lets none of {WRITERS} writers win a race for {condition}"))
    return won[0]


async def _remove(store: ObjectStore, keys: list[Key]) -> None:
    await asyncio.gather(*map(store.delete, keys))


def _ignores(store: ObjectStore, condition: str) -> str:
    return _refusal(store, f"does not honor {condition}")


def _refusal(store: ObjectStore, fault: str) -> str:
    return (
        f"{store!r} {fault}, so two servers could lead at once; "
        "use a store with conditional writes (Amazon S3, Google Cloud Storage, MinIO, Ceph, R2, or a directory)"
    )
