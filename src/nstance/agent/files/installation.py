"""The files that the server sends to an instance, installed as one set.

Files arrive in a staging directory inside the receive directory. The commit point is one rename: that of the manifest in
the identity directory, which names the new set. After it the set is only ever rolled forward, now or at the next start;
before it, the old set is untouched and the staging directory is removed. Only files that an earlier set installed are
ever removed. The trap: after a crash the staging directory may belong to a set that was never committed. It carries the
set's number, and only the number in the manifest counts.
"""

import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nstance.agent import settings
from nstance.agent.credentials import certificates
from nstance.agent.files import content
from nstance.agent.files.folder import Folder, OpenFolder, SetupError, name_problem

MAX_FILES = 256
MAX_BYTES = 1 << 20
MANIFEST = "files.json"
CONFIG_HASH = settings.CONFIG_HASH
_STAGING = ".incoming-"

log = logging.getLogger(__name__)


class FilesRejectedError(Exception):
    """The set was not installed; the message is reported to the server."""


@dataclass(frozen=True, slots=True)
class FileState:
    name: str
    sha256: str
    serial: str = ""  # of a certificate
    expires: int = 0  # of a certificate


@dataclass(frozen=True, slots=True)
class _Manifest:
    number: int = 0
    config_hash: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # name to SHA-256
    removed: tuple[str, ...] = ()

    @property
    def staging(self) -> str:
        return f"{_STAGING}{self.number}"


