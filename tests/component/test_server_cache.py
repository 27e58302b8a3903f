"""The cache on real files: changes and queries."""

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
from component.cache_world import A, B, cached, images, make_event, opened, put_event
from nstance.model.ids import DEFAULT_TENANT, InstanceId, TenantId
from nstance.objects import slots
from nstance.server.cache.cache import Cache
from nstance.server.cache.thread import Limits
from nstance.server.leader import history

path = cache_world.path


OTHER = TenantId("other")


async def test_all_that_is_put_can_be_queried_and_outlives_the_process(path: Path) -> None:
    async with cached(path) as cache:
        assert await cache.flush()
        cache.put_last_report(A, 1.5)
        cache.put_image("ubuntu/24.04", "ami-1")
        cache.put_userdata("https://example.com", "etag", b"body")
        cache.put_members("front", {A, B})
        put_event(cache, "made")
        await check_content(cache)
    async with cached(path) as cache:
        await check_content(cache)
        assert cache.on_disk


async def check_content(cache: Cache) -> None:
    assert await cache.last_report(A) == 1.5
    assert await cache.image("ubuntu/24.04") == "ami-1"
    assert await cache.userdata("https://example.com") == ("etag", b"body")
    assert await cache.members("front") == {A, B}
    (event,) = await cache.events()
    assert (event.message, event.code, event.group, event.instance) == ("made", "scale-up", "web", A)
    assert not event.needs_attention


async def test_what_is_not_known_is_not_invented(path: Path) -> None:
    async with cached(path) as cache:
        assert await cache.last_report(A) is None
        assert await cache.image("x") is None
        assert await cache.userdata("https://example.com") is None
        assert await cache.members("front") is None
        cache.put_members("front", [])
        assert await cache.members("front") == frozenset()
        assert await cache.events() == []


async def test_last_reports_are_removed_with_their_instances(path: Path) -> None:
    async with cached(path) as cache:
        for id in (A, B):
            cache.put_last_report(id, 1.0)
        cache.remove_instance(A)
        assert await cache.last_report(A) is None
        assert await cache.last_report(B) == 1.0
        cache.put_last_report(A, 2.0)
        cache.retain_instances([A])
        assert await cache.last_report(A) == 2.0
        assert await cache.last_report(B) is None
        cache.put_last_report(B, 3.0)
        assert await cache.last_report(B) == 3.0


async def test_events_are_found_by_tenant_group_instance_and_followed_by_id(path: Path) -> None:
    async with cached(path) as cache:
        for number in range(10):
            tenant = OTHER if number % 2 else DEFAULT_TENANT
            put_event(cache, str(number), tenant=tenant, code="unhealthy" if number == 4 else "scale-up")
        put_event(cache, "b", instance=B)
        put_event(cache, "db", group="db", instance="")

        async def found(**query: Any) -> list[str]:
            return [e.message for e in await cache.events(**query)]

        assert await found() == [*"0123456789", "b", "db"]
        assert await found(tenant=OTHER) == list("13579")
        assert await found(tenant=DEFAULT_TENANT, instance=B) == ["b"]
        assert await found(tenant=OTHER, instance=B) == []
        assert await found(group="db") == ["db"]
        assert await found(limit=3) == ["9", "b", "db"], "the newest, oldest first"
        events = await cache.events()
        ids = [e.id for e in events]
        assert ids == sorted(set(ids))
        assert await found(after=ids[3], limit=2) == ["4", "5"], "those that follow, so that none is missed"
        assert await found(after=ids[-1]) == []
        assert [e.message for e in events if e.needs_attention] == ["4"]


async def test_events_replace_all_that_were_known_from_their_first_id_on(path: Path) -> None:
    """A standby reads the journal from its last snapshot; and a journal may be another one than that of the last run."""

    def put(cache: Cache, *messages: str, first: int) -> None:
        cache.put_events(first, lambda: [make_event(first + n, m) for n, m in enumerate(messages)], count=len(messages))

    async with cached(path) as cache:
        put(cache, "a", "b", first=10)
        put(cache, "c", first=20)
        put(cache, "lost", first=30)
    async with cached(path) as cache:
        put(cache, "b", first=11)
        put(cache, "c", first=20)
        assert [(e.id, e.message) for e in await cache.events()] == [(10, "a"), (11, "b"), (20, "c")]


async def test_event_ids_of_a_version_that_numbered_by_time_come_first(path: Path) -> None:
    async with cached(path) as cache:
        old = make_event(4_000_000_000_000_000, "in 2096")
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


async def test_only_the_newest_events_are_kept(path: Path) -> None:
    limits = Limits(kept_events=20, trim_after_events=5)
    for round in range(2):  # the count is right after a restart, too
        async with cached(path, limits) as cache:
            for number in range(26):
                put_event(cache, f"{round}.{number}")
                if number % 10 == 0:
                    await cache.events(limit=1)
            kept = await cache.events(limit=1000)
            assert 20 <= len(kept) <= 25
            assert kept[-1].message == f"{round}.25"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "remove", "image", "query"]), st.sampled_from([A, B]), st.integers(0, 9)),
        max_size=30,
    )
)
def test_the_last_change_wins_however_changes_are_batched(steps: list[tuple[str, InstanceId, int]]) -> None:
    async def play() -> None:
        reports: dict[InstanceId, float] = {}
        expected: dict[str, str] = {}
        async with cached(Path("/dev/null/nstance.db")) as cache:  # in memory: quicker

            async def check() -> None:
                found = {id: await cache.last_report(id) for id in (A, B)}
                assert {id: at for id, at in found.items() if at is not None} == reports

            for action, id, number in steps:
                match action:
                    case "put":
                        cache.put_last_report(id, number)
                        reports[id] = number
                    case "remove":
                        cache.remove_instance(id)
                        reports.pop(id, None)
                    case "image":
                        cache.put_image(id, str(number))
                        expected[id] = str(number)
                    case _:
                        await check()
            await check()
            assert await images(cache) == expected

    asyncio.run(play())


async def test_a_change_that_cannot_be_written_neither_raises_nor_affects_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cached(path) as cache:
        cache.put_image("half", "half \ud800")
        cache.put_image("good", "ami-1")
        cache.put_last_report(A, object())  # type: ignore[arg-type]
        cache.put_userdata("x", "", object())  # type: ignore[arg-type]
        cache.put_image("x", object())  # type: ignore[arg-type]
        put_event(cache, "half \ud800 " + "x" * 100_000)
        assert await images(cache) == {"good": "ami-1"}
        (event,) = await cache.events()
        assert event.message.startswith("half ? xxx")
        assert len(event.message) == 4096
        assert cache.dropped == 4
        assert cache.on_disk
    assert "failed to write a change to the cache" in caplog.text


async def test_closing_writes_pending_changes_and_ends_the_thread(path: Path) -> None:
    cache = opened(path)
    cache.put_image("k", "ami-1")
    await cache.close()
    assert not cache._thread._thread.is_alive()
    await cache.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT lookup, image FROM images").fetchall() == [("k", "ami-1")]
        (record,) = db.execute("SELECT json_group_array(cluster || '/' || shard) FROM stamp").fetchone()
        assert json.loads(record) == ["demo/zone-a"]
