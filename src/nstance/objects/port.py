"""The port to object storage.

Each verb is conditional or idempotent, because two servers may believe that they lead. The trap: a write can fail *after*
it was applied, and a cancelled one may still complete. Implementations report that as UnknownOutcomeError and never retry
by themselves; the caller reads back by the operation ID in the body. For the same reason two writers never write equal
bytes to one key: some stores' versions are content hashes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NewType, Protocol, runtime_checkable

from nstance.objects import errors

Key = NewType("Key", str)
Version = NewType("Version", str)

MAX_KEY = 1024
MAX_READ = 8 << 20  # bytes of an object, unless the reader passes another limit


def check_size(key: Key, size: int, limit: int) -> None:
    """Raises ObjectTooLargeError."""
    if size > limit:
        raise errors.ObjectTooLargeError(
            f"expected at most {limit:,} bytes in {key}, found {size:,}; Nstance did not write it"
        )


@dataclass(frozen=True, slots=True)
class Stored:
    body: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Head:
    version: Version
    size: int
    modified: float  # seconds since 1970, by the store's clock


class ObjectStore(Protocol):
    """All calls may raise PermissionDeniedError. Deadlines are the caller's: wrap a call in `asyncio.timeout`, and treat the
    outcome of a write that timed out as unknown."""

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        """The newest version. Raises NotFoundError, UnavailableError, and ObjectTooLargeError before reading an object of more
        than `limit` bytes."""
        ...

    async def head(self, key: Key) -> Head:
        """The newest version without its body. Raises NotFoundError, UnavailableError."""
        ...

    async def create(self, key: Key, body: bytes) -> Version:
        """Write only if absent. Raises ConflictError, UnavailableError, UnknownOutcomeError."""
        ...

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        """Write only over the version that was seen. Raises ConflictError, NotFoundError, UnavailableError,
        UnknownOutcomeError."""
        ...

    async def delete(self, key: Key) -> None:
        """Absent afterwards; deleting an absent object is success. Raises UnavailableError, UnknownOutcomeError."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        """All keys that start with the prefix and sort after `after`, in order: complete, or an error. Raises
        UnavailableError."""
        ...

    async def close(self) -> None: ...


def write_gap(store: ObjectStore) -> float:
    """Seconds that must pass between two writes of one object: of the store itself or of the one that it wraps."""
    return float(getattr(store, "write_gap_seconds", 0.0))


@runtime_checkable
class UrlSigner(Protocol):
    """A store whose objects can be read over HTTP by somebody without credentials."""

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        """A URL for a GET of the object, which need not exist. Raises UnavailableError."""
        ...


async def sign_url(store: ObjectStore, key: Key, *, seconds: float) -> str:
    """Raises PermissionDeniedError if the store cannot sign URLs, UnavailableError."""
    if not isinstance(store, UrlSigner):
        raise errors.PermissionDeniedError(
            f"expected a store that signs URLs (s3, gcs), found {store!r}; use a URL instead"
        )
    return await store.sign_url(key, seconds=seconds)
