"""The cache on real files, with what happens to files: kill -9, damage, strangers, full disks, locks and slowness."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance import clock
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, State
from nstance.server import cache_disk, cache_thread
from nstance.server.cache import Cache, CacheUnavailable

CLOCK = clock.SystemClock()
SECONDS = 20.0
A, B = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q"), InstanceId("knc-01jw51srryegh9snf9cmeh3k5r")
WEB = GroupKey(DEFAULT_TENANT, GroupName("web"))
OTHER = TenantId("other")


def opened(path: Path, *, cluster: str = "demo", shard: str = "zone-a") -> Cache:
    return Cache.open(path, cluster=cluster, shard=shard, clock=CLOCK)


@contextlib.asynccontextmanager
async def cached(path: Path, **more: str) -> AsyncIterator[Cache]:
    cache = opened(path, **more)
    try:
        yield cache
    finally:
        await cache.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "nstance.db"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_thread, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(cache_thread, "RETRY_MOST", 0.1)
    monkeypatch.setattr(cache_disk, "LOCK_SECONDS", 0.05)


def instance(id: InstanceId = A, state: State = State.RUNNING, tenant: TenantId = DEFAULT_TENANT) -> Instance:
    return Instance(id=id, tenant=tenant, group=GroupName("web"), state=state, created=5.0, vars={"a": "ü"})


def event(cache: Cache, message: str, tenant: TenantId = DEFAULT_TENANT, **more: Any) -> None:
    cache.put_event(**{"tenant": tenant, "group": "web", "instance": A, "code": "scale-up", "message": message} | more)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not come") from None


async def filled(path: Path) -> None:
    """A sound cache with one key and some pages of events in it."""
    async with cached(path) as cache:
        cache.put_public_keys(A, {"kubelet.pub": "pem"})
        for _ in range(20):
            event(cache, "before" * 500)
        assert await cache.sync(config_hash="c", group_hashes={WEB: "w"}, instances=[instance()])


# ---- what is put is there


async def test_everything_put_can_be_asked_for_and_outlives_the_process(path: Path) -> None:
    async with cached(path) as cache:
        assert await cache.sync(config_hash="c1", group_hashes={WEB: "w1"})
        cache.put_instance(instance())
        cache.put_report(A, {"sequence": 7, "files": {"a": "b"}})
        cache.put_public_keys(A, {"kubelet.pub": "pem-1", "etcd.pub": "pem-2"})
        cache.put_image("ubuntu/24.04", "ami-1")
        cache.put_members("front", {A, B})
        event(cache, "made")
        await check_everything(cache)
    async with cached(path) as cache:
        await check_everything(cache)
        assert cache.on_disk


async def check_everything(cache: Cache) -> None:
    hashes = await cache.hashes()
    assert (hashes.config, hashes.groups) == ("c1", {WEB: "w1"})
    assert await cache.instances() == [instance()]
    report = await cache.report(A)
    assert report is not None
    assert report.report == {"sequence": 7, "files": {"a": "b"}}
    assert await cache.public_keys(A) == {"kubelet.pub": "pem-1", "etcd.pub": "pem-2"}
    assert await cache.all_public_keys() == {A: {"kubelet.pub": "pem-1", "etcd.pub": "pem-2"}}
    assert await cache.image("ubuntu/24.04", younger_than=3600) == "ami-1"
    assert await cache.image("ubuntu/24.04", younger_than=-1) is None
    assert await cache.members("front") == {A, B}
    (made,) = await cache.events()
    assert (made.message, made.code, made.group, made.instance, made.trouble) == ("made", "scale-up", "web", A, False)


async def test_what_is_not_known_is_not_made_up(path: Path) -> None:
    async with cached(path) as cache:
        assert (await cache.hashes()).config is None
        assert await cache.instances() == []
        assert await cache.report(A) is None
        assert await cache.public_keys(A) == {}
        assert await cache.image("x", younger_than=3600) is None
        assert await cache.members("front") is None
        cache.put_members("front", [])
        assert await cache.members("front") == frozenset()
        assert await cache.events() == []


async def test_instances_are_asked_for_by_tenant_and_group(path: Path) -> None:
    async with cached(path) as cache:
        cache.put_instance(instance(A))
        cache.put_instance(instance(B, tenant=OTHER))
        assert [i.id for i in await cache.instances()] == [A, B]
        assert [i.id for i in await cache.instances(tenant=OTHER)] == [B]
        assert [i.id for i in await cache.instances(tenant=OTHER, group=GroupName("db"))] == []


async def test_a_removed_instance_takes_everything_about_it_along(path: Path) -> None:
    async with cached(path) as cache:
        for id in (A, B):
            cache.put_instance(instance(id))
            cache.put_report(id, {})
            cache.put_public_keys(id, {"k": id})
        cache.remove_instance(A)
        assert [i.id for i in await cache.instances()] == [B]
        assert await cache.all_public_keys() == {B: {"k": B}}
        assert await cache.report(A) is None
        assert await cache.report(B) is not None


async def test_a_sync_replaces_configuration_and_instances_and_keeps_what_belongs_to_them(path: Path) -> None:
    async with cached(path) as cache:
        assert cache.stale
        assert await cache.sync(config_hash="b", group_hashes={GroupKey(OTHER, GroupName("gone")): "g"})
        cache.put_instance(instance(B))
        cache.put_public_keys(A, {"k": "a"})
        cache.put_public_keys(B, {"k": "b"})
        assert await cache.sync(config_hash="c", group_hashes={WEB: "w"}, instances=[instance(A)])
        assert not cache.stale
        assert (await cache.hashes()).groups == {WEB: "w"}
        assert [i.id for i in await cache.instances()] == [A]
        assert await cache.all_public_keys() == {A: {"k": "a"}}


async def test_events_are_found_by_tenant_group_instance_and_followed_by_id(path: Path) -> None:
    async with cached(path) as cache:
        for number in range(10):
            event(cache, str(number), tenant=OTHER if number % 2 else DEFAULT_TENANT, trouble=number == 4)
        event(cache, "b", instance=B)
        event(cache, "db", group="db", instance="")

        async def found(**query: Any) -> list[str]:
            return [e.message for e in await cache.events(**query)]

        assert await found() == [*"0123456789", "b", "db"]
        assert await found(tenant=OTHER) == list("13579")
        assert await found(tenant=DEFAULT_TENANT, instance=B) == ["b"]
        assert await found(tenant=OTHER, instance=B) == []
        assert await found(group="db") == ["db"]
        assert await found(limit=3) == ["9", "b", "db"], "the newest, oldest first"
        everything = await cache.events()
        ids = [e.id for e in everything]
        assert ids == sorted(set(ids))
        assert await found(after=ids[3], limit=2) == ["4", "5"], "those that follow, so that none is missed"
        assert await found(after=ids[-1]) == []
        assert [e.message for e in everything if e.trouble] == ["4"]


async def test_event_ids_grow_over_a_clock_that_jumps_back_and_over_a_lost_cache(path: Path, tmp_path: Path) -> None:
    class Jumping(clock.SystemClock):
        times = itertools.chain([2000.0, 1000.0], itertools.count(3000.0))

        def wall(self) -> float:
            return next(self.times)

    cache = Cache.open(path, cluster="demo", shard="zone-a", clock=Jumping())
    for message in ("a", "b", "c"):
        event(cache, message)
    ids = [e.id for e in await cache.events()]
    await cache.close()
    assert ids == [2000_000_000, 2000_000_001, 3000_000_000]


async def test_only_the_newest_events_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_thread, "KEEP_EVENTS", 20)
    monkeypatch.setattr(cache_thread, "TRIM_AFTER", 5)
    for round in range(2):  # the count is right after a restart, too
        async with cached(path) as cache:
            for number in range(26):
                event(cache, f"{round}.{number}")
                if number % 10 == 0:
                    await cache.events(limit=1)
            kept = await cache.events(limit=1000)
            assert 20 <= len(kept) <= 25
            assert kept[-1].message == f"{round}.25"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "remove", "keys", "ask"]), st.sampled_from([A, B]), st.sampled_from(State)),
        max_size=30,
    )
)
def test_the_last_word_counts_however_changes_are_gathered(steps: list[tuple[str, InstanceId, State]]) -> None:
    async def play() -> None:
        states: dict[InstanceId, State] = {}
        keys: dict[InstanceId, dict[str, str]] = {}
        async with cached(Path("/dev/null/nstance.db")) as cache:  # in memory: quicker
            for word, id, state in steps:
                match word:
                    case "put":
                        cache.put_instance(instance(id, state))
                        states[id] = state
                    case "remove":
                        cache.remove_instance(id)
                        states.pop(id, None)
                        keys.pop(id, None)
                    case "keys":
                        cache.put_public_keys(id, {"k": state.value})
                        keys[id] = {"k": state.value}
                    case _:
                        assert {i.id: i.state for i in await cache.instances()} == states
            assert {i.id: i.state for i in await cache.instances()} == states
            assert await cache.all_public_keys() == keys

    asyncio.run(play())


async def test_nothing_put_can_raise_or_take_others_along(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cached(path) as cache:
        cache.put_public_keys(A, {"k": "half \ud800", "good": "pem"})
        cache.put_report(A, {"x": object()})
        cache.put_report(B, {"x": float("nan")})
        cache.put_image("x", object())  # type: ignore[arg-type]
        event(cache, "half \ud800 " + "x" * 100_000)
        assert await cache.public_keys(A) == {"good": "pem"}
        (one,) = await cache.events()
        assert one.message.startswith("half ? xxx")
        assert len(one.message) == 4096
        assert cache.dropped == 4
        assert cache.on_disk
    assert "cannot be kept" in caplog.text


# ---- F42, F43: files that are not what they should be


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
    "of the future": alter(f"PRAGMA user_version={cache_disk.SCHEMA + 1}", "DROP TABLE instances"),
    "of the past": alter("PRAGMA user_version=0"),
    "of another shard": alter("UPDATE stamp SET shard = 'zone-b'"),
    "of another cluster": alter("UPDATE stamp SET cluster = 'prod'"),
    "without a stamp": alter("DELETE FROM stamp"),
    "without a stamp table": alter("DROP TABLE stamp"),
    "another program's": alter("DROP TABLE stamp", "CREATE TABLE theirs (x)"),
}


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=list(UNUSABLE))
async def test_f42_f43_an_unusable_file_is_dropped_and_made_anew(
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


async def test_f42_a_file_of_another_shard_is_dropped_and_never_read(path: Path) -> None:
    await filled(path)
    async with cached(path, shard="zone-b") as cache:
        assert await cache.public_keys(A) == {}
    async with cached(path) as cache:
        assert await cache.public_keys(A) == {}


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_f42_a_file_that_somebody_removes_is_made_again_with_its_content(
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


async def test_f42_damage_while_running_costs_the_content_and_nothing_else(path: Path, soon: None) -> None:
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
        await until(lambda: cache.on_disk, "the way back to the disk")
        assert await cache.sync(config_hash="c", group_hashes={}, instances=[instance()])
        assert [i.id for i in await cache.instances()] == [A]


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from nstance import clock
from nstance.model.ids import InstanceId, TenantId
from nstance.server import cache_thread
from nstance.server.cache import Cache

async def main():
    cache = Cache.open(sys.argv[1], cluster="demo", shard="zone-a", clock=clock.SystemClock())
    A = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q")
    {body}

asyncio.run(main())
"""


