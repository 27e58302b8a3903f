"""Instance directories: what providers that run agents on this machine store.

    {root}/{instance ID}/   identity/ keys/ recv/ instance.json process.json agent.pid agent.log
    {root}/.ids/{instance ID}   locked while a server works on the instance; not empty: the ID was deleted, forever
    {root}/.new/, {root}/.trash/   directories that are being created or removed
    {root}/.shard.{cluster}.{shard}   the folder of the instances of this shard

A directory appears and disappears by one rename, so a partial one is never seen. The trap: several servers, shards and
clusters may share the root, and so may a user's own files. An unreadable record is an `UnreadableError`, which is not
the same as absent, and foreign files are never touched.
"""

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nstance.model import ids
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId
from nstance.providers import errors, launch, processes

_LOCK_STEP_SECONDS = 0.02
_LOCK_STEPS = 750  # 15 seconds: longer than a create or delete takes
_FOLDERS = ("identity", "keys", "recv")
_DELETED_BYTES = 8


class UnreadableError(Exception):
    """The file exists, but Nstance did not write it like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`instance.json`: a VM's tags, and its agent's command."""

    id: InstanceId
    cluster: ClusterId
    shard: ShardId
    tenant: TenantId
    group: GroupName
    kind: Kind
    template: str
    created: float
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Lock:
    """An exclusive lock on one instance. A process that inherits the descriptor holds it too."""

    descriptor: int
    is_deleted: bool


