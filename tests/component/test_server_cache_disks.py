"""The cache on disks that are full, locked, slow or read-only, see docs/failures.md."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from component import cache_world
from component.cache_world import SECONDS, SOON, A, B, cached, filled, images, opened, put_event, run_child
from nstance.server.cache import disk
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.cache.thread import Limits
from support.eventually import eventually

path = cache_world.path


# ---- disks that do not work


FULL = """
    import resource
    assert await cache.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, limits[1]))
    for number in range(2000):
        cache.put_image(str(number), "x" * 500)
        put_event(cache, number, str(number))
    assert len(await images(cache)) == 2000
    assert not cache.on_disk
    assert len(await cache.events(limit=1000)) == 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    async with asyncio.timeout(60):
        while not cache.on_disk:
            await asyncio.sleep(0.01)
    assert len(await images(cache)) == 2000
    await cache.close()
    print("survived")
"""


async def test_a_file_that_cannot_grow_moves_the_cache_into_memory_and_back(path: Path) -> None:
    child = await asyncio.to_thread(run_child, path, FULL)
    assert child.stdout.strip() == "survived", child.stderr
    async with cached(path) as cache:
        assert len(await images(cache)) == 2000


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_moves_the_cache_into_memory_and_room_brings_it_back(
    tiny_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cached(tiny_disk / "db" / "nstance.db", SOON) as cache:
        cache.put_image("before", "pem")
        assert await cache.flush()
        ballast = tiny_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        for number in range(500):
            cache.put_image(str(number), "x" * 100)
        assert len(await images(cache)) == 501, "nothing that was known is lost"
        assert not cache.on_disk
        assert sum("in memory" in r.message for r in caplog.records) == 1
        ballast.unlink()
        await eventually(lambda: cache.on_disk, "the way back to the disk")
        assert len(await images(cache)) == 501


async def test_without_a_usable_disk_the_cache_lives_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "db").write_text("a file where the folder should be")
    async with cached(tmp_path / "db" / "nstance.db", SOON) as cache:
        assert not await cache.flush()
        cache.put_image("k", "pem")
        assert await images(cache) == {"k": "pem"}
        assert not cache.on_disk
        (tmp_path / "db").unlink()
        await eventually(lambda: cache.on_disk, "the disk")
        assert await images(cache) == {"k": "pem"}
    assert sum("in memory" in r.message for r in caplog.records) == 1
    async with cached(tmp_path / "db" / "nstance.db", SOON) as cache:
        assert await images(cache) == {"k": "pem"}


async def test_a_file_that_cannot_be_written_is_still_read(path: Path) -> None:
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")

    def refused(*_: object, lock_seconds: float) -> sqlite3.Connection:
        problem = sqlite3.OperationalError("attempt to write a readonly database")
        problem.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "open_file", refused)
        async with cached(path) as cache:
            assert await images(cache) == {"ubuntu": "ami-1"}
            assert not cache.on_disk


# ---- locks and slowness


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def locked_by_another_process(path: Path, how: str) -> AsyncIterator[None]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(path), how, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        assert await process.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def test_a_lock_of_another_process_moves_the_cache_into_memory_for_its_time(path: Path) -> None:
    await filled(path)
    async with cached(path, SOON) as cache:
        assert await images(cache) == {"ubuntu": "ami-1"}
        async with locked_by_another_process(path, "BEGIN IMMEDIATE"):
            cache.put_image("during", "pem")
            assert await images(cache) == {"ubuntu": "ami-1", "during": "pem"}
            assert not cache.on_disk
        await eventually(lambda: cache.on_disk, "the way back to the disk")
    async with cached(path, SOON) as cache:
        assert await images(cache) == {"ubuntu": "ami-1", "during": "pem"}
        assert len(await cache.events()) == 20


async def test_a_file_that_is_locked_at_the_start_keeps_its_content(path: Path) -> None:
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")  # in WAL mode nobody can lock readers out
    async with locked_by_another_process(path, "BEGIN EXCLUSIVE"):
        cache = opened(path, SOON)
        cache.put_image("during", "pem")
        assert not await cache.flush()
        assert await images(cache) == {"during": "pem"}
    await eventually(lambda: cache.on_disk, "the disk")
    assert await images(cache) == {"ubuntu": "ami-1", "during": "pem"}
    await cache.close()


class Stuck:
    """The cache's thread is blocked, as by an fsync that never returns."""

    def __init__(self, cache: Cache) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        cache._thread.append(lambda db: (self.entered.set(), self.go_on.wait(SECONDS)), count=0)


async def test_a_disk_that_does_not_answer_blocks_nobody(path: Path) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await eventually(stuck.entered.is_set, "the standstill")
    for number in range(1000):
        cache.put_last_report(A, number)
    with pytest.raises(CacheUnavailableError, match="did not answer"):
        await cache._thread.query(lambda db: None, timeout=0.01)
    assert not await cache.flush(timeout=0.01)
    assert len(cache._thread._updates) == 1, "changes to one instance replace each other"
    stuck.go_on.set()
    assert await cache.last_report(A) == 999
    await cache.close()


async def test_a_full_queue_clears_the_cache_rather_than_answer_wrongly(path: Path) -> None:
    cache = opened(path, Limits(pending_updates=10, pending_events=5, pending_queries=1))
    cache.put_image("old", "pem")
    cache.put_last_report(B, 1.0)
    assert await cache.flush()
    stuck = Stuck(cache)
    await eventually(stuck.entered.is_set, "the standstill")
    for number in range(15):
        cache.put_image(str(number), "pem")
        put_event(cache, str(number))
    assert cache.dropped == 5 + 10
    waiting = asyncio.create_task(images(cache))
    await asyncio.sleep(0)
    with pytest.raises(CacheUnavailableError, match="overloaded"):
        await cache.events()
    stuck.go_on.set()
    assert await waiting == {str(number): "pem" for number in range(5, 15)}
    assert await cache.last_report(B) is None
    assert [e.message for e in await cache.events()] == ["0", "1", "2", "3", "4"]
    await cache.close()


async def test_closing_does_not_wait_for_a_disk_that_does_not_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await eventually(stuck.entered.is_set, "the standstill")
    await cache._thread.close(timeout=0.01)
    assert "left behind" in caplog.text
    with pytest.raises(CacheUnavailableError, match="closed"):
        await cache.events()
    cache.put_last_report(A, 1.0)  # and nothing raises
    stuck.go_on.set()
    await cache.close()


async def test_a_cancelled_query_affects_no_other(path: Path) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await eventually(stuck.entered.is_set, "the standstill")
    asking = asyncio.create_task(cache.events())
    await asyncio.sleep(0)
    asking.cancel()
    stuck.go_on.set()
    assert await images(cache) == {}
    assert asking.cancelled() or asking.cancelling()
    await cache.close()