def run_child(path: Path, body: str, *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = CHILD.replace("{body}", body)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=timeout, check=False
    )


async def test_f43_a_wal_left_by_kill_9_is_recovered(path: Path) -> None:
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


async def test_f43_killed_at_any_moment_the_next_start_works(path: Path) -> None:
    body = """
    import threading
    threading.Timer(AFTER, os.kill, (os.getpid(), signal.SIGKILL)).start()
    number = 0
    while True:
        number += 1
        cache.put_public_keys(A, {str(number): "x" * 500})
        cache.put_event(tenant=TenantId("default"), code="c", message="x" * 500)
        if number % 100 == 0:
            await cache.events(limit=1)
    """
    for after in ("0.0", "0.01", "0.05", "0.1"):
        child = await asyncio.to_thread(run_child, path, body.replace("AFTER", after))
        assert child.returncode == -signal.SIGKILL, child.stderr
        async with cached(path) as cache:
            assert await cache.sync(config_hash="c", group_hashes={}, instances=[])
            assert cache.on_disk


# ---- F41: disks that do not work


FULL = """
    import resource
    assert await cache.sync(config_hash="c", group_hashes={})
    cache_thread.RETRY_SECONDS = cache_thread.RETRY_MOST = 0.05
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, limits[1]))
    for number in range(2000):
        cache.put_public_keys(A, {str(number): "x" * 500})
        cache.put_event(tenant=TenantId("default"), code="c", message=str(number))
    assert len(await cache.public_keys(A)) == 2000
    assert not cache.on_disk
    assert len(await cache.events(limit=1000)) == 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    async with asyncio.timeout(20):
        while not cache.on_disk:
            await asyncio.sleep(0.01)
    assert len(await cache.public_keys(A)) == 2000
    await cache.close()
    print("survived")
"""


