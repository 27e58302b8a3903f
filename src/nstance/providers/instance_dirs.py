"""Instances as directories: what the providers that run agents on this machine keep of each one.

    {root}/{instance ID}/   identity/ keys/ recv/ instance.json process.json agent.pid agent.log
    {root}/.ids/{instance ID}   locked while somebody works on the instance; not empty: it was deleted, for ever
    {root}/.new/, {root}/.trash/   homes that are not there yet, or no more

A home appears and disappears by one rename, so a half home is never seen. The trap: several servers, shards and clusters
may share the root, and so may a person's own files. What cannot be read is `Unreadable`, which is not the same as
absent; and what is not ours is never touched.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nstance.model import ids
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId
from nstance.providers import errors, launch, processes

REMEMBERED = 10_000  # deleted IDs
SWEEP_EVERY = 1_000  # deletions
_LOCK_STEP = 0.02
_LOCK_STEPS = 750  # 15 seconds: longer than a create or delete takes
_FOLDERS = ("identity", "keys", "recv")
_DELETED = b"deleted\n"


class UnreadableError(Exception):
    """Something is there, but not what we would have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`instance.json`: a VM's tags, and how its agent is run."""

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
class Held:
    """The right to work on one instance. `lock` may be inherited by a process, which then holds it too."""

    lock: int
    deleted: bool


class InstanceDirs:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._ids = root / ".ids"
        self._new = root / ".new"
        self._trash = root / ".trash"
        self._buried = 0

    def prepare(self) -> None:
        """Make the root and its folders."""
        for folder in (self.root, self._ids, self._new, self._trash):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def sweep(self) -> None:
        """Finish what a crash left half removed, and forget the oldest deleted IDs: one so old is in no journal."""
        for name in os.listdir(self._trash):
            shutil.rmtree(self._trash / name, ignore_errors=True)
        spent = [name for name in os.listdir(self._ids) if not (self.root / name).exists()]
        for name in sorted(spent, key=lambda name: name[4:])[:-REMEMBERED]:
            (self._ids / name).unlink(missing_ok=True)

    def home(self, id: InstanceId) -> Path:
        if not ids.is_instance_id(id):
            raise errors.PermanentError(f"expected an instance ID like knc-01jw51srryegh9snf9cmeh3k4q, found {id!r}")
        return self.root / id

    @contextlib.contextmanager
    def hold(self, id: InstanceId) -> Iterator[Held]:
        """Work on an instance alone, across processes."""
        path = self._ids / self.home(id).name
        lock = self._lock(path)
        try:
            yield Held(lock, deleted=os.fstat(lock).st_size > 0)
        finally:
            os.close(lock)  # not LOCK_UN: a starting agent that inherited the lock keeps it

    def make(self, record: Record, identity: Mapping[str, str]) -> None:
        """The home of a new instance, whole or not at all. The caller holds the instance."""
        draft = self._new / record.id
        _remove(draft)
        try:
            for folder in _FOLDERS:
                (draft / folder).mkdir(mode=0o700, parents=True)
            for name, text in identity.items():
                _write(draft / "identity" / name, text.encode())
            _write(draft / launch.RECORD, json.dumps(asdict(record), indent=1).encode())
            draft.rename(self.root / record.id)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def read(self, id: InstanceId) -> Record | None:
        """An instance's record, or None where there is no home."""
        home = self.home(id)
        try:
            mode = home.lstat().st_mode
        except FileNotFoundError:
            os.stat(self.root)  # a vanished root is an error, not an absence
            return None
        if not stat.S_ISDIR(mode):
            raise UnreadableError(f"expected a directory, found something else at {home}")
        try:
            body = (home / launch.RECORD).read_bytes()
        except FileNotFoundError:
            if not home.exists():
                return None  # removed between the two looks
            raise UnreadableError(f"expected {launch.RECORD} in {home}, found none") from None
        return _parse(body, id)

    def process(self, id: InstanceId) -> processes.Process | None:
        """The process that runs, or ran, the agent; None if none was started yet."""
        path = self.home(id) / launch.PROCESS
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
        """All homes, ours and others'."""
        return sorted(InstanceId(name) for name in os.listdir(self.root) if ids.is_instance_id(name))

    def deleted(self, id: InstanceId) -> bool:
        try:
            return (self._ids / self.home(id).name).stat().st_size > 0
        except FileNotFoundError:
            return False

    def bury(self, held: Held) -> None:
        """From here on the ID is never used again."""
        os.pwrite(held.lock, _DELETED, 0)
        os.fsync(held.lock)
        self._buried += 1
        if self._buried % SWEEP_EVERY == 0:
            self.sweep()

    def remove(self, id: InstanceId) -> None:
        """Take the home away, with all that is in it. Links in it are removed, never followed."""
        grave = self._trash / id
        _remove(grave)
        with contextlib.suppress(FileNotFoundError):
            self.home(id).rename(grave)
        _remove(grave)

    def tail(self, id: InstanceId, size: int) -> bytes:
        """The newest part of the agent's log."""
        try:
            with (self.home(id) / launch.LOG).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - size))
                return log.read(size)
        except FileNotFoundError:
            return b""

    def _lock(self, path: Path) -> int:
        for _ in range(_LOCK_STEPS):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
            except BlockingIOError:
                time.sleep(_LOCK_STEP)
            except OSError:
                os.close(lock)
                raise
            os.close(lock)
        raise errors.UnavailableError(f"expected to work on {path.name} alone, but another process holds {path}")


def _parse(body: bytes, id: InstanceId) -> Record:
    try:
        value = json.loads(body)
        record = Record(**{**value, "command": tuple(value["command"]), "env": dict(value["env"])})
    except (ValueError, TypeError, KeyError):
        raise UnreadableError(f"expected the record of {id} in its {launch.RECORD}, found something else") from None
    texts = (
        record.cluster,
        record.shard,
        record.tenant,
        record.group,
        record.kind,
        record.template,
        *record.command,
        *record.env.values(),
    )
    whole = all(isinstance(text, str) for text in texts) and isinstance(record.created, int | float)
    if record.id != id or not whole:
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
