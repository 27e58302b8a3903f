"""The set of files that the server gives an instance, switched as a set.

Files are written into a directory beside the ones in use while they arrive. The commit point is one rename: that of the
manifest in the identity directory, which names the new set and the directory that holds it. From then on the set is
only ever rolled forward, now or at the next start; before it, the old set is untouched and the half-arrived directory
is swept away. Only files that an earlier set brought are ever removed.

The trap: after a crash the directory beside may belong to a set that was never committed. It carries the set's number,
and only the number in the manifest counts.
"""

import contextlib
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nstance.agent import certificates, content, settings
from nstance.agent.folder import Folder, Inside, Unusable, name_problem

MAX_FILES = 256
MAX_BYTES = 1 << 20
MANIFEST = "files.json"
HASH = settings.CONFIG_HASH
_BESIDE = ".incoming-"

log = logging.getLogger(__name__)


class Refused(Exception):
    """The set was not put in place; the message is reported to the server."""


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
    def beside(self) -> str:
        return f"{_BESIDE}{self.number}"


class ReceivedFiles:
    """One user at a time; the calls block on the disk, so the session makes them on one thread of their own."""

    def __init__(self, *, recv: Folder, identity: Folder, before_commit: Callable[[], None] = lambda: None) -> None:
        self._recv = recv
        self._identity = identity
        self._before_commit = before_commit
        self._seen: dict[str, tuple[tuple[int, int, int], FileState]] = {}

    def recover(self) -> None:
        """Finish the set whose commit was interrupted; sweep away what was never committed."""
        manifest = self._manifest()
        with self._recv.enter() as recv:
            if recv.status(manifest.beside) is not None and manifest.number:
                self._roll_forward(recv, manifest)
            for name in recv.names():
                if name.startswith(_BESIDE):
                    _sweep(recv, name)

    def begin(self) -> "Incoming":
        """A new set starts to arrive. Whatever was left of an earlier one is settled first."""
        old, fault = _Manifest(), None
        try:
            self.recover()
            old = self._manifest()
            with self._recv.enter() as recv:
                os.mkdir(f"{_BESIDE}{old.number + 1}", 0o700, dir_fd=recv.fd)
        except OSError as error:
            fault = f"cannot write to {self._recv.path}: {error.strerror}"
        except Unusable as error:
            fault = str(error)
        return Incoming(self, self._recv, old=old, fault=fault)

    def states(self) -> tuple[str, list[FileState]]:
        """The hash of the set in place, and its files as they are on disk. No hash if one was lost or changed."""
        manifest, states = self._manifest(), []
        with self._recv.enter() as recv:
            for name in manifest.files:
                state = self._state(recv, name)
                if state is not None:
                    states.append(state)
        whole = {state.name: state.sha256 for state in states} == dict(manifest.files)
        return (manifest.config_hash if whole else ""), states

    def number(self) -> int:
        """Of the set in place; each set that is put in place has another one."""
        return self._manifest().number

    def distrust(self) -> None:
        """What is in place does not fit this instance any more: without a hash to show, the server sends it anew."""
        self.recover()
        manifest = self._manifest()
        if manifest.config_hash:
            self._write(replace(manifest, config_hash=""))

    def _state(self, recv: Inside, name: str) -> FileState | None:
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
            with contextlib.suppress(certificates.Malformed):  # changed by somebody else: the hash says so
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
            # Without a hash to show, the server sends the whole set again.
            log.warning("the manifest of the received files is damaged; asking for all of them", exc_info=True)
            return _Manifest()

    def put_in_place(self, manifest: _Manifest) -> None:
        """The commit. Raises Refused; the files beside are synced already."""
        try:
            self._before_commit()
            self._write(manifest)
        except OSError as error:
            raise Refused(f"cannot write the manifest: {error.strerror}") from error
        try:
            with self._recv.enter() as recv:
                self._roll_forward(recv, manifest)
        except OSError as error:
            raise Refused(
                f"the set is accepted but not yet in place, it will be tried again: {error.strerror}"
            ) from error

    def _write(self, manifest: _Manifest) -> None:
        values = {
            "number": manifest.number,
            "config_hash": manifest.config_hash,
            "files": dict(manifest.files),
            "removed": manifest.removed,
        }
        self._identity.write(MANIFEST, json.dumps(values).encode())

    def _roll_forward(self, recv: Inside, manifest: _Manifest) -> None:
        with recv.child(manifest.beside) as beside:
            for name in beside.names():
                os.rename(name, name, src_dir_fd=beside.fd, dst_dir_fd=recv.fd)
        for name in manifest.removed:
            recv.remove(name)
        recv.sync()
        self._identity.write(HASH, manifest.config_hash.encode() + b"\n")
        # Last: as long as the directory is there, the set counts as unfinished.
        os.rmdir(manifest.beside, dir_fd=recv.fd)
        recv.sync()
        self._seen = {name: seen for name, seen in self._seen.items() if name in manifest.files}


