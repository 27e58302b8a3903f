"""Secrets as files in a directory, readable by their owner only.

A file appears complete or not at all: it is written to a temporary file, synced, then linked (create) or renamed (put).
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nstance.secretstore import errors, port

T = TypeVar("T")

CALL_TIMEOUT_SECONDS = 30.0


class FileStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get(self, name: str) -> bytes:
        path = self._path(name)
        try:
            value = await _call(lambda: _read(path))
        except FileNotFoundError:
            raise errors.NotFoundError(f"no secret {name!r} in {self._directory}") from None
        if len(value) > port.MAX_VALUE:
            raise errors.DecryptionError(f"expected a secret of at most {port.MAX_VALUE} bytes in {path}, found more")
        return value

    async def create(self, name: str, value: bytes) -> None:
        path = self._path(name)
        port.check_value(value)

        def link(temporary: str) -> None:
            os.link(temporary, path)

        try:
            await _call(lambda: self._write(value, link))
        except FileExistsError:
            raise errors.AlreadyExistsError(f"the secret {name!r} already exists in {self._directory}") from None

    async def put(self, name: str, value: bytes) -> None:
        path = self._path(name)
        port.check_value(value)
        await _call(lambda: self._write(value, lambda temporary: os.replace(temporary, path)))

    async def list(self) -> list[port.SecretName]:
        def names() -> list[port.SecretName]:
            if not self._directory.exists():
                return []
            return sorted(port.SecretName(path.name) for path in self._directory.iterdir() if port.is_name(path.name))

        return await _call(names)

    async def delete(self, name: str) -> None:
        path = self._path(name)

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                self._sync()

        await _call(remove)

    def _path(self, name: str) -> Path:
        return self._directory / port.check_name(name)

    def _write(self, value: bytes, publish: Callable[[str], None]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # No secret's name starts with a dot, so what a crash leaves is never listed. The mode is 0600.
        handle, temporary = tempfile.mkstemp(prefix=".", dir=self._directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            publish(temporary)
            self._sync()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _sync(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(port.MAX_VALUE + 1)  # one more shows that it is too large


async def _call(work: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            return await asyncio.to_thread(work)
    except (FileNotFoundError, FileExistsError):
        raise
    except PermissionError as error:
        raise errors.PermanentError(f"no permission: {error.filename}") from error
    except (OSError, TimeoutError) as error:
        raise errors.UnavailableError(
            f"failed to use the directory of secrets: {error.strerror or 'timeout'}"
        ) from error
