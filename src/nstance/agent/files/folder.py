"""A directory that the agent writes to. A crash at any moment leaves each file old or new, never partial.

Files are opened relative to the directory's descriptor, without following links, and by plain names only: the server,
which chooses names, cannot choose another directory. The trap: a rename is durable only after its *directory* is synced.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_NAME_BYTES = 200  # leaves room for the suffixes added here and by the keys
MAX_READ = 4 << 20


class SetupError(Exception):
    """The agent cannot run with its directories and files as they are; the message says what to do."""


def name_problem(name: str) -> str | None:
    """Why a name is not a plain file name, or None."""
    if not name:
        return "the name is empty"
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"the name is longer than {MAX_NAME_BYTES} bytes"
    if name.startswith("."):
        return "the name starts with a dot"
    if "/" in name:
        return "the name contains a slash"
    if not name.isprintable():
        return "the name contains control or unprintable characters"
    return None


class OpenFolder:
    """An open directory. Names come from the agent itself or have passed `name_problem`."""

    def __init__(self, fd: int, mode: int) -> None:
        self.fd = fd
        self.mode = mode

    def read(self, name: str) -> bytes | None:
        """The content of a regular file, or None if it does not exist."""
        try:
            # Non-blocking, so that a FIFO put in a file's place cannot hang the agent.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SetupError(f"expected {name} to be a regular file; remove what is there")
            if status.st_size > MAX_READ:
                raise SetupError(f"expected {name} to have at most {MAX_READ} bytes, found {status.st_size}")
            return file.read(MAX_READ)

    def create(self, name: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a new file. Not synced: see `sync_file`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchmod(fd, self.mode if mode is None else mode)
        finally:
            os.close(fd)

    def sync_file(self, name: str) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync(self) -> None:
        os.fsync(self.fd)

    def replace(self, name: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a temporary file, sync it, rename it, sync the directory."""
        temporary = f".{name}.new"
        self.remove(temporary)
        self.create(temporary, content, mode=mode)
        self.sync_file(temporary)
        os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.sync()

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(os.listdir(self.fd))

    @contextmanager
    def child(self, name: str) -> Iterator["OpenFolder"]:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            yield OpenFolder(fd, self.mode)
        finally:
            os.close(fd)


class Folder:
    """Opened for each operation, so that a directory replaced by an administrator is noticed."""

    def __init__(self, path: Path, *, mode: int) -> None:
        self.path = path
        self.mode = mode  # of files; users that may read a file may also enter the directory

    def prepare(self) -> None:
        """Create the directory if it is missing, and check that it is writable."""
        try:
            if not self.path.is_dir():
                os.makedirs(self.path)
                os.chmod(self.path, self.mode | (self.mode & 0o444) >> 2)
            with self.enter() as inside:
                inside.replace(".probe", b"")
                inside.remove(".probe")
        except OSError as error:
            raise SetupError(f"expected a writable directory at {self.path}, found: {error.strerror}") from error

    @contextmanager
    def enter(self) -> Iterator[OpenFolder]:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield OpenFolder(fd, self.mode)
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes | None:
        with self.enter() as inside:
            try:
                return inside.read(name)
            except OSError as error:
                raise SetupError(f"failed to read {self.path / name}: {error.strerror}") from error

    def write(self, name: str, content: bytes, *, mode: int | None = None) -> None:
        with self.enter() as inside:
            inside.replace(name, content, mode=mode)

    def remove(self, name: str) -> None:
        with self.enter() as inside:
            inside.remove(name)
            inside.sync()
