"""The door to object storage.

Everything durable goes through these verbs. Each one is conditional or idempotent, because two servers may believe that
they lead. The trap: a write can fail *after* it was applied, and a cancelled one may still complete. Implementations say
so with `Unknown` and never retry by themselves; the caller reads back by the operation ID that it put into the body.
For the same reason two writers never write equal bytes to one key: some stores' versions are content hashes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NewType, Protocol

from nstance.objects import errors

Key = NewType("Key", str)
Version = NewType("Version", str)

MAX_KEY = 1024
MAX_READ = 8 << 20  # bytes of an object, unless the reader knows better


def check_size(key: Key, size: int, limit: int) -> None:
    """Raises ObjectTooLargeError."""
    if size > limit:
        raise errors.ObjectTooLargeError(f"{key} has {size:,} bytes, expected at most {limit:,}; somebody put it there")


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
    """All calls may raise Denied. Deadlines are the caller's: wrap a call in `asyncio.timeout`, and treat a write that
    timed out as Unknown."""

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        """The newest version. Raises Missing, Unavailable, and ObjectTooLargeError without having read an object of more
        than `limit` bytes."""
        ...

    async def head(self, key: Key) -> Head:
        """What is known of the newest version without its body. Raises Missing, Unavailable."""
        ...

    async def create(self, key: Key, body: bytes) -> Version:
        """Write only if absent. Raises Conflict, Unavailable, Unknown."""
        ...

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        """Write only over the version that was seen. Raises Conflict, Missing, Unavailable, Unknown."""
        ...

    async def delete(self, key: Key) -> None:
        """Absent afterwards; deleting what is absent is success. Raises Unavailable, Unknown."""
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        """All keys that start with the prefix and sort after `after`, in order: complete, or an error, never a quiet
        half. Raises Unavailable."""
        ...

    async def close(self) -> None: ...
