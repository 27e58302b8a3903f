"""Conditional writes whose outcome is always known in the end.

A write that may or may not have been applied is read back by the operation ID in its body and, if it is not there,
repeated byte by byte under the same condition: whichever copy lands first wins, the other one finds its condition
broken. Nothing here retries for ever: `retry` decides, and may wait or raise.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

from nstance.objects import errors
from nstance.objects.port import MAX_READ, Key, ObjectStore, Stored, Version

Retry = Callable[[errors.StorageError], Awaitable[None]]


class OvertakenError(errors.ConflictError):
    """Somebody else's write is there instead. `found` is what was read back, None if the object is missing."""

    def __init__(self, message: str, found: Stored | None) -> None:
        super().__init__(message)
        self.found = found


async def settle(
    store: ObjectStore,
    key: Key,
    body: bytes,
    *,
    op: str | None,
    seen: Version | None,
    timeout: Callable[[], float],
    retry: Retry,
    limit: int = MAX_READ,
) -> Version:
    """Write `body`, which contains `op`, over version `seen` (None: only if absent). Returns the version written, or
    raises Overtaken, Denied, ObjectTooLargeError (somebody wrote more than `limit` bytes instead), or what `retry`
    raises. Without an `op`: a body that is no JSON but like no other, which is recognised as a whole. `timeout` is asked
    before each request."""
    while True:
        seconds = timeout()
        try:
            async with asyncio.timeout(seconds):
                if seen is None:
                    return await store.create(key, body)
                return await store.replace(key, body, seen=seen)
        except (errors.ConflictError, errors.NotFoundError):
            # Perhaps an earlier copy of this very write is what stands in the way.
            doubt: errors.StorageError | None = None
        except errors.PermissionDeniedError:
            raise
        except errors.UnavailableError as problem:
            await retry(problem)
            continue
        except errors.UnknownOutcomeError as problem:
            doubt = problem
        except TimeoutError:
            doubt = errors.UnknownOutcomeError(f"writing {key} took longer than {seconds:g} s")
        while True:
            try:
                found = await _read(store, key, timeout(), limit=limit)
                break
            except (errors.UnavailableError, errors.UnknownOutcomeError) as problem:
                await retry(problem)
        if found is not None and (found.body == body if op is None else operation(found.body) == op):
            return found.version
        unchanged = found is None if seen is None else found is not None and found.version == seen
        if not unchanged or doubt is None:
            raise OvertakenError(f"{key} was {'removed' if found is None else 'written'} by somebody else", found)
        await retry(doubt)


async def _read(store: ObjectStore, key: Key, timeout: float, *, limit: int) -> Stored | None:
    try:
        async with asyncio.timeout(timeout):
            return await store.get(key, limit=limit)
    except errors.NotFoundError:
        return None
    except TimeoutError as problem:
        raise errors.UnavailableError(f"reading {key} took longer than {timeout:g} s") from problem


def operation(body: bytes) -> str | None:
    """The operation ID in a body, or None if it is not one of ours."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    op = value.get("op") if isinstance(value, dict) else None
    return op if isinstance(op, str) else None
