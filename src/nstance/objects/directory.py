"""Objects as files: the blocking half of the file store.

A write makes a temporary file, syncs it, and renames it over the key while a lock file is held, so that a reader finds
the old object or the new one and never a part, whenever the writer dies. The lock is held only for comparing and
renaming: a process that is paused in the middle should not stop the others. A version is what the file system says of
the file (time of change, inode, size); each write moves the time of change forward, so no two versions are equal, and
an edit by hand gives another version too. Bookkeeping lives in `.nstance/`, which no key can name. The trap: a directory
that is gone (unmounted, removed) looks like one without objects; before anything is called missing, `.nstance/` must be
there.
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

HIDDEN = ".nstance"
LOCK_WAIT = 5.0  # seconds; a lock is held for microseconds, so whoever has it this long is paused or the disk hangs
ATTEMPTS = 10  # at what an edit by hand, or a neighbour who tidies empty directories away, may spoil

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_STEPS = (1, 1_000, 1_000_000, 2_000_000_000)  # ns: file systems round times to something between 1 ns and 2 s

Condition = Callable[[Version | None], None]  # gets the version that is there, raises if it must not be overwritten


class Directory:
    def __init__(self, root: pathlib.Path, clock: clocks.Clock) -> None:
        self.root = root
        self._clock = clock
        self._hidden = root / HIDDEN
        self._temporary = self._hidden / "temporary"
        with _translating(f"open the bucket directory {root}"):
            (self._hidden / "locks").mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir(exist_ok=True)
            self._tidy()

    def get(self, key: Key, limit: int) -> Stored:
        path = self._path(key)
        with _translating(f"get {key}"):
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
        with _translating(f"head {key}"):
            try:
                found = _regular(os.stat(path))
            except _ABSENT:
                raise self._missing(key) from None
        return Head(_version(found), found.st_size, found.st_mtime)

    def write(self, key: Key, body: bytes, condition: Condition) -> Version:
        path = self._path(key)
        with _translating(f"write {key}"):
            descriptor, temporary = tempfile.mkstemp(dir=self._temporary)
        try:
            with _closing(descriptor):
                with _translating(f"write {key}"):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells _tidy that its writer lives
                    _write(descriptor, body)
                    now = int(self._clock.wall() * 1e9)
                    os.utime(descriptor, ns=(now, now))
                    os.fsync(descriptor)
                with self._locked(key), _translating(f"write {key}"):
                    found = _stat(path)
                    condition(None if found is None else _version(found))
                    if found is not None:
                        _move_time_past(descriptor, found.st_mtime_ns)
                    version = _version(os.fstat(descriptor))
                    made_directories = self._place(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with _translating(f"write {key}", applied=True):
            self._sync(path.parent, upwards=made_directories)
        return version

    def delete(self, key: Key) -> None:
        path = self._path(key)
        with self._locked(key), _translating(f"delete {key}"):
            try:
                os.unlink(path)
            except _ABSENT:
                if isinstance(self._missing(key), errors.UnavailableError):
                    raise
                return
        with contextlib.suppress(OSError):  # not empty, or a neighbour was faster: both are fine
            for directory in path.relative_to(self.root).parents:
                if directory.name:
                    os.rmdir(self.root / directory)
        with _translating(f"delete {key}", applied=True):
            self._sync(path.parent, upwards=not path.parent.exists())

    def keys(self, prefix: str, after: str) -> list[Key]:
        found: list[Key] = []
        parent = prefix.rpartition("/")[0]
        if parent and not keys.possible(parent):
            return found  # no key can start like this
        with _translating(f"list {prefix}*"):
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
            elif key.startswith(prefix) and key > after and entry.is_file() and keys.possible(key):
                found.append(Key(key))

    def _path(self, key: Key) -> pathlib.Path:
        keys.check(key)
        if key.split("/", 1)[0] == HIDDEN:
            raise errors.PermissionDeniedError(
                f"key {key!r} lies in {HIDDEN}/, where the store keeps its own files; choose another"
            )
        return self.root / key

    def _missing(self, key: Key) -> errors.StorageError:
        if self._hidden.is_dir():
            return errors.NotFoundError(f"no object {key}")
        return errors.UnavailableError(f"{key}: the bucket directory {self.root} is gone")

    def _place(self, temporary: str, path: pathlib.Path) -> bool:
        """Renames into a directory that a neighbour may be tidying away. Returns whether it made directories."""
        made = False
        for attempt in range(ATTEMPTS):
            try:
                if not path.parent.is_dir():
                    if not self._hidden.is_dir():
                        raise errors.UnavailableError(f"write {path.name}: the bucket directory {self.root} is gone")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made = True
                os.rename(temporary, path)
            except FileNotFoundError:
                continue
            except FileExistsError:
                # `mkdir` found a name that is no directory: a file for good, or one that a neighbour just removed.
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            except IsADirectoryError:
                os.rmdir(path)  # an empty one is no object and may go
                continue
            except OSError as problem:
                if problem.errno == errno.EIO:
                    raise errors.UnknownOutcomeError(
                        f"write {path.name}: {problem.strerror} while renaming"
                    ) from problem
                raise
            return made
        raise errors.UnavailableError(f"write {path.name}: the directory {path.parent} kept vanishing")

    @contextlib.contextmanager
    def _locked(self, key: Key) -> Iterator[None]:
        path = self._hidden / "locks" / hashlib.sha256(key.encode()).hexdigest()[:2]
        with _translating(f"lock {key}"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with _closing(descriptor):
            pause, waited = 0.0005, 0.0
            with _translating(f"lock {key}"):
                while not _lock(descriptor):
                    if waited >= LOCK_WAIT:
                        raise errors.UnavailableError(
                            f"lock {key}: another process has held {path} for {LOCK_WAIT:g} s; is one paused?"
                        )
                    time.sleep(pause)
                    waited += pause
                    pause = min(pause * 2, 0.02)
            yield

    def _sync(self, directory: pathlib.Path, *, upwards: bool) -> None:
        """Makes a new or removed name durable; `upwards` also the directories' own names."""
        for step in (directory, *directory.parents):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            if step == self.root or not upwards:
                return

    def _tidy(self) -> None:
        """Removes what writers left that died. A living one holds a lock on its file."""
        for path in self._temporary.iterdir():
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if _lock(file.fileno()):
                    path.unlink()


