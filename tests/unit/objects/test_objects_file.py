"""The file store: crashes, other processes, people with editors, and sick disks."""

import asyncio
import errno
import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nstance import clock
from nstance.objects import directory, errors, file, memory
from nstance.objects.port import Key, Version

# ruff: noqa: ASYNC220, ASYNC221, ASYNC230, ASYNC240 - a test may block its own loop
K = Key("shard/dev-1/leader.json")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> file.FileStore:
    return file.FileStore(tmp_path)


async def listed(store: file.FileStore | memory.MemoryStore, prefix: str = "", after: str = "") -> list[str]:
    return [key async for key in store.list(prefix, after=after)]


async def test_a_key_is_a_path_and_bookkeeping_is_hidden(store: file.FileStore, tmp_path: pathlib.Path) -> None:
    await store.create(K, b"one")
    assert (tmp_path / K).read_bytes() == b"one"
    assert await listed(store) == [K]
    for verb in (
        store.get(Key(".nstance/locks/00")),
        store.create(Key(".nstance/x"), b""),
        store.delete(Key(".nstance/x")),
    ):
        with pytest.raises(errors.PermissionDeniedError, match="which the store uses itself"):
            await verb


async def test_equal_bytes_are_another_version(store: file.FileStore) -> None:
    versions = [await store.create(K, b"same")]
    for _ in range(50):
        versions.append(await store.replace(K, b"same", seen=versions[-1]))
    assert len(set(versions)) == len(versions)


@pytest.mark.parametrize("step", [0.0, -100.0], ids=["stands still", "goes back"])
async def test_versions_move_on_although_the_clock_does_not(tmp_path: pathlib.Path, step: float) -> None:
    class Wall(clock.SystemClock):
        now = 1_000_000.0

        def wall(self) -> float:
            self.now += step
            return self.now

    store = file.FileStore(tmp_path, clock=Wall())
    versions, times = [await store.create(K, b"same")], [os.stat(tmp_path / K).st_mtime_ns]
    for _ in range(20):
        versions.append(await store.replace(K, b"same", seen=versions[-1]))
        times.append(os.stat(tmp_path / K).st_mtime_ns)
    assert len(set(versions)) == len(versions)
    assert times == sorted(
        set(times)
    )  # a file system may give an old inode to a new file, so time must not stand still


@pytest.mark.parametrize("how", ["in place", "same size", "renamed over", "removed"])
async def test_an_edit_by_hand_is_another_version(store: file.FileStore, tmp_path: pathlib.Path, how: str) -> None:
    version = await store.create(K, b"one")
    path = tmp_path / K
    match how:
        case "in place":
            path.write_bytes(b"edited")
        case "same size":
            path.write_bytes(b"two")
        case "renamed over":
            (tmp_path / "elsewhere").write_bytes(b"two")
            os.rename(tmp_path / "elsewhere", path)
        case _:
            path.unlink()
    with pytest.raises(errors.NotFoundError if how == "removed" else errors.ConflictError):
        await store.replace(K, b"three", seen=version)


async def test_a_file_made_by_hand_is_an_object(store: file.FileStore, tmp_path: pathlib.Path) -> None:
    (tmp_path / "shard/dev-2").mkdir(parents=True)
    (tmp_path / "shard/dev-2/config.jsonc").write_bytes(b"{}")
    assert await listed(store, "shard/") == ["shard/dev-2/config.jsonc"]
    found = await store.get(Key("shard/dev-2/config.jsonc"))
    await store.replace(Key("shard/dev-2/config.jsonc"), b"{ }", seen=found.version)
    with pytest.raises(errors.ConflictError):
        await store.create(Key("shard/dev-2/config.jsonc"), b"")


async def test_a_key_cannot_be_the_beginning_of_another_path(store: file.FileStore) -> None:
    await store.create(Key("a/b"), b"")
    with pytest.raises(errors.PermissionDeniedError, match="directory of another"):
        await store.create(Key("a"), b"")
    with pytest.raises(errors.PermissionDeniedError, match="directory of another"):
        await store.create(Key("a/b/c"), b"")
    for absent in ("a", "a/b/c"):
        with pytest.raises(errors.NotFoundError):
            await store.get(Key(absent))
    await store.delete(Key("a/b"))
    await store.create(Key("a"), b"now it can")


async def test_a_long_name_is_refused_clearly(store: file.FileStore) -> None:
    with pytest.raises(errors.PermissionDeniedError, match="255 bytes"):
        await store.create(Key("x" * 256), b"")


async def test_emptied_directories_go_while_neighbours_write(store: file.FileStore, tmp_path: pathlib.Path) -> None:
    async def churn(name: str) -> None:
        for _ in range(40):
            await store.create(Key(f"deep/er/{name}"), b"")
            await store.delete(Key(f"deep/er/{name}"))

    await asyncio.gather(*(churn(f"n{n}") for n in range(8)))
    assert not (tmp_path / "deep").exists()