class ReceivedFiles:
    """Not thread-safe, and its methods block on the disk: all calls are made on the disk's one thread."""

    def __init__(self, *, recv: Folder, identity: Folder, before_commit: Callable[[], None] = lambda: None) -> None:
        self._recv = recv
        self._identity = identity
        self._before_commit = before_commit
        self._seen: dict[str, tuple[tuple[int, int, int], FileState]] = {}

    def recover(self) -> None:
        """Finish an interrupted commit; remove what was never committed."""
        manifest = self._manifest()
        with self._recv.enter() as recv:
            if recv.status(manifest.staging) is not None and manifest.number:
                self._roll_forward(recv, manifest)
            for name in recv.names():
                if name.startswith(_STAGING):
                    _remove_staging(recv, name)

    def begin(self) -> "Incoming":
        """Start to receive a set, after recovering from an earlier one."""
        old, fault = _Manifest(), None
        try:
            self.recover()
            old = self._manifest()
            with self._recv.enter() as recv:
                os.mkdir(f"{_STAGING}{old.number + 1}", 0o700, dir_fd=recv.fd)
        except OSError as error:
            fault = f"failed to write to {self._recv.path}: {error.strerror}"
        except SetupError as error:
            fault = str(error)
        return Incoming(self, self._recv, old=old, fault=fault)

    def states(self) -> tuple[str, list[FileState]]:
        """The hash of the installed set and its files on disk. The hash is empty if a file is missing or changed."""
        manifest, states = self._manifest(), []
        with self._recv.enter() as recv:
            for name in manifest.files:
                state = self._state(recv, name)
                if state is not None:
                    states.append(state)
        is_complete = {state.name: state.sha256 for state in states} == dict(manifest.files)
        return (manifest.config_hash if is_complete else ""), states

    def number(self) -> int:
        """The number of the installed set; no two sets have the same."""
        return self._manifest().number

    def invalidate(self) -> None:
        """The installed set no longer fits this instance. Without a hash, the server sends all of it again."""
        self.recover()
        manifest = self._manifest()
        if manifest.config_hash:
            self._write_manifest(replace(manifest, config_hash=""))

    def _state(self, recv: OpenFolder, name: str) -> FileState | None:
        status = recv.status(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._seen.get(name)
        if known is not None and known[0] == mark:
            return known[1]
        body = recv.read(name)
        if body is None:
            return None
        serial, expires = "", 0
        if name.endswith(".crt"):
            with contextlib.suppress(certificates.MalformedError):  # changed locally: the hash shows it
                _, certificate = certificates.leaf(body)
                serial = f"{certificate.serial:032x}"
                expires = int(certificate.not_after)
        state = FileState(name, hashlib.sha256(body).hexdigest(), serial, expires)
        self._seen[name] = (mark, state)
        return state

    def _manifest(self) -> _Manifest:
        raw = self._identity.read(MANIFEST)
        if raw is None:
            return _Manifest()
        try:
            values = json.loads(raw)
            return _Manifest(values["number"], values["config_hash"], values["files"], tuple(values["removed"]))
        except (ValueError, KeyError, TypeError):
            # Without a hash, the server sends the whole set again.
            log.warning("manifest of received files is damaged, requesting all of them", exc_info=True)
            return _Manifest()

    def install(self, manifest: _Manifest) -> None:
        """Commit the staged set, whose files are synced. Raises FilesRejectedError."""
        try:
            self._before_commit()
            self._write_manifest(manifest)
        except OSError as error:
            raise FilesRejectedError(f"failed to write the manifest: {error.strerror}") from error
        try:
            with self._recv.enter() as recv:
                self._roll_forward(recv, manifest)
        except OSError as error:
            raise FilesRejectedError(
                f"the set is committed but not installed yet, the agent retries: {error.strerror}"
            ) from error

    def _write_manifest(self, manifest: _Manifest) -> None:
        values = {
            "number": manifest.number,
            "config_hash": manifest.config_hash,
            "files": dict(manifest.files),
            "removed": manifest.removed,
        }
        self._identity.write(MANIFEST, json.dumps(values).encode())

    def _roll_forward(self, recv: OpenFolder, manifest: _Manifest) -> None:
        with recv.child(manifest.staging) as staging:
            for name in staging.names():
                os.rename(name, name, src_dir_fd=staging.fd, dst_dir_fd=recv.fd)
        for name in manifest.removed:
            recv.remove(name)
        recv.sync()
        self._identity.write(CONFIG_HASH, manifest.config_hash.encode() + b"\n")
        # Last: while the directory exists, the set counts as unfinished.
        os.rmdir(manifest.staging, dir_fd=recv.fd)
        recv.sync()
        self._seen = {name: seen for name, seen in self._seen.items() if name in manifest.files}


class Incoming:
    """A set that is being received. After the first fault the rest is dropped, and the commit raises it."""

    def __init__(self, owner: ReceivedFiles, recv: Folder, *, old: _Manifest, fault: str | None) -> None:
        self._owner = owner
        self._recv = recv
        self._old = old
        self._number = old.number + 1
        self._files: dict[str, str] = {}
        self._folded: set[str] = set()
        self._fault = fault

    def add(self, name: str, body: bytes) -> None:
        if self._fault is not None:
            return
        self._fault = self._problem(name, body)
        if self._fault is not None:
            return
        try:
            with self._recv.enter() as recv, recv.child(f"{_STAGING}{self._number}") as staging:
                staging.create(name, body)
        except OSError as error:
            self._fault = f"failed to write {_shown(name)}: {error.strerror}"
            return
        self._files[name] = hashlib.sha256(body).hexdigest()
        self._folded.add(name.casefold())

    def commit(self, config_hash: str, count: int) -> bool:
        """Install the set. Returns False if the same set is already installed. Raises FilesRejectedError."""
        try:
            return self._commit(config_hash, count)
        except OSError as error:
            raise FilesRejectedError(f"failed to install the set: {error.strerror}") from error
        except SetupError as error:
            raise FilesRejectedError(str(error)) from error
        finally:
            self._fault = self._fault or "the set is already committed"
            # A rejected set may contain secrets, so it is removed at once.
            with contextlib.suppress(OSError, SetupError):
                self._owner.recover()

    def _commit(self, config_hash: str, count: int) -> bool:
        self._check_complete(config_hash, count)
        if self._files == self._old.files and self._owner.states()[0] == config_hash:
            return False
        self._sync()
        removed = tuple(sorted(self._old.files.keys() - self._files.keys()))
        self._owner.install(_Manifest(self._number, config_hash, self._files, removed))
        return True

    def _problem(self, name: str, body: bytes) -> str | None:
        problem = name_problem(name)
        if problem is not None:
            return f"file {_shown(name)} rejected: {problem}"
        if len(self._files) >= MAX_FILES:
            return f"expected at most {MAX_FILES} files in a set"
        if len(body) > MAX_BYTES:
            return f"file {_shown(name)} rejected: expected at most {MAX_BYTES} bytes, found {len(body)}"
        if name.casefold() in self._folded:
            return f"file {_shown(name)} rejected: another file of the set has the same name but for its case"
        try:
            content.check(name, body)
        except content.InvalidContentError as error:
            return f"file {_shown(name)} rejected: {error}"
        return None

    def _check_complete(self, config_hash: str, count: int) -> None:
        if self._fault is not None:
            raise FilesRejectedError(self._fault)
        if count != len(self._files):
            raise FilesRejectedError(f"expected {count} files before the commit, found {len(self._files)}")
        if not config_hash or len(config_hash) > 200 or not config_hash.isprintable():
            raise FilesRejectedError("expected a printable config hash of at most 200 characters")
        with self._recv.enter() as recv:
            for name in self._files:
                status = recv.status(name)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    raise FilesRejectedError(f"expected a file at {_shown(name)}, found a directory; remove it")

    def _sync(self) -> None:
        with self._recv.enter() as recv, recv.child(f"{_STAGING}{self._number}") as staging:
            for name in self._files:
                staging.sync_file(name)
            staging.sync()
            recv.sync()


def _remove_staging(recv: OpenFolder, name: str) -> None:
    """Remove a staging directory, or a file of that name."""
    status = recv.status(name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        with recv.child(name) as staging:
            for file in staging.names():
                staging.remove(file)
        os.rmdir(name, dir_fd=recv.fd)
    else:
        recv.remove(name)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:77] + "...")
