"""Checks at start that a store honors conditions, because everything else relies on it.

Some S3 imitations accept `If-None-Match` and `If-Match` and ignore them; on such a store two servers would both lead. The
probe creates an object of a random name twice, replaces it once with a stale version, and removes it. A lost answer says
nothing about the store: the error is raised and the caller retries.
"""

import contextlib

from nstance import clock
from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore


class UnsuitableStoreError(Exception):
    """The store does not honor conditions: two servers could both lead. Never run on it."""


async def probe(store: ObjectStore, prefix: str, rng: clock.Rng) -> None:
    """Raises UnsuitableStoreError, or storage errors if the store could not be checked."""
    key = Key(f"{prefix.rstrip('/')}/probe-{rng.bits(64):016x}".lstrip("/"))
    try:
        await _ask(store, key)
    except BaseException:
        with contextlib.suppress(errors.StorageError):  # the first error is the one to report
            await store.delete(key)
        raise
    await store.delete(key)


async def _ask(store: ObjectStore, key: Key) -> None:
    first = await store.create(key, b"probe 1")
    try:
        await store.create(key, b"probe 2")
    except errors.ConflictError:
        pass
    else:
        raise UnsuitableStoreError(_sentence(store, "create-if-absent (If-None-Match: *)"))
    second = await store.replace(key, b"probe 3", seen=first)
    if second == first:
        raise UnsuitableStoreError(_sentence(store, "a new version for each write (ETag)"))
    try:
        await store.replace(key, b"probe 4", seen=first)
    except errors.ConflictError:
        pass
    else:
        raise UnsuitableStoreError(_sentence(store, "write-if-match (If-Match with a stale ETag)"))
    if (await store.get(key)).body != b"probe 3":
        raise UnsuitableStoreError(_sentence(store, "reading what was written last"))


def _sentence(store: ObjectStore, condition: str) -> str:
    return (
        f"{store!r} does not honor {condition}, so two servers could lead at once; "
        "use a store with conditional writes (Amazon S3, MinIO, Ceph, R2, or a directory)"
    )