async def test_a_bucket_that_is_gone_is_not_an_empty_one(store: file.FileStore, tmp_path: pathlib.Path) -> None:
    version = await store.create(K, b"one")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()  # as an unmounted disk leaves its mount point
    for call in (
        store.get(K),
        store.head(K),
        store.create(K, b""),
        store.replace(K, b"", seen=version),
        store.delete(K),
        listed(store),
    ):
        with pytest.raises(errors.UnavailableError):
            await call
    assert list(tmp_path.iterdir()) == []


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, times: int = 1) -> None:
    """The next calls of an os function fail, as on a sick disk."""
    real = getattr(os, name)
    left = [times]

    def broken(*arguments: object, **named: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    monkeypatch.setattr(os, name, broken)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("step", ["fsync", "utime", "rename"])
async def test_a_sick_disk_before_the_write(
    store: file.FileStore, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    version = await store.create(K, b"one")
    failing(monkeypatch, step, code)
    expected = errors.UnknownOutcomeError if (step, code) == ("rename", errno.EIO) else errors.UnavailableError
    with pytest.raises(expected, match=os.strerror(code)):
        await store.replace(K, b"two", seen=version)
    assert (await store.get(K)).version == version
    assert list((tmp_path / ".nstance/temporary").iterdir()) == []
    await store.replace(K, b"two", seen=version)


async def test_a_sick_disk_after_the_write_is_unknown(store: file.FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    version = await store.create(K, b"one")
    real, calls = os.fsync, []

    def second_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:  # the first one is the file's, the second its directory's
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(errors.UnknownOutcomeError):
        await store.replace(K, b"two", seen=version)
    assert (await store.get(K)).body == b"two"


async def test_a_sick_disk_on_reading_is_unavailable(store: file.FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create(K, b"one")
    failing(monkeypatch, "fstat", errno.EIO)
    with pytest.raises(errors.UnavailableError):
        await store.get(K)
    failing(monkeypatch, "scandir", errno.EIO)
    with pytest.raises(errors.UnavailableError):
        await listed(store)


CALLS = ("open", "write", "close", "utime", "fsync", "stat", "fstat", "rename", "unlink", "mkdir", "scandir", "flock")
VERBS: dict[str, Callable[[file.FileStore], Awaitable[object]]] = {
    "create": lambda store: store.create(Key("shard/dev-2/new"), b"one"),
    "put": lambda store: store.put(K, b"two"),
    "get": lambda store: store.get(K),
    "head": lambda store: store.head(K),
    "delete": lambda store: store.delete(K),
    "list": lambda store: listed(store, "shard/"),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", VERBS)
async def test_whatever_the_disk_refuses_is_a_storage_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, verb: str, code: int
) -> None:
    """Each call to the system fails once, at each of its places, with all later ones healthy or failing too."""
    real = {name: getattr(fcntl if name == "flock" else os, name) for name in CALLS}
    fails: Callable[[int], bool] = lambda number: False  # noqa: E731
    calls: list[str] = []

    def breaking(name: str) -> Callable[..., object]:
        def call(*arguments: Any, **named: Any) -> object:
            if not threading.current_thread().name.startswith("objects"):
                return real[name](*arguments, **named)
            calls.append(name)
            broken = fails(len(calls))
            if broken and name != "close":  # a file that cannot be closed well is closed all the same
                raise OSError(code, os.strerror(code))
            done = real[name](*arguments, **named)
            if broken:
                raise OSError(code, os.strerror(code))
            return done

        return call

    for name in CALLS:
        monkeypatch.setattr(fcntl if name == "flock" else os, name, breaking(name))
    refused, position = set(), 0
    while position <= len(calls):
        position += 1
        for lasting in (False, True):
            store = file.FileStore(tmp_path / f"{position}-{lasting}")
            fails = lambda number: False  # noqa: E731
            await store.create(K, b"one")
            calls.clear()
            fails = lambda number: number >= position if lasting else number == position  # noqa: B023, E731
            try:
                await VERBS[verb](store)
            except errors.StorageError:
                refused.add(calls[position - 1])
            await store.close()
    wanted = {
        "create": {"open", "write", "fsync", "rename", "flock", "mkdir", "utime"},
        "put": {"open", "write", "fsync", "rename", "flock", "stat"},
        "get": {"fstat"},
        "head": {"stat"},
        "delete": {"open", "unlink", "fsync", "flock"},
        "list": {"scandir"},
    }
    assert refused >= wanted[verb]


FULL = """
import asyncio, resource, sys
from nstance.objects import errors, file
async def main():
    store = file.FileStore(sys.argv[1])
    version = await store.create("k", b"small")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for size in (1001, 5000, 200_000):
        for write in (store.create("new", b"x" * size), store.replace("k", b"x" * size, seen=version)):
            try:
                await write
            except errors.UnavailableError as problem:
                print(problem)
    await store.replace("k", b"y" * 1000, seen=version)
asyncio.run(main())
"""


async def test_a_full_disk_is_unavailable_and_nothing_is_lost(tmp_path: pathlib.Path) -> None:
    """A real limit on file sizes: the first bytes are taken, the rest is refused."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["write new: File too large", "write k: File too large"] * 3
    store = file.FileStore(tmp_path)
    assert (await store.get(Key("k"))).body == b"y" * 1000
    assert await listed(store) == ["k"]
    assert list((tmp_path / ".nstance/temporary").iterdir()) == []


async def test_no_permission_is_denied(store: file.FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "rename", errno.EACCES)
    with pytest.raises(errors.PermissionDeniedError, match="give this user access"):
        await store.create(K, b"one")


async def test_a_lock_that_is_never_released_is_unavailable(
    store: file.FileStore, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOCK_TIMEOUT_SECONDS", 0.05)
    lock = tmp_path / ".nstance/locks" / hashlib.sha256(K.encode()).hexdigest()[:2]
    with open(lock, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.UnavailableError, match="is it paused"):
            await store.create(K, b"one")
    await store.create(K, b"one")


async def test_a_closed_store_is_unavailable(store: file.FileStore) -> None:
    await store.close()
    with pytest.raises(errors.UnavailableError, match="closed"):
        await store.get(K)


async def test_opening_below_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(errors.PermissionDeniedError, match="open the bucket directory"):
        file.FileStore(tmp_path / "plain")


WRITER = """
import asyncio, pathlib, sys
from nstance.objects import errors, file
store = file.FileStore(sys.argv[1])
async def main():
    body = sys.argv[2].encode() * 200_000
    print("ready", flush=True)
    while True:
        seen = await store.get("k")
        try:
            await store.replace("k", body, seen=seen.version)
        except errors.ConflictError:
            pass
asyncio.run(main())
"""


async def test_killed_writers_leave_the_old_or_the_new(tmp_path: pathlib.Path) -> None:
    """kill -9 at any byte, again and again, with two writers and a reader."""
    store = file.FileStore(tmp_path)
    await store.create(Key("k"), b"0" * 200_000)
    whole = {letter.encode() * 200_000 for letter in "0AB"}
    for turn in range(6):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), letter], stdout=subprocess.PIPE)
            for letter in "AB"
        ]
        for writer in writers:
            assert writer.stdout is not None
            await asyncio.to_thread(writer.stdout.readline)
        for _ in range(20 + turn * 7):
            assert (await store.get(Key("k"))).body in whole
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        found = await store.get(Key("k"))
        assert found.body in whole
        await store.replace(Key("k"), b"0" * 200_000, seen=found.version)
    file.FileStore(tmp_path)
    assert list((tmp_path / ".nstance/temporary").iterdir()) == []
    assert await listed(store) == ["k"]


COUNTER = """
import asyncio, sys
from nstance.objects import errors, file
async def main():
    store = file.FileStore(sys.argv[1])
    for turn in range(25):
        while True:
            seen = await store.get("count")
            try:
                await store.replace("count", b"%d" % (int(seen.body) + 1), seen=seen.version)
                break
            except errors.ConflictError:
                pass
    won = 0
    for number in range(25):
        try:
            await store.create(f"slot/{number}", sys.argv[2].encode())
            won += 1
        except errors.ConflictError:
            pass
    print(won)
asyncio.run(main())
"""


async def test_processes_race_fairly(tmp_path: pathlib.Path) -> None:
    store = file.FileStore(tmp_path)
    await store.create(Key("count"), b"0")
    processes = [
        subprocess.Popen([sys.executable, "-c", COUNTER, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    outputs = [(await asyncio.to_thread(process.communicate, timeout=60))[0] for process in processes]
    assert (await store.get(Key("count"))).body == b"100"
    assert sum(int(output) for output in outputs) == 25  # each slot was won once


names = st.text(alphabet=string.ascii_lowercase[:3] + "-.0~é", min_size=1, max_size=3).filter(
    lambda s: s not in (".", "..")
)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.tuples(st.sampled_from(["create", "delete"]), paths), max_size=30),
    st.lists(st.tuples(paths.map(lambda p: p[:-1]) | paths, paths | st.just("")), min_size=1, max_size=5),
)
def test_it_behaves_like_a_dictionary(actions: list[tuple[str, str]], questions: list[tuple[str, str]]) -> None:
    async def run(root: str) -> None:
        store, model = file.FileStore(root), memory.MemoryStore(clock.SystemClock())
        for verb, name in actions:
            if verb == "delete":
                await store.delete(Key(name))
                await model.delete(Key(name))
                continue
            try:
                await store.create(Key(name), name.encode())
            except errors.PermissionDeniedError:  # a path of another key: the one thing that a directory cannot do
                assert any(k.startswith(f"{name}/") or name.startswith(f"{k}/") for k in model.contents())
                continue
            except errors.ConflictError:
                assert name in model.contents()
                continue
            await model.create(Key(name), name.encode())
        assert await listed(store) == list(model.contents())
        for prefix, after in questions:
            assert await listed(store, prefix, after) == await listed(model, prefix, after)
        await store.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(run(root))


async def test_an_unknown_version_never_matches(store: file.FileStore) -> None:
    await store.create(K, b"one")
    for odd in ("", "*", '"', "0-0-0"):
        with pytest.raises(errors.ConflictError):
            await store.replace(K, b"two", seen=Version(odd))
