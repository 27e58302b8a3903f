"""A set is switched as a set. The crash tests stop the disk at every single call and look at what a restart makes of it."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.agent.files import installation
from nstance.agent.files.folder import Folder, SetupError, name_problem

OLD = {"a.json": b'{"set": 1}', "gone.txt": b"old", "same.txt": b"same"}
NEW = {"a.json": b'{"set": 2}', "new.env": b"A=1\n", "same.txt": b"same"}


class World:
    def __init__(self, root: Path) -> None:
        self.identity = Folder(root / "identity", mode=0o600)
        self.recv = Folder(root / "recv", mode=0o640)
        self.identity.prepare()
        self.recv.prepare()

    def start(self) -> installation.ReceivedFiles:
        received = installation.ReceivedFiles(recv=self.recv, identity=self.identity)
        received.recover()
        return received

    def apply(self, contents: dict[str, bytes], config_hash: str) -> None:
        incoming = self.start().begin()
        for name, body in contents.items():
            incoming.add(name, body)
        incoming.commit(config_hash, len(contents))

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.recv.path.iterdir()}

    def hash(self) -> str:
        return (self.identity.read(installation.CONFIG_HASH) or b"").decode().strip()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_set_is_install_and_the_next_one_replaces_it(world: World) -> None:
    world.apply(OLD, "sha256:1")
    assert (world.contents(), world.hash()) == (OLD, "sha256:1")
    world.apply(NEW, "sha256:2")
    assert (world.contents(), world.hash()) == (NEW, "sha256:2")
    assert {stat.S_IMODE(path.stat().st_mode) for path in world.recv.path.iterdir()} == {0o640}


def test_a_set_that_is_there_already_is_not_install_again(world: World) -> None:
    def apply() -> bool:
        incoming = world.start().begin()
        for name, body in OLD.items():
            incoming.add(name, body)
        return incoming.commit("sha256:1", len(OLD))

    assert apply() is True
    inodes = {path.name: path.stat().st_ino for path in world.recv.path.iterdir()}
    assert apply() is False
    assert {path.name: path.stat().st_ino for path in world.recv.path.iterdir()} == inodes
    (world.recv.path / "a.json").write_text("changed by hand")
    assert apply() is True
    assert world.contents() == OLD


def test_a_set_may_be_empty(world: World) -> None:
    world.apply(OLD, "sha256:1")
    world.apply({}, "sha256:0")
    assert (world.contents(), world.hash()) == ({}, "sha256:0")


def test_what_no_set_brought_is_left_alone(world: World) -> None:
    (world.recv.path / "mine.txt").write_text("of the administrator")
    (world.recv.path / "mine.d").mkdir()
    world.apply(OLD, "sha256:1")
    world.apply({}, "sha256:2")
    assert sorted(path.name for path in world.recv.path.iterdir()) == ["mine.d", "mine.txt"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        pytest.param("../up", b"", "dot", id="parent"),
        pytest.param("/etc/shadow", b"", "slash", id="absolute"),
        pytest.param("a/./b", b"", "slash", id="inner dots"),
        pytest.param("..", b"", "dot", id="dots"),
        pytest.param(".ssh", b"", "dot", id="hidden"),
        pytest.param("a\0b", b"", "control", id="NUL"),
        pytest.param("a\nb", b"", "control", id="newline"),
        pytest.param("a\u202eb", b"", "unprintable", id="right-to-left override"),
        pytest.param("", b"", "empty", id="empty"),
        pytest.param("x" * 4096, b"", "longer", id="4 kB"),
        pytest.param("A.JSON", b"", "case", id="case-fold clash"),
        pytest.param("a.json", b"{}", "case", id="twice"),
        pytest.param("big.bin", b"x" * (installation.MAX_BYTES + 1), "at most 1048576 bytes", id="too big"),
        pytest.param("bad.json", b"{", "expected JSON", id="wrong content"),
    ],
)
def test_a_failing_set_changes_nothing(world: World, name: str, body: bytes, message: str) -> None:
    world.apply(OLD, "sha256:1")
    received = world.start()
    incoming = received.begin()
    for file, good in NEW.items():
        incoming.add(file, good)
    incoming.add(name, body)
    incoming.add("after.txt", b"")
    with pytest.raises(installation.FilesRejectedError, match=message):
        incoming.commit("sha256:2", len(NEW) + 2)
    world.start()
    assert (world.contents(), world.hash()) == (OLD, "sha256:1")
    assert received.states()[0] == "sha256:1"


def test_too_many_files_are_refused(world: World) -> None:
    with pytest.raises(installation.FilesRejectedError, match="at most 256"):
        world.apply({f"f{n}": b"" for n in range(257)}, "sha256:1")
    world.start()
    assert world.contents() == {}
    world.apply({f"f{n}": b"" for n in range(256)}, "sha256:1")
    assert len(world.contents()) == 256


@pytest.mark.parametrize(
    ("config_hash", "count"), [("sha256:2", 2), ("sha256:2", 4), ("", 3), ("a\nb", 3), ("x" * 201, 3)]
)
def test_an_incomplete_commit_is_refused(world: World, config_hash: str, count: int) -> None:
    incoming = world.start().begin()
    for name, body in NEW.items():
        incoming.add(name, body)
    with pytest.raises(installation.FilesRejectedError):
        incoming.commit(config_hash, count)
    assert world.hash() == ""


def test_a_directory_in_the_way_is_reported_before_anything_changes(world: World) -> None:
    world.apply(OLD, "sha256:1")
    (world.recv.path / "new.env").mkdir()
    with pytest.raises(installation.FilesRejectedError, match=r"expected a file at 'new\.env', found a directory"):
        world.apply(NEW, "sha256:2")
    (world.recv.path / "new.env").rmdir()
    world.start()
    assert (world.contents(), world.hash()) == (OLD, "sha256:1")


def test_links_are_replaced_and_never_followed(world: World, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (world.recv.path / "a.json").symlink_to(victim)
    (world.recv.path / ".incoming-1").symlink_to(tmp_path)
    world.apply(OLD, "sha256:1")
    assert victim.read_text() == "untouched"
    assert not (world.recv.path / "a.json").is_symlink()
    assert world.contents() == OLD
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity", "recv", "victim"]


def test_states_say_what_is_on_disk(world: World) -> None:
    world.apply(OLD, "sha256:1")
    received = world.start()
    config_hash, states = received.states()
    assert config_hash == "sha256:1"
    assert {state.name for state in states} == OLD.keys()
    (world.recv.path / "gone.txt").write_text("changed by hand")
    config_hash, states = received.states()
    assert config_hash == ""
    (world.recv.path / "gone.txt").unlink()
    config_hash, states = received.states()
    assert (config_hash, {state.name for state in states}) == ("", {"a.json", "same.txt"})


def test_a_damaged_manifest_asks_for_everything_again(world: World) -> None:
    world.apply(OLD, "sha256:1")
    world.identity.write(installation.MANIFEST, b'{"number": 1')
    assert world.start().states() == ("", [])
    world.apply(NEW, "sha256:2")
    assert world.start().states()[0] == "sha256:2"


class Crash(BaseException):
    """The machine stops: not an Exception, so nothing in the product can handle it."""


class Disk:
    """Counts the calls that change or sync the disk, and stops the machine at one of them, half-way through a write."""

    CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "fchmod")

    def __init__(self, patch: pytest.MonkeyPatch, stop_at: int | None = None) -> None:
        self.trace: list[tuple[str, object]] = []
        self.stop_at = stop_at
        for name in self.CALLS:
            patch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            stopping = self.stop_at is not None and len(self.trace) >= self.stop_at
            if stopping and name == "write" and len(self.trace) == self.stop_at:
                real(args[0], bytes(args[1])[: len(bytes(args[1])) // 2])
            self.trace.append((name, args[0]))
            if stopping:
                raise Crash
            return real(*args, **kwargs)

        return call


def _crashes(root: Path) -> Iterator[tuple[int, World]]:
    """A world for every call at which the machine can stop while NEW replaces OLD."""
    for stop_at in range(10_000):
        world = World(root / str(stop_at))
        world.apply(OLD, "sha256:1")
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, stop_at)
            try:
                world.apply(NEW, "sha256:2")
            except Crash:
                pass
            else:
                return
        yield stop_at, world
    raise AssertionError("the set is never installed")


def test_interrupted_anywhere_the_set_is_old_or_new(tmp_path: Path) -> None:
    seen = []
    for stop_at, world in _crashes(tmp_path):
        received = world.start()
        found = (world.contents(), world.hash())
        assert found in ((OLD, "sha256:1"), (NEW, "sha256:2")), f"stopped at call {stop_at}"
        assert received.states()[0] == found[1]
        seen.append(found[1])
        world.apply(NEW, "sha256:3")
        assert (world.contents(), world.hash()) == (NEW, "sha256:3")
    assert seen == sorted(seen), "once committed, a set is never taken back"
    assert {"sha256:1", "sha256:2"} == set(seen)


def test_interrupted_again_while_recovering(tmp_path: Path) -> None:
    for first, world in _crashes(tmp_path):
        for second in range(0, 12, 2):
            with pytest.MonkeyPatch.context() as patch:
                Disk(patch, second)
                try:
                    world.start()
                except Crash:
                    continue
        world.start()
        assert (world.contents(), world.hash()) in ((OLD, "sha256:1"), (NEW, "sha256:2")), first


def test_everything_is_synced_before_the_manifest_names_it(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        world.apply(NEW, "sha256:1")
    calls = disk.trace
    commit = calls.index(("rename", f".{installation.MANIFEST}.new"))
    written = [n for n, (name, _) in enumerate(calls) if name == "write"][: len(NEW)]
    synced = [n for n, (name, _) in enumerate(calls) if name == "fsync" and max(written) < n < commit]
    assert len(synced) >= len(NEW) + 2, "each file, its directory, and the directory above"
    assert calls.index(("rename", ".config.hash.new")) > max(
        n for n, call in enumerate(calls) if call[0] == "rename" and call[1] in NEW
    )


def test_a_full_disk_is_reported_and_changes_nothing(world: World) -> None:
    world.apply(OLD, "sha256:1")
    received = world.start()
    incoming = received.begin()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        incoming.add("a.json", b"{}")
    with pytest.raises(installation.FilesRejectedError, match="No space left"):
        incoming.commit("sha256:2", 1)
    world.start()
    assert (world.contents(), world.hash()) == (OLD, "sha256:1")


def test_a_directory_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="expected a writable directory"):
        Folder(tmp_path / "file", mode=0o600).prepare()
    with pytest.raises(SetupError, match="expected a writable directory"):
        Folder(tmp_path / "file" / "below", mode=0o600).prepare()


def test_a_fifo_or_a_link_in_the_place_of_a_file_is_an_error_not_a_hang(tmp_path: Path) -> None:
    folder = Folder(tmp_path, mode=0o600)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("fifo", "link"):
        with pytest.raises(SetupError):
            folder.read(name)


@given(st.text(max_size=30))
def test_an_accepted_name_names_only_itself(name: str) -> None:
    if name_problem(name) is None:
        assert os.path.basename(name) == name
        assert os.path.normpath(os.path.join("/recv", name)) == f"/recv/{name}"
        assert not any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
