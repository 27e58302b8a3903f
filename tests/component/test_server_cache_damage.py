"""The cache after what happens to files: kill -9, damage, strangers."""

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
from component.cache_world import WEB, A, cached, event, filled, instance, run_child
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.server.cache import disk
from support.eventually import eventually

path = cache_world.path
soon = cache_world.soon


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
    "of the future": alter(f"PRAGMA user_version={disk.SCHEMA + 1}", "DROP TABLE instances"),
    "of the past": alter("PRAGMA user_version=0"),
    "of another shard": alter("UPDATE stamp SET shard = 'zone-b'"),
    "of another cluster": alter("UPDATE stamp SET cluster = 'prod'"),
    "without a stamp": alter("DELETE FROM stamp"),
    "without a stamp table": alter("DROP TABLE stamp"),
    "another program's": alter("DROP TABLE stamp", "CREATE TABLE theirs (x)"),
}


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=list(UNUSABLE))
async def test_an_unusable_file_is_dropped_and_made_anew(
    path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    await filled(path)
    spoil(path)
    for _ in range(2):
        async with cached(path) as cache:
            assert await cache.sync(config_hash="n", group_hashes={WEB: "w"}, instances=[instance()])
            assert await cache.public_keys(A) in ({}, {"new": "pem"})
            assert await cache.events() == []
            cache.put_public_keys(A, {"new": "pem"})
            assert await cache.public_keys(A) == {"new": "pem"}
            assert cache.on_disk
    dropped = [r for r in caplog.records if "dropped" in r.message]
    assert len(dropped) <= 1, "said once"
    assert len(dropped) == 1 or spoil in (UNUSABLE["empty"], UNUSABLE["missing"])


async def test_a_file_of_another_shard_is_dropped_and_never_read(path: Path) -> None:
    await filled(path)
    async with cached(path, shard="zone-b") as cache:
        assert await cache.public_keys(A) == {}
    async with cached(path) as cache:
        assert await cache.public_keys(A) == {}


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_file_that_somebody_removes_is_made_again_with_its_content(
    path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cached(path) as cache:
        cache.put_public_keys(A, {"kubelet.pub": "pem"})
        assert await cache.public_keys(A) == {"kubelet.pub": "pem"}
        if what == "file":
            os.unlink(path)
        else:
            shutil.rmtree(path.parent)
        event(cache, "after")
        assert [e.message for e in await cache.events(tenant=DEFAULT_TENANT)] == ["after"]
        assert caplog.messages.count("the cache's file was removed and is made again") == 1
    async with cached(path) as again:
        assert await again.public_keys(A) == {"kubelet.pub": "pem"}


async def test_damage_while_running_costs_the_content_and_nothing_else(path: Path, soon: None) -> None:
    async with cached(path) as cache:
        for number in range(300):
            cache.put_instance(instance(InstanceId(f"knc-{number:026d}")))
        await cache.sync(config_hash="c", group_hashes={}, instances=None)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        flip(path)
        with contextlib.closing(sqlite3.connect(path)) as other, contextlib.suppress(sqlite3.Error):
            other.execute("UPDATE hashes SET hash = 'x'")  # so that the cached pages are not used any more
        for number in range(300):
            cache.put_public_keys(InstanceId(f"knc-{number:026d}"), {"k": "v"})
        assert len(await cache.all_public_keys()) == 300
        await eventually(lambda: cache.on_disk, "the way back to the disk")
        assert await cache.sync(config_hash="c", group_hashes={}, instances=[instance()])
        assert [i.id for i in await cache.instances()] == [A]


async def test_a_wal_left_by_kill_9_is_recovered(path: Path) -> None:
    body = """
    cache.put_public_keys(A, {"k": "survived"})
    assert await cache.sync(config_hash="c", group_hashes={})
    print(os.path.getsize(sys.argv[1] + "-wal"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    child = await asyncio.to_thread(run_child, path, body)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert int(child.stdout) > 0
    assert os.path.getsize(f"{path}-wal") > 0  # noqa: ASYNC240
    async with cached(path) as cache:
        assert await cache.public_keys(A) == {"k": "survived"}
        assert cache.on_disk


async def test_killed_at_any_moment_the_next_start_works(path: Path) -> None:
    body = """
    import threading
    threading.Timer(AFTER, os.kill, (os.getpid(), signal.SIGKILL)).start()
    number = 0
    while True:
        number += 1
        cache.put_public_keys(A, {str(number): "x" * 500})
        tell(cache, number, "x" * 500)
        if number % 100 == 0:
            await cache.events(limit=1)
    """
    for after in ("0.0", "0.01", "0.05", "0.1"):
        child = await asyncio.to_thread(run_child, path, body.replace("AFTER", after))
        assert child.returncode == -signal.SIGKILL, child.stderr
        async with cached(path) as cache:
            assert await cache.sync(config_hash="c", group_hashes={}, instances=[])
            assert cache.on_disk