async def test_f41_a_file_that_cannot_grow_moves_the_cache_into_memory_and_back(path: Path) -> None:
    child = await asyncio.to_thread(run_child, path, FULL)
    assert child.stdout.strip() == "survived", child.stderr
    async with cached(path) as cache:
        assert len(await cache.public_keys(A)) == 2000


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


async def test_f41_a_full_disk_moves_the_cache_into_memory_and_room_brings_it_back(
    tiny_disk: Path, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with cached(tiny_disk / "db" / "nstance.db") as cache:
        cache.put_public_keys(A, {"before": "pem"})
        assert await cache.sync(config_hash="c", group_hashes={})
        ballast = tiny_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        for number in range(500):
            cache.put_public_keys(A, {str(number): "x" * 100})
        assert len(await cache.public_keys(A)) == 501, "nothing that was known is lost"
        assert not cache.on_disk
        assert sum("in memory" in r.message for r in caplog.records) == 1
        ballast.unlink()
        await until(lambda: cache.on_disk, "the way back to the disk")
        assert len(await cache.public_keys(A)) == 501


async def test_f41_without_a_usable_disk_the_cache_lives_in_memory(
    tmp_path: Path, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "db").write_text("a file where the folder should be")
    async with cached(tmp_path / "db" / "nstance.db") as cache:
        assert not await cache.sync(config_hash="c", group_hashes={}, instances=[instance()])
        cache.put_public_keys(A, {"k": "pem"})
        assert await cache.public_keys(A) == {"k": "pem"}
        assert not cache.on_disk
        (tmp_path / "db").unlink()
        await until(lambda: cache.on_disk, "the disk")
        assert await cache.public_keys(A) == {"k": "pem"}
    assert sum("in memory" in r.message for r in caplog.records) == 1
    async with cached(tmp_path / "db" / "nstance.db") as cache:
        assert await cache.public_keys(A) == {"k": "pem"}


async def test_f41_a_file_that_cannot_be_written_is_still_read(path: Path) -> None:
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")

    def refused(*_: object) -> sqlite3.Connection:
        problem = sqlite3.OperationalError("attempt to write a readonly database")
        problem.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_disk, "open_file", refused)
        async with cached(path) as cache:
            assert await cache.public_keys(A) == {"kubelet.pub": "pem"}
            assert not cache.on_disk