def _write(descriptor: int, body: bytes) -> None:
    """Without a buffer: what a full disk refuses must fail here, and not once more when the file is closed."""
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    """What matters was synced before, so an error from closing says nothing, and hides none that does."""
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
    for step in _STEPS:
        if os.fstat(descriptor).st_mtime_ns > old:
            return
        os.utime(descriptor, ns=(old + step, old + step))


@contextlib.contextmanager
def _translating(doing: str, *, applied: bool = False) -> Iterator[None]:
    """Turns what the system says into what follows from it."""
    try:
        yield
    except OSError as problem:
        said = f"{doing}: {problem.strerror or problem}"
        if applied:
            raise errors.UnknownOutcomeError(f"{said}; it is done, but a power cut may still undo it") from problem
        match problem.errno:
            case errno.EACCES | errno.EPERM:
                raise errors.PermissionDeniedError(
                    f"{said}; give this user access to the bucket directory"
                ) from problem
            case errno.ENOTDIR | errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
                hint = "in a directory one key cannot be the beginning of another's path"
                raise errors.PermissionDeniedError(f"{said}; {hint}") from problem
            case errno.ENAMETOOLONG:
                hint = "a file system holds at most 255 bytes between two slashes"
                raise errors.PermissionDeniedError(f"{said}; {hint}") from problem
            case _:
                raise errors.UnavailableError(said) from problem
