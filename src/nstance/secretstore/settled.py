"""Writes to object storage whose outcome is certain.

A write may be applied although its answer was lost, or land after its caller gave up. Each body here is unlike any
other (the caller sees to that), and each write is conditional, so repeating it is harmless and reading back tells whose
it was. The trap: "absent" right after an unknown create proves nothing, it may yet land; only a later write decides.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore, Stored

T = TypeVar("T")

CALL_TIMEOUT = 30.0
ATTEMPTS = 5


async def read(store: ObjectStore, key: Key) -> Stored | None:
    """None only if the store said that there is none."""
    try:
        return await _timed(store.get(key), errors.UnavailableError(f"get {key}: no answer within {CALL_TIMEOUT:g} s"))
    except errors.NotFoundError:
        return None


async def create_or_adopt(store: ObjectStore, key: Key, body: bytes) -> Stored:
    """What is there in the end: our body, or that of whoever came first. Raises Unavailable, Denied, Unknown."""
    for _ in range(ATTEMPTS):
        try:
            return Stored(body, await _timed(store.create(key, body), _unknown("create", key)))
        except (errors.ConflictError, errors.UnknownOutcomeError):
            found = await read(store, key)
            if found is not None:
                return found
    raise errors.UnknownOutcomeError(f"create {key}: the outcome stayed unknown after {ATTEMPTS} attempts; try again")


async def replace(store: ObjectStore, key: Key, body: bytes, *, seen: Stored) -> None:
    """Raises Conflict if somebody else wrote since, Unavailable, Denied, Unknown."""
    for _ in range(ATTEMPTS):
        try:
            await _timed(store.replace(key, body, seen=seen.version), _unknown("replace", key))
            return
        except (errors.ConflictError, errors.NotFoundError, errors.UnknownOutcomeError):
            found = await read(store, key)
            if found is not None and found.body == body:
                return
            if found is None or found.version != seen.version:
                raise errors.ConflictError(f"replace {key}: somebody else wrote it meanwhile; read it again") from None
    raise errors.UnknownOutcomeError(f"replace {key}: the outcome stayed unknown after {ATTEMPTS} attempts; try again")


async def put(store: ObjectStore, key: Key, body: bytes) -> None:
    """Our body is there at one moment during the call. Raises Unavailable, Denied, Unknown."""
    for _ in range(ATTEMPTS):
        found = await read(store, key)
        if found is None:
            found = await create_or_adopt(store, key, body)
        if found.body == body:
            return
        try:
            await replace(store, key, body, seen=found)
            return
        except errors.ConflictError:
            continue
    raise errors.UnavailableError(f"put {key}: others keep writing it; try again")


async def delete(store: ObjectStore, key: Key) -> None:
    for _ in range(ATTEMPTS):
        try:
            await _timed(store.delete(key), _unknown("delete", key))
            return
        except errors.UnknownOutcomeError:
            continue
    raise errors.UnknownOutcomeError(f"delete {key}: the outcome stayed unknown after {ATTEMPTS} attempts; try again")


async def list_keys(store: ObjectStore, prefix: str) -> list[Key]:
    async def gather() -> list[Key]:
        return [key async for key in store.list(prefix)]

    return await _timed(gather(), errors.UnavailableError(f"list {prefix}: no answer within {CALL_TIMEOUT:g} s"))


def _unknown(verb: str, key: Key) -> errors.StorageError:
    return errors.UnknownOutcomeError(f"{verb} {key}: no answer within {CALL_TIMEOUT:g} s")


async def _timed(call: Awaitable[T], late: errors.StorageError) -> T:
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            return await call
    except TimeoutError:
        raise late from None
