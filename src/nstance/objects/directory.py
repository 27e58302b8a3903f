"""Objects as files: the blocking half of the file store.

A write creates a temporary file, syncs it, and renames it to the key while a lock file is held, so that a reader finds
the old object or the new one and never a part, whenever the writer dies. The lock is held only for comparing and
renaming: a paused process should not stop the others. A version is the file's modification time, inode and size; each
write moves the time forward, so no two versions are equal, and an edit by hand gives a new version too. Bookkeeping is in
`.nstance/`, which no key can name. The trap: a directory that is gone (unmounted, removed) looks like an empty one;
before anything counts as missing, `.nstance/` must be there.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

from nstance import clock as clocks
from nstance.objects import errors, keys
from nstance.objects.port import Head, Key, Stored, Version, check_size
from nstance.tasks.backoff import Backoff

HIDDEN = ".nstance"
LOCK_TIMEOUT_SECONDS = 5.0  # a lock is held for microseconds: after so long its holder is paused or the disk hangs
LOCK_RETRY = Backoff(0.0005, 0.02)
ATTEMPTS = 10  # of steps that an edit by hand, or another process that removes empty directories, may spoil

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_TIME_STEPS_NS = (1, 1_000, 1_000_000, 2_000_000_000)  # ns: file systems round times to something between 1 ns and 2 s

Condition = Callable[[Version | None], None]  # gets the current version, raises if it must not be overwritten


class Directory:
    def __init__(self, root: pathlib.Path, clock: clocks.Clock) -> None:
        self.root = root
        self._clock = clock
        self._hidden = root / HIDDEN
        self._temporary = self._hidden / "temporary"
        with _translate_errors(f"open the bucket directory {root}"):
            (self._hidden / "locks").mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            self._remove_leftovers()

    def get(self, key: Key, limit: int) -> Stored:
        path = self._path(key)
        with _translate_errors(f"get {key}"):
            for _ in range(ATTEMPTS):
                try:
                    with open(path, "rb") as file:
                        before = _regular(os.fstat(file.fileno()))
                        check_size(key, before.st_size, limit)
                        body = file.read(before.st_size + 1)
                        after = os.fstat(file.fileno())
                except _ABSENT:
                    raise self._missing(key) from None
                if _version(before) == _version(after) and len(body) == after.st_size:
                    return Stored(body, _version(after))
        raise errors.UnavailableError(f"get {key}: the file kept changing while it was read")

    def head(self, key: Key) -> Head:
        path = self._path(key)
        with _translate_errors(f"head {key}"):
            try:
                found = _regular(os.stat(path))
            except _ABSENT:
                raise self._missing(key) from None
        return Head(_version(found), found.st_size, found.st_mtime)

    def write(self, key: Key, body: bytes, condition: Condition) -> Version:
        path = self._path(key)
        with _translate_errors(f"write {key}"):
            descriptor, temporary = tempfile.mkstemp(dir=self._temporary)
        try:
            with _closing(descriptor):
                with _translate_errors(f"write {key}"):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)  # shows `_remove_leftovers` that its writer is alive
                    _write(descriptor, body)
                    now = int(self._clock.wall() * 1e9)
                    os.utime(descriptor, ns=(now, now))
                    os.fsync(descriptor)
                with self._locked(key), _translate_errors(f"write {key}"):
                    found = _stat(path)
                    condition(None if found is None else _version(found))
                    if found is not None:
                        _move_time_past(descriptor, found.st_mtime_ns)
                    version = _version(os.fstat(descriptor))
                    has_created_directories = self._rename_into_place(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with _translate_errors(f"write {key}", applied=True):
            self._sync(path.parent, upwards=has_created_directories)
        return version

    def delete(self, key: Key) -> None:
        path = self._path(key)
        with self._locked(key), _translate_errors(f"delete {key}"):
            try:
                os.unlink(path)
            except _ABSENT:
                if isinstance(self._missing(key), errors.UnavailableError):
                    raise
                return
        with contextlib.suppress(OSError):  # not empty, or another process was faster
            for directory in path.relative_to(self.root).parents:
                if directory.name:
                    os.rmdir(self.root / directory)
        with _translate_errors(f"delete {key}", applied=True):
            self._sync(path.parent, upwards=not path.parent.exists())

    def keys(self, prefix: str, after: str) -> list[Key]:
        found: list[Key] = []
        parent = prefix.rpartition("/")[0]
        if parent and not keys.is_valid(parent):
            return found  # no key starts like this
        with _translate_errors(f"list {prefix}*"):
            if not self._hidden.is_dir():
                raise errors.UnavailableError(f"list {prefix}*: the bucket directory {self.root} is gone")
            self._walk(parent, prefix, after, found)
        return found

    def _walk(self, parent: str, prefix: str, after: str, found: list[Key]) -> None:
        try:
            with os.scandir(self.root / parent) as entries:
                # A directory sorts as its name with the slash, so that the keys come out in order.
                named = sorted((entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in named:
            key = f"{parent}/{name}" if parent else name
            if key.endswith("/"):
                wanted = key.startswith(prefix) or prefix.startswith(key)
                if wanted and (key > after or after.startswith(key)) and key != HIDDEN + "/":
                    self._walk(key[:-1], prefix, after, found)
            elif key.startswith(prefix) and key > after and entry.is_file() and keys.is_valid(key):
                found.append(Key(key))

    def _path(self, key: Key) -> pathlib.Path:
        keys.check(key)
        if key.split("/", 1)[0] == HIDDEN:
            raise errors.PermissionDeniedError(
                f"key {key!r} is in {HIDDEN}/, which the store uses itself; choose another"
            )
        return self.root / key

    def _missing(self, key: Key) -> errors.StorageError:
        if self._hidden.is_dir():
            return errors.NotFoundError(f"no object {key}")
        return errors.UnavailableError(f"{key}: the bucket directory {self.root} is gone")

    def _rename_into_place(self, temporary: str, path: pathlib.Path) -> bool:
        """Rename into a directory that another process may be removing. Returns whether it created directories."""
        has_created = False
        for attempt in range(ATTEMPTS):
            try:
                if not path.parent.is_dir():
                    if not self._hidden.is_dir():
                        raise errors.UnavailableError(f"write {path.name}: the bucket directory {self.root} is gone")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    has_created = True
                os.rename(temporary, path)
            except FileNotFoundError:
                continue
            except FileExistsError:
                # `mkdir` found a file, which may be there to stay or was just removed by another process.
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            except IsADirectoryError:
                os.rmdir(path)  # an empty directory is not an object
                continue
            except OSError as problem:
                if problem.errno == errno.EIO:
                    raise errors.UnknownOutcomeError(
                        f"write {path.name}: {problem.strerror} while renaming"
                    ) from problem
                raise
            return has_created
        raise errors.UnavailableError(f"write {path.name}: the directory {path.parent} kept disappearing")

    @contextlib.contextmanager
    def _locked(self, key: Key) -> Iterator[None]:
        path = self._hidden / "locks" / hashlib.sha256(key.encode()).hexdigest()[:2]
        with _translate_errors(f"lock {key}"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with _closing(descriptor):
            failures, waited = 0, 0.0
            with _translate_errors(f"lock {key}"):
                while not _lock(descriptor):
                    if waited >= LOCK_TIMEOUT_SECONDS:
                        raise errors.UnavailableError(
                            f"lock {key}: another process has held {path} for {LOCK_TIMEOUT_SECONDS:g} s; is it paused?"
                        )
                    failures += 1
                    time.sleep(delay := LOCK_RETRY.delay(failures))
                    waited += delay
            yield

    def _sync(self, directory: pathlib.Path, *, upwards: bool) -> None:
        """Make a new or removed name durable; with `upwards` also the names of its directories."""
        for step in (directory, *directory.parents):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            if step == self.root or not upwards:
                return

    def _remove_leftovers(self) -> None:
        """Remove files of writers that died. A living writer holds a lock on its file."""
        for path in self._temporary.iterdir():
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if _lock(file.fileno()):
                    path.unlink()


def _write(descriptor: int, body: bytes) -> None:
    """Unbuffered: a full disk must fail here, and not when the file is closed."""
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    """The content is already synced, so errors of closing are ignored and hide no other error."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _version(found: os.stat_result) -> Version:
    return Version(f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}")


