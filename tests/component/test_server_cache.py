"""The cache on real files: what is put is there."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from component import cache_world
from component.cache_world import WEB, A, B, cached, event, happened, instance, opened
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import State
from nstance.objects import slots
from nstance.server.cache import thread
from nstance.server.cache.cache import Cache
from nstance.server.leader import history

path = cache_world.path


OTHER = TenantId("other")


async def test_everything_put_can_be_asked_for_and_outlives_the_process(path: Path) -> None:
    async with cached(path) as cache:
        assert await cache.sync(config_hash="c1", group_hashes={WEB: "w1"})
        cache.put_instance(instance())
        cache.put_report(A, lambda: {"sequence": 7, "files": {"a": "b"}}, at=1.0)
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
            cache.put_report(id, dict, at=1.0)
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


async def test_events_that_are_told_again_take_the_place_of_what_was_known_from_there_on(path: Path) -> None:
    """A standby reads the journal from its last snapshot; and a journal may be another one than that of the last run."""

    def told(cache: Cache, *messages: str, first: int) -> None:
        cache.put_events(first, lambda: [happened(first + n, m) for n, m in enumerate(messages)], count=len(messages))

    async with cached(path) as cache:
        told(cache, "a", "b", first=10)
        told(cache, "c", first=20)
        told(cache, "lost", first=30)
    async with cached(path) as cache:
        told(cache, "b", first=11)
        told(cache, "c", first=20)
        assert [(e.id, e.message) for e in await cache.events()] == [(10, "a"), (11, "b"), (20, "c")]


async def test_a_file_of_a_version_that_numbered_events_by_the_time_is_read_on(path: Path) -> None:
    async with cached(path) as cache:
        old = happened(4_000_000_000_000_000, "in 2096")
        cache.put_events(old.id, lambda: [old], count=1)
    async with cached(path) as cache:
        slot = slots.Slot(
            number=1,
            epoch=1,
            op="x",
            at=7.0,
            entries=(slots.Entry(id="1-1", reason=(slots.LoggedReason("c", "new", A, "t"),)),),
        )
        [new] = history.events(slot)
        assert (new.time, new.tenant) == (7.0, "t")
        cache.put_events(history.first_id(1), lambda: [new], count=1)
        assert [e.message for e in await cache.events()] == ["in 2096", "new"]
        assert await cache.events(after=old.id) == [new]


async def test_only_the_newest_events_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "KEEP_EVENTS", 20)
    monkeypatch.setattr(thread, "TRIM_AFTER", 5)
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
        cache.put_report(A, lambda: {"x": object()}, at=1.0)
        cache.put_report(B, lambda: {"x": float("nan")}, at=1.0)
        cache.put_image("x", object())  # type: ignore[arg-type]
        event(cache, "half \ud800 " + "x" * 100_000)
        assert await cache.public_keys(A) == {"good": "pem"}
        (one,) = await cache.events()
        assert one.message.startswith("half ? xxx")
        assert len(one.message) == 4096
        assert cache.dropped == 4
        assert cache.on_disk
    assert "cannot be kept" in caplog.text


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