class InstanceDirs:
    def __init__(
        self, root: Path, *, marker: str = ".ids", max_remembered: int = 10_000, sweep_every: int = 1_000
    ) -> None:
        """`marker`: a root without it is not the folder of the instances. `max_remembered`: deleted IDs. `sweep_every`:
        deletions."""
        self.root = root
        self._marker = root / marker
        self._max_remembered = max_remembered
        self._sweep_every = sweep_every
        self._ids = root / ".ids"
        self._new = root / ".new"
        self._trash = root / ".trash"
        self._deletions = 0

    def prepare(self) -> None:
        """Create the root, its folders and its marker."""
        for folder in (self.root, self._ids, self._new, self._trash):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._marker.touch()

    def sweep(self) -> None:
        """Finish interrupted removals, and forget the oldest deleted IDs, which no journal contains any more."""
        for name in os.listdir(self._trash):
            shutil.rmtree(self._trash / name, ignore_errors=True)
        unused = [name for name in os.listdir(self._ids) if not (self.root / name).exists()]
        for name in sorted(unused, key=lambda name: name[4:])[: -self._max_remembered]:
            (self._ids / name).unlink(missing_ok=True)

    def check_root(self) -> None:
        """Another folder is an error, not an absence: one that is away, the empty place where its disk is mounted, and one
        that the configuration names by mistake."""
        if not self._marker.exists():
            root, marker = shlex.quote(str(self.root)), shlex.quote(str(self._marker))
            raise errors.OutOfReachError(
                f"expected the folder of instances at {self.root}, found no {self._marker.name} in it: mount its disk, or "
                f"correct option 'dir'; if its VMs are gone for good, run: mkdir -p {root} && touch {marker}"
            )
        if not self._ids.is_dir():
            self.prepare()  # a person made the marker

    def directory(self, id: InstanceId) -> Path:
        if not ids.is_instance_id(id):
            raise errors.PermanentError(f"expected an instance ID like knc-01jw51srryegh9snf9cmeh3k4q, found {id!r}")
        return self.root / id

    @contextlib.contextmanager
    def lock(self, id: InstanceId) -> Iterator[Lock]:
        """Lock an instance against other processes."""
        self.check_root()
        descriptor = _locked(self._ids / self.directory(id).name, os.O_RDWR | os.O_CREAT)
        try:
            yield Lock(descriptor, is_deleted=os.fstat(descriptor).st_size > 0)
        finally:
            os.close(descriptor)  # not LOCK_UN: a starting agent that inherited the lock keeps it

    @contextlib.contextmanager
    def lock_all(self) -> Iterator[None]:
        """Held while an instance is made whose place depends on all others."""
        descriptor = _locked(self._new, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield
        finally:
            os.close(descriptor)

    def create(
        self, record: Record, identity: Mapping[str, str], *, fill: Callable[[Path], None] = lambda draft: None
    ) -> None:
        """The directory of a new instance, complete or not at all. The caller holds the lock. `fill` adds more files."""
        draft = self._new / record.id
        _remove(draft)
        try:
            draft.mkdir(mode=0o700)
            for folder in _FOLDERS:
                (draft / folder).mkdir(mode=0o700)
            for name, text in identity.items():
                _write(draft / "identity" / name, text.encode())
            fill(draft)
            _write(draft / launch.RECORD, json.dumps(asdict(record), indent=1).encode())
            draft.rename(self.root / record.id)
        except (OSError, errors.ProviderError):
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def read(self, id: InstanceId) -> Record | None:
        """An instance's record, or None if there is no directory."""
        directory = self.directory(id)
        try:
            mode = directory.lstat().st_mode
        except FileNotFoundError:
            self.check_root()
            return None
        if not stat.S_ISDIR(mode):
            raise UnreadableError(f"expected a directory, found something else at {directory}")
        try:
            body = (directory / launch.RECORD).read_bytes()
        except FileNotFoundError:
            if not directory.exists():
                return None  # removed in the meantime
            raise UnreadableError(f"expected {launch.RECORD} in {directory}, found none") from None
        return _parse(body, id)

    def process(self, id: InstanceId) -> processes.Process | None:
        """The process that runs, or ran, the agent; None before it was started."""
        path = self.directory(id) / launch.PROCESS
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise UnreadableError(f"expected JSON in {path}, found something else") from None
        match value:
            case {"pid": int(pid), "start": str(start)} if pid > 1:
                return processes.Process(pid, start)
        raise UnreadableError(f"expected a pid and a start in {path}, found something else")

    def ids(self) -> list[InstanceId]:
        """IDs of all directories, of all shards and clusters."""
        return sorted(InstanceId(name) for name in os.listdir(self.root) if ids.is_instance_id(name))

    def is_deleted(self, id: InstanceId) -> bool:
        try:
            return (self._ids / self.directory(id).name).stat().st_size > 0
        except FileNotFoundError:
            return False

    def mark_deleted(self, lock: Lock) -> None:
        """Mark the ID as deleted: it can never be used again. A hole in the file, which a full disk has room for: what is
        deleted makes room."""
        os.ftruncate(lock.descriptor, _DELETED_BYTES)
        os.fsync(lock.descriptor)
        self._deletions += 1
        if self._deletions % self._sweep_every == 0:
            self.sweep()

    def remove(self, id: InstanceId) -> None:
        """Remove the directory and its content, also one that was never completed. Links are removed, never followed. The
        caller holds the lock."""
        trashed = self._trash / id
        _remove(trashed)
        _remove(self._new / id)
        with contextlib.suppress(FileNotFoundError):
            self.directory(id).rename(trashed)
        _remove(trashed)

    def tail(self, id: InstanceId, size: int, *, name: str = launch.LOG) -> bytes:
        """The newest part of a log of the instance: what its process printed, unless another one is named."""
        try:
            with (self.directory(id) / name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - size))
                return log.read(size)
        except FileNotFoundError:
            return b""


def _locked(path: Path, flags: int) -> int:
    for _ in range(_LOCK_STEPS):
        lock = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except BlockingIOError:
            time.sleep(_LOCK_STEP_SECONDS)
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    raise errors.UnavailableError(f"expected a free lock on {path.name}, but another process holds {path}")


def _parse(body: bytes, id: InstanceId) -> Record:
    try:
        value = json.loads(body)
        record = Record(**{**value, "command": tuple(value["command"]), "env": dict(value["env"])})
    except (ValueError, TypeError, KeyError):
        raise UnreadableError(f"expected the record of {id} in its {launch.RECORD}, found something else") from None
    tags = (record.cluster, record.shard, record.tenant, record.group, record.kind, record.template)
    texts = (*tags, *record.command, *record.env.values())
    is_valid = all(isinstance(text, str) for text in texts) and isinstance(record.created, int | float)
    if record.id != id or not is_valid:
        raise UnreadableError(f"expected the record of {id} in its {launch.RECORD}, found another's or a damaged one")
    return record


def _write(path: Path, body: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