# ---- F44: locks and slowness


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


async def test_f44_a_lock_of_another_process_moves_the_cache_into_memory_for_its_time(path: Path, soon: None) -> None:
    await filled(path)
    async with cached(path) as cache:
        assert await cache.public_keys(A) == {"kubelet.pub": "pem"}
        async with locked_by_another_process(path, "BEGIN IMMEDIATE"):
            cache.put_public_keys(A, {"during": "pem"})
            assert await cache.public_keys(A) == {"kubelet.pub": "pem", "during": "pem"}
            assert not cache.on_disk
        await until(lambda: cache.on_disk, "the way back to the disk")
    async with cached(path) as cache:
        assert await cache.public_keys(A) == {"kubelet.pub": "pem", "during": "pem"}
        assert len(await cache.events()) == 20


async def test_f44_a_file_that_is_locked_at_the_start_keeps_its_content(path: Path, soon: None) -> None:
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")  # in WAL mode nobody can lock readers out
    async with locked_by_another_process(path, "BEGIN EXCLUSIVE"):
        cache = opened(path)
        cache.put_public_keys(B, {"during": "pem"})
        assert not await cache.sync(config_hash="new", group_hashes={})
        assert await cache.all_public_keys() == {B: {"during": "pem"}}
        assert cache.stale
    await until(lambda: cache.on_disk, "the disk")
    assert await cache.all_public_keys() == {A: {"kubelet.pub": "pem"}, B: {"during": "pem"}}
    await cache.close()


