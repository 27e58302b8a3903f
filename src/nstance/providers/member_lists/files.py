"""Members of a load balancer in a file that the load balancer's configuration is made from.

The file is replaced as a whole, so a reader never sees half of it. Several servers may share one: a lock beside it keeps
their changes apart. A file that cannot be parsed is an error and never overwritten.
"""

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nstance.clock import Clock
from nstance.model.ids import ProviderId
from nstance.providers import errors
from nstance.providers.member_lists import entries

LOCK_SECONDS = 3.0
_STEP_SECONDS = 0.02

Entries = dict[ProviderId, dict[str, Any]]


class MemberFiles:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def read(self, path: str) -> Entries:
        return await asyncio.to_thread(_read, Path(path))

    async def put(self, path: str, id: ProviderId, entry: Mapping[str, object]) -> None:
        await self._change(path, lambda found: {**found, id: dict(entry)})

    async def remove(self, path: str, id: ProviderId) -> None:
        await self._change(path, lambda found: {key: value for key, value in found.items() if key != id})

    async def _change(self, path: str, change: Callable[[Entries], Entries]) -> None:
        deadline = self._clock.monotonic() + LOCK_SECONDS
        while not await asyncio.to_thread(_try_change, Path(path), change):
            if self._clock.monotonic() > deadline:
                raise errors.UnavailableError(f"expected the lock of {path} within {LOCK_SECONDS:g} s, found it taken")
            await self._clock.sleep(_STEP_SECONDS)


def _read(path: Path) -> Entries:
    try:
        with path.open("rb") as file:
            text = file.read(entries.MAX_LIST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise errors.UnavailableError(f"failed to read {path}: {problem.strerror or problem}") from problem
    if len(text) > entries.MAX_LIST_BYTES:
        raise errors.UnavailableError(f"expected at most {entries.MAX_LIST_BYTES} bytes in {path}, found more")
    return entries.parse(text, str(path))


def _try_change(path: Path, change: Callable[[Entries], Entries]) -> bool:
    """False while another writer has the lock."""
    try:
        with _locked(path) as is_mine:
            if not is_mine:
                return False
            before = _read(path)
            after = change(before)
            if after != before or not path.exists():
                _replace(path, entries.render(after))
            return True
    except OSError as problem:
        raise errors.UnavailableError(f"failed to write {path}: {problem.strerror or problem}") from problem


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    with path.with_name(f".{path.name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True  # released when the file is closed


def _replace(path: Path, text: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # the load balancer is another user
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