class Incoming:
    """A set that arrives. The first fault spoils it: the rest is taken in and dropped until the commit says so."""

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
            with self._recv.enter() as recv, recv.child(f"{_BESIDE}{self._number}") as beside:
                beside.create(name, body)
        except OSError as error:
            self._fault = f"cannot write {_shown(name)}: {error.strerror}"
            return
        self._files[name] = hashlib.sha256(body).hexdigest()
        self._folded.add(name.casefold())

    def commit(self, config_hash: str, count: int) -> bool:
        """Put the set in place; False if it was there already, to the byte. Raises Refused."""
        try:
            return self._commit(config_hash, count)
        except OSError as error:
            raise Refused(f"cannot put the set in place: {error.strerror}") from error
        except Unusable as error:
            raise Refused(str(error)) from error
        finally:
            self._fault = self._fault or "the set is already over"
            # What was refused may be secret: it is not left lying about.
            with contextlib.suppress(OSError, Unusable):
                self._owner.recover()

    def _commit(self, config_hash: str, count: int) -> bool:
        self._check_whole(config_hash, count)
        if self._files == self._old.files and self._owner.states()[0] == config_hash:
            return False
        self._sync()
        gone = tuple(sorted(self._old.files.keys() - self._files.keys()))
        self._owner.put_in_place(_Manifest(self._number, config_hash, self._files, gone))
        return True

    def _problem(self, name: str, body: bytes) -> str | None:
        problem = name_problem(name)
        if problem is not None:
            return f"file {_shown(name)} refused: {problem}"
        if len(self._files) >= MAX_FILES:
            return f"expected at most {MAX_FILES} files in a set"
        if len(body) > MAX_BYTES:
            return f"file {_shown(name)} refused: expected at most {MAX_BYTES} bytes, found {len(body)}"
        if name.casefold() in self._folded:
            return f"file {_shown(name)} refused: another file of the set has the same name but for its case"
        try:
            content.check(name, body)
        except content.Invalid as error:
            return f"file {_shown(name)} refused: {error}"
        return None

    def _check_whole(self, config_hash: str, count: int) -> None:
        if self._fault is not None:
            raise Refused(self._fault)
        if count != len(self._files):
            raise Refused(f"expected {count} files before the commit, found {len(self._files)}")
        if not config_hash or len(config_hash) > 200 or not config_hash.isprintable():
            raise Refused("expected a printable config hash of at most 200 characters")
        with self._recv.enter() as recv:
            for name in self._files:
                status = recv.status(name)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    raise Refused(f"a directory is in the place of {_shown(name)}; remove it")

    def _sync(self) -> None:
        with self._recv.enter() as recv, recv.child(f"{_BESIDE}{self._number}") as beside:
            for name in self._files:
                beside.sync_file(name)
            beside.sync()
            recv.sync()


def _sweep(recv: Inside, name: str) -> None:
    """Remove a directory of the agent's own making, or whatever was put in its place."""
    status = recv.status(name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        with recv.child(name) as beside:
            for file in beside.names():
                beside.remove(file)
        os.rmdir(name, dir_fd=recv.fd)
    else:
        recv.remove(name)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:77] + "...")