class Stuck:
    """The cache's thread stands still, as in an fsync that takes for ever."""

    def __init__(self, cache: Cache) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        cache._thread.append(lambda db: (self.entered.set(), self.go_on.wait(SECONDS)))


async def test_f44_a_disk_that_does_not_answer_stops_nobody(path: Path) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await until(stuck.entered.is_set, "the standstill")
    for number in range(1000):
        cache.put_instance(instance(state=State.RUNNING if number % 2 else State.DRAINING))
    with pytest.raises(CacheUnavailable, match="did not answer"):
        await cache._thread.ask(lambda db: None, timeout=0.01)
    assert not await cache.sync(config_hash="c", group_hashes={}, timeout=0.01)
    assert len(cache._thread._pending) == 2, "one instance and one sync"
    stuck.go_on.set()
    assert [i.state for i in await cache.instances()] == [State.RUNNING]
    assert (await cache.hashes()).config == "c"
    await cache.close()


async def test_f44_a_full_queue_forgets_rather_than_tell_something_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_thread, "MAX_PENDING", 10)
    monkeypatch.setattr(cache_thread, "MAX_EVENTS", 5)
    monkeypatch.setattr(cache_thread, "MAX_QUESTIONS", 1)
    cache = opened(path)
    cache.put_public_keys(A, {"old": "pem"})
    assert await cache.sync(config_hash="c", group_hashes={}, instances=[instance(B)])
    assert not cache.stale
    stuck = Stuck(cache)
    await until(stuck.entered.is_set, "the standstill")
    for number in range(15):
        cache.put_public_keys(A, {str(number): "pem"})
        event(cache, str(number))
    assert cache.dropped == 5 + 10
    waiting = asyncio.create_task(cache.public_keys(A))
    await asyncio.sleep(0)
    with pytest.raises(CacheUnavailable, match="behind"):
        await cache.events()
    stuck.go_on.set()
    assert await waiting == {str(number): "pem" for number in range(5, 15)}
    assert await cache.instances() == []
    assert [e.message for e in await cache.events()] == ["0", "1", "2", "3", "4"]
    assert cache.stale
    await cache.close()


async def test_f44_closing_does_not_wait_for_a_disk_that_does_not_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await until(stuck.entered.is_set, "the standstill")
    await cache._thread.close(timeout=0.01)
    assert "left behind" in caplog.text
    with pytest.raises(CacheUnavailable, match="closed"):
        await cache.events()
    cache.put_instance(instance())  # and nothing raises
    stuck.go_on.set()
    await cache.close()


async def test_closing_writes_what_is_pending_and_ends_the_thread(path: Path) -> None:
    cache = opened(path)
    cache.put_public_keys(A, {"k": "pem"})
    await cache.close()
    assert not cache._thread._thread.is_alive()
    await cache.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name, pem FROM public_keys").fetchall() == [("k", "pem")]
        (record,) = db.execute("SELECT json_group_array(cluster || '/' || shard) FROM stamp").fetchone()
        assert json.loads(record) == ["demo/zone-a"]


async def test_a_cancelled_question_harms_nobody(path: Path) -> None:
    cache = opened(path)
    stuck = Stuck(cache)
    await until(stuck.entered.is_set, "the standstill")
    asking = asyncio.create_task(cache.events())
    await asyncio.sleep(0)
    asking.cancel()
    stuck.go_on.set()
    assert await cache.public_keys(A) == {}
    assert asking.cancelled() or asking.cancelling()
    await cache.close()
