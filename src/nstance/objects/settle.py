"""Storage calls whose outcome is known in the end.

A write may be applied although its answer was lost, or land after its caller gave up. So a write of unknown outcome is
read back and, if it is not there, repeated byte by byte under the same condition: the first copy that lands wins, and
the others find their condition broken. The trap: "absent" right after an unknown create proves nothing, because the
create may still land; only a later write decides.

`write` leaves retries to its caller. The other functions make a fixed number of attempts, and are for callers without
a term: the admin CLI, the CA, secrets. Their bodies must be unlike any other body written to that key.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nstance.objects import errors
from nstance.objects.port import MAX_READ, Key, ObjectStore, Stored, Version

T = TypeVar("T")
Retry = Callable[[errors.StorageError], Awaitable[None]]  # waits before the next attempt, or raises to give up

CALL_TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5


class OvertakenError(errors.ConflictError):
    """Another writer's object is there instead. `found` is what was read back, None if the object is missing."""

    def __init__(self, message: str, found: Stored | None) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalWrite:
    """What to write, and over what. `op` is the operation ID inside a JSON body, by which the write is recognized; without
    one the whole body is compared. An object larger than `limit` bytes is not read back."""

    key: Key
    body: bytes
    op: str | None
    seen: Version | None  # None: only if absent
    limit: int = MAX_READ

    def is_own(self, found: Stored) -> bool:
        return found.body == self.body if self.op is None else operation(found.body) == self.op

    def is_unchanged(self, found: Stored | None) -> bool:
        return (None if found is None else found.version) == self.seen


async def write(
    store: ObjectStore, intended: ConditionalWrite, *, timeout: Callable[[], float], retry: Retry
) -> Version:
    """Returns the version written. Raises OvertakenError, PermissionDeniedError, ObjectTooLargeError (another writer's
    object is larger than the limit), or what `retry` raises. `timeout` is asked before each request."""
    key = intended.key
    while True:
        seconds = timeout()
        try:
            async with asyncio.timeout(seconds):
                if intended.seen is None:
                    return await store.create(key, intended.body)
                return await store.replace(key, intended.body, seen=intended.seen)
        except (errors.ConflictError, errors.NotFoundError):
            # An earlier copy of this very write may be what broke the condition.
            doubt: errors.StorageError | None = None
        except errors.UnavailableError as problem:
            await retry(problem)
            continue
        except errors.UnknownOutcomeError as problem:
            doubt = problem
        except TimeoutError:
            doubt = errors.UnknownOutcomeError(f"write {key}: no answer within {seconds:g} s")
        found = await _read_back(store, intended, timeout, retry)
        if found is not None and intended.is_own(found):
            return found.version
        if doubt is None or not intended.is_unchanged(found):
            raise OvertakenError(f"{key} was {'removed' if found is None else 'written'} by another writer", found)
        await retry(doubt)


async def _read_back(
    store: ObjectStore, intended: ConditionalWrite, timeout: Callable[[], float], retry: Retry
) -> Stored | None:
    while True:
        try:
            return await read(store, intended.key, timeout=timeout(), limit=intended.limit)
        except (errors.UnavailableError, errors.UnknownOutcomeError) as problem:
            await retry(problem)


def operation(body: bytes) -> str | None:
    """The operation ID in a body, or None if Nstance did not write it."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    op = value.get("op") if isinstance(value, dict) else None
    return op if isinstance(op, str) else None


async def read(store: ObjectStore, key: Key, *, timeout: float | None = None, limit: int = MAX_READ) -> Stored | None:
    """None only if the store says that there is no such object."""
    try:
        return await _within(timeout or CALL_TIMEOUT_SECONDS, store.get(key, limit=limit), f"get {key}")
    except errors.NotFoundError:
        return None


async def create_or_adopt(store: ObjectStore, key: Key, body: bytes, *, limit: int = MAX_READ) -> Stored:
    """What is there in the end: this body, or that of the writer that was first."""
    for _ in range(ATTEMPTS):
        try:
            return Stored(body, await _write_with_attempts(store, key, body, seen=None, limit=limit))
        except OvertakenError as overtaken:
            if overtaken.found is not None:
                return overtaken.found
    raise _still_unknown(f"create {key}")


async def replace(store: ObjectStore, key: Key, body: bytes, *, seen: Stored, limit: int = MAX_READ) -> None:
    """Raises ConflictError if another writer was faster."""
    for _ in range(ATTEMPTS):
        try:
            await _write_with_attempts(store, key, body, seen=seen.version, limit=limit)
            return
        except OvertakenError as overtaken:
            if overtaken.found is None or overtaken.found.version != seen.version:
                raise
    raise _still_unknown(f"replace {key}")


async def change(
    store: ObjectStore, key: Key, edit: Callable[[Stored | None], bytes | None], *, limit: int = MAX_READ
) -> bytes | None:
    """Writes what `edit` makes of the object over the version that it was made of; None leaves it. Returns the body that is
    there then."""
    for _ in range(ATTEMPTS):
        found = await read(store, key, limit=limit)
        body = edit(found)
        if body is None or (found is not None and body == found.body):
            return None if found is None else found.body
        try:
            if found is not None:
                await replace(store, key, body, seen=found, limit=limit)
                return body
        except errors.ConflictError:
            continue
        if (await create_or_adopt(store, key, body, limit=limit)).body == body:
            return body
    raise errors.UnavailableError(f"{key}: other writers were faster {ATTEMPTS} times; try again")


async def put(store: ObjectStore, key: Key, body: bytes, *, limit: int = MAX_READ) -> None:
    """Write over anything that is not larger than the limit: the body is there at one moment during the call."""
    await change(store, key, lambda found: body, limit=limit)


async def delete(store: ObjectStore, key: Key) -> None:
    for _ in range(ATTEMPTS):
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                await store.delete(key)
            return
        except (errors.UnknownOutcomeError, TimeoutError):
            continue
    raise _still_unknown(f"delete {key}")


async def list_keys(store: ObjectStore, prefix: str) -> list[Key]:
    async def collect() -> list[Key]:
        return [key async for key in store.list(prefix)]

    return await _within(CALL_TIMEOUT_SECONDS, collect(), f"list {prefix}")


async def _write_with_attempts(
    store: ObjectStore, key: Key, body: bytes, *, seen: Version | None, limit: int
) -> Version:
    attempts = 1

    async def retry(problem: errors.StorageError) -> None:
        nonlocal attempts
        if not isinstance(problem, errors.UnknownOutcomeError):
            raise problem
        if attempts == ATTEMPTS:
            raise _still_unknown(f"write {key}") from problem
        attempts += 1

    intended = ConditionalWrite(key=key, body=body, op=None, seen=seen, limit=limit)
    return await write(store, intended, timeout=lambda: CALL_TIMEOUT_SECONDS, retry=retry)


def _still_unknown(call: str) -> errors.UnknownOutcomeError:
    return errors.UnknownOutcomeError(f"{call}: the outcome is unknown after {ATTEMPTS} attempts; try again")


async def _within(seconds: float, call: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise errors.UnavailableError(f"{what}: no answer within {seconds:g} s") from None
