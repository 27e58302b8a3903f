"""The cache after what happens to files: kill -9, damage, files of others. See docs/failures.md."""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from component import cache_world
from component.cache_world import SOON, A, cached, filled, images, put_event, run_child
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.server.cache import disk
from support.eventually import eventually

path = cache_world.path


def scribble(path: Path) -> None:
    path.write_bytes(b"\x00\xffgarbage" * 5000)


def flip(path: Path, start: int = 4096) -> None:
    """Damage behind an intact header."""
    data = bytearray(path.read_bytes())
    for at in range(start, len(data)):
        data[at] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def alter(*statements: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()

    return act


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "garbage": scribble,
    "flipped bits": flip,
    "damage deep inside, which only a check sees": lambda path: flip(path, path.stat().st_size // 2),
    "cut off": cut,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "of the future": alter(f"PRAGMA user_version={disk.SCHEMA_VERSION + 1}", "DROP TABLE images"),
    "of the past": alter("PRAGMA user_version=0"),
    "of another shard": alter("UPDATE stamp SET shard = 'zone-b'"),
    "of another cluster": alter("UPDATE stamp SET cluster = 'prod'"),
    "without a stamp": alter("DELETE FROM stamp"),
    "without a stamp table": alter("DROP TABLE stamp"),
    "another program's": alter("DROP TABLE stamp", "CREATE TABLE theirs (x)"),
}


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=list(UNUSABLE))
async def test_an_unusable_file_is_dropped_and_created_again(
    path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path)
    spoil(path)
    for _ in range(2):
        async with cached(path) as cache:
            assert await cache.flush()
            assert await images(cache) in ({}, {"new": "ami-2"})
            assert await cache.events() == []
            cache.put_image("new", "ami-2")
            assert await images(cache) == {"new": "ami-2"}
            assert cache.on_disk
    dropped = [r for r in caplog.records if "dropped" in r.message]
    assert len(dropped) <= 1, "logged once"
    assert len(dropped) == 1 or spoil in (UNUSABLE["empty"], UNUSABLE["missing"])


async def test_a_file_of_another_shard_is_dropped_and_never_read(path: Path) -> None:
    await filled(path)
    async with cached(path, shard="zone-b") as cache:
        assert await images(cache) == {}
    async with cached(path) as cache:
        assert await images(cache) == {}


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_file_that_somebody_removes_is_made_again_with_its_content(
    path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cached(path) as cache:
        cache.put_image("ubuntu", "ami-1")
        assert await images(cache) == {"ubuntu": "ami-1"}
        if what == "file":
            os.unlink(path)
        else:
            shutil.rmtree(path.parent)
        put_event(cache, "after")
        assert [e.message for e in await cache.events(tenant=DEFAULT_TENANT)] == ["after"]
        assert caplog.messages.count("cache file was removed and is created again") == 1
    async with cached(path) as again:
        assert await images(again) == {"ubuntu": "ami-1"}


async def test_damage_while_running_costs_the_content_and_nothing_else(path: Path) -> None:
    async with cached(path, SOON) as cache:
        for number in range(300):
            cache.put_last_report(InstanceId(f"knc-{number:026d}"), 1.0)
        await cache.flush()
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        flip(path)
        with contextlib.closing(sqlite3.connect(path)) as other, contextlib.suppress(sqlite3.Error):
            other.execute("UPDATE last_reports SET at = 2")  # so that the cached pages are not used any more
        for number in range(300):
            cache.put_image(str(number), "ami-1")
        assert len(await images(cache)) == 300
        await eventually(lambda: cache.on_disk, "the way back to the disk")
        cache.put_last_report(A, 3.0)
        assert await cache.flush()
        assert await cache.last_report(A) == 3.0


async def test_a_wal_left_by_kill_9_is_recovered(path: Path) -> None:
    body = """
    cache.put_image("k", "survived")
    assert await cache.flush()
    print(os.path.getsize(sys.argv[1] + "-wal"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    child = await asyncio.to_thread(run_child, path, body)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert int(child.stdout) > 0
    assert os.path.getsize(f"{path}-wal") > 0  # noqa: ASYNC240
    async with cached(path) as cache:
        assert await images(cache) == {"k": "survived"}
        assert cache.on_disk


async def test_killed_at_any_moment_the_next_start_works(path: Path) -> None:
    body = """
    import threading
    threading.Timer(AFTER, os.kill, (os.getpid(), signal.SIGKILL)).start()
    number = 0
    while True:
        number += 1
        cache.put_image(str(number), "x" * 500)
        put_event(cache, number, "x" * 500)
        if number % 100 == 0:
            await cache.events(limit=1)
    """
    for after in ("0.0", "0.01", "0.05", "0.1"):
        child = await asyncio.to_thread(run_child, path, body.replace("AFTER", after))
        assert child.returncode == -signal.SIGKILL, child.stderr
        async with cached(path) as cache:
            assert await cache.flush()
            assert cache.on_disk