def _stat(path: pathlib.Path) -> os.stat_result | None:
    try:
        return _regular(os.stat(path))
    except (FileNotFoundError, IsADirectoryError):
        return None


def _regular(found: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a regular file")
    return found


def _move_time_past(descriptor: int, old: int) -> None:
    for step in _TIME_STEPS_NS:
        if os.fstat(descriptor).st_mtime_ns > old:
            return
        os.utime(descriptor, ns=(old + step, old + step))


@contextlib.contextmanager
def _translate_errors(call: str, *, applied: bool = False) -> Iterator[None]:
    """Turn system errors into storage errors."""
    try:
        yield
    except OSError as problem:
        message = f"{call}: {problem.strerror or problem}"
        if applied:
            raise errors.UnknownOutcomeError(f"{message}; applied, but a power cut may still undo it") from problem
        match problem.errno:
            case errno.EACCES | errno.EPERM:
                raise errors.PermissionDeniedError(
                    f"{message}; give this user access to the bucket directory"
                ) from problem
            case errno.ENOTDIR | errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
                hint = "with file storage one key cannot be a directory of another"
                raise errors.PermissionDeniedError(f"{message}; {hint}") from problem
            case errno.ENAMETOOLONG:
                hint = "file systems allow at most 255 bytes between two slashes"
                raise errors.PermissionDeniedError(f"{message}; {hint}") from problem
            case _:
                raise errors.UnavailableError(message) from problem
