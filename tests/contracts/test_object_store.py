"""What every object store must do: one suite over memory, file, and over real HTTP S3 (against the development server) and
Google's (against a stand-in). `make test-stores` runs it on servers of others."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nstance import clock
from nstance.objects import errors, file, gcs, memory, probe, wrapped
from nstance.objects.port import MAX_READ, Key, ObjectStore, Version
from support import gcs_server, real_stores, s3_server

K = Key("shard/dev-1/leader.json")
Open = Callable[[], Awaitable[ObjectStore]]


@pytest.fixture(params=["memory", "file", "s3", "gcs", "prefixed", *real_stores.present(is_suitable=True)])
async def reopen(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Open]:
    """Opens another client of the same bucket."""
    opened: list[ObjectStore] = []
    one = memory.MemoryStore(clock.SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        endpoint = ""
        if request.param == "s3":
            endpoint = await stack.enter_async_context(s3_server.serving(tmp_path))
        elif request.param == "gcs":
            google = await stack.enter_async_context(gcs_server.serving_gcs())
        elif request.param in real_stores.STORES:
            endpoint = stack.enter_context(real_stores.serving(request.param, tmp_path))

        async def make() -> ObjectStore:
            store: ObjectStore
            match request.param:
                case "memory":
                    store = one.view(None)
                case "file":
                    store = file.FileStore(tmp_path)
                case "prefixed":
                    store = wrapped.PrefixedStore(one.view(None), "clusters/a")
                case "s3":
                    store = s3_server.client(endpoint)
                case "gcs":
                    store = gcs_server.client(google.stand_in)
                case "fake-gcs-server":
                    store = gcs.GcsStore("dev", environment={"STORAGE_EMULATOR_HOST": endpoint})
                case _:
                    store = s3_server.client(endpoint, **real_stores.CREDENTIALS)
            opened.append(store)
            return store

        yield make
        for store in opened:
            await store.close()


@pytest.fixture
async def store(reopen: Open) -> ObjectStore:
    return await reopen()


async def listed(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [key async for key in store.list(prefix, after=after)]


async def test_an_object_that_is_too_large_is_not_read(store: ObjectStore) -> None:
    """Somebody put 200 MB into the next slot of the journal, and each server read them."""
    await store.create(K, b"x" * 1000)
    assert len((await store.get(K, limit=1000)).body) == 1000
    with pytest.raises(errors.ObjectTooLargeError, match=rf"expected at most 999 bytes in .*{K}, found 1,000"):
        await store.get(K, limit=999)
    large = Key("shard/dev-1/journal/00000000000000000007.json")
    await store.create(large, bytes(MAX_READ + 1))
    with pytest.raises(errors.ObjectTooLargeError):
        await store.get(large)


async def test_what_was_created_can_be_read(store: ObjectStore) -> None:
    version = await store.create(K, b"one")
    found = await store.get(K)
    assert (found.body, found.version) == (b"one", version)
    head = await store.head(K)
    assert (head.version, head.size) == (version, 3)
    assert abs(head.modified - clock.SystemClock().wall()) < 600


async def test_empty_and_big_bodies_survive(store: ObjectStore) -> None:
    big = bytes(range(256)) * 40_000  # 10 MB: more than a part of a multipart upload
    await store.create(Key("empty"), b"")
    await store.create(Key("big"), big)
    assert (await store.get(Key("empty"))).body == b""
    assert (await store.get(Key("big"), limit=len(big))).body == big


async def test_missing_is_reported_for_reads_and_replace(store: ObjectStore) -> None:
    with pytest.raises(errors.NotFoundError):
        await store.get(K)
    with pytest.raises(errors.NotFoundError):
        await store.head(K)
    version = await store.create(K, b"one")
    await store.delete(K)
    with pytest.raises(errors.NotFoundError):
        await store.replace(K, b"two", seen=version)
    with pytest.raises(errors.NotFoundError):
        await store.get(K)


async def test_create_never_overwrites(store: ObjectStore) -> None:
    await store.create(K, b"one")
    with pytest.raises(errors.ConflictError):
        await store.create(K, b"two")
    assert (await store.get(K)).body == b"one"


async def test_replace_needs_the_newest_version(store: ObjectStore) -> None:
    first = await store.create(K, b"one")
    second = await store.replace(K, b"two", seen=first)
    assert second != first
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"three", seen=first)
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"three", seen=Version("made-up"))
    assert (await store.get(K)).version == second
    assert (await store.head(K)).version == second


async def test_a_version_from_before_a_deletion_is_worthless(store: ObjectStore) -> None:
    first = await store.create(K, b"one")
    await store.delete(K)
    await store.create(K, b"two")
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"three", seen=first)


async def test_deleting_twice_is_success(store: ObjectStore) -> None:
    await store.create(K, b"one")
    await store.delete(K)
    await store.delete(K)
    await store.create(K, b"again")


async def test_listing_is_in_order_and_by_plain_prefix(store: ObjectStore) -> None:
    names = ["a", "b/1", "b/10", "b/2", "b/2.json", "b/c/d/e", "b-side", "b.txt", "bb/x", "c"]
    for name in names:
        await store.create(Key(name), name.encode())
    assert await listed(store, "") == sorted(names)
    assert await listed(store, "b") == sorted(name for name in names if name.startswith("b"))
    assert await listed(store, "b/") == ["b/1", "b/10", "b/2", "b/2.json", "b/c/d/e"]
    assert await listed(store, "b/1") == ["b/1", "b/10"]
    assert await listed(store, "b/c/") == ["b/c/d/e"]
    assert await listed(store, "b/c/d/e/") == []
    assert await listed(store, "nothing/here/") == []


async def test_listing_goes_on_after_a_key(store: ObjectStore) -> None:
    names = ["a", "b-side", "b/1", "b/2", "b/c/d", "c"]
    for name in names:
        await store.create(Key(name), b"")
    for after in [*names, "", "b", "b/", "b/1x", "b/c", "b/c/", "zzz"]:
        assert await listed(store, "", after) == [name for name in names if name > after], after
        assert await listed(store, "b/", after) == [name for name in names if name > after and name[:2] == "b/"], after


async def test_listing_is_complete_beyond_a_page(store: ObjectStore) -> None:
    names = [f"journal/{slot:020d}.json" for slot in range(1, 1202)]
    for start in range(0, len(names), 64):
        await asyncio.gather(*(store.create(Key(name), b"{}") for name in names[start : start + 64]))
    assert await listed(store, "journal/") == names
    assert await listed(store, "journal/", names[1099]) == names[1100:]


async def test_unusual_keys(store: ObjectStore) -> None:
    names = [
        "ümläut/日本語/🚀.json",
        "with space/a+b&c=d?e#f",
        "100%/%41",
        "tilde~/(x)/[y]/{z}",
        "quote'\"<>*!;:@,$|\\^`",
    ]
    for name in names:
        await store.create(Key(name), name.encode())
    for name in names:
        assert (await store.get(Key(name))).body == name.encode()
        assert await listed(store, name) == [name]
    assert await listed(store, "") == sorted(names)
    for name in names:
        await store.delete(Key(name))
    assert await listed(store, "") == []


@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", "a\0b", "a\nb", "x" * 1025, "ä" * 513, "\ud800"],
    ids=ascii,
)
async def test_impossible_keys_are_refused_by_every_verb(store: ObjectStore, key: str) -> None:
    bad = Key(key)
    for call in (
        store.get(bad),
        store.head(bad),
        store.create(bad, b""),
        store.replace(bad, b"", seen=Version("x")),
        store.delete(bad),
    ):
        with pytest.raises(errors.PermissionDeniedError):
            await call
    assert await listed(store, "") == []


async def test_one_of_twenty_creates_wins(reopen: Open) -> None:
    clients = [await reopen() for _ in range(4)]
    for attempt in range(5):
        key = Key(f"race/{attempt}")
        results = await asyncio.gather(
            *(clients[n % 4].create(key, f"writer {n}".encode()) for n in range(20)), return_exceptions=True
        )
        won = [n for n, result in enumerate(results) if isinstance(result, str)]
        lost = [result for result in results if isinstance(result, errors.ConflictError)]
        assert (len(won), len(lost)) == (1, 19), results
        found = await clients[0].get(key)
        assert (found.body, found.version) == (f"writer {won[0]}".encode(), results[won[0]])


async def test_one_of_twenty_replaces_wins_each_round(reopen: Open) -> None:
    clients = [await reopen() for _ in range(4)]
    version = await clients[0].create(K, b"start")
    for attempt in range(5):
        results = await asyncio.gather(
            *(clients[n % 4].replace(K, f"{attempt}: {n}".encode(), seen=version) for n in range(20)),
            return_exceptions=True,
        )
        won = [n for n, result in enumerate(results) if isinstance(result, str)]
        lost = [result for result in results if isinstance(result, errors.ConflictError)]
        assert (len(won), len(lost)) == (1, 19), results
        found = await clients[0].get(K)
        assert (found.body, found.version) == (f"{attempt}: {won[0]}".encode(), results[won[0]])
        version = found.version


async def test_counting_by_compare_and_swap_loses_nothing(reopen: Open) -> None:
    await (await reopen()).create(K, b"0 -")

    async def add(name: int, times: int) -> None:
        client = await reopen()
        for turn in range(times):
            while True:
                seen = await client.get(K)
                count = int(seen.body.split()[0])
                try:
                    await client.replace(K, f"{count + 1} {name}/{turn}".encode(), seen=seen.version)
                    break
                except errors.ConflictError:
                    continue

    async with asyncio.timeout(60):
        await asyncio.gather(*(add(name, 10) for name in range(5)))
    assert (await (await reopen()).get(K)).body.split()[0] == b"50"


async def test_a_cancelled_create_is_all_or_nothing(store: ObjectStore) -> None:
    body = b"x" * 1_000_000
    for turns in range(0, 40, 4):
        key = Key(f"cancelled/{turns}")
        task = asyncio.ensure_future(store.create(key, body))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        # It may yet land, so its outcome is found as after any unknown one: by trying to take the place.
        with contextlib.suppress(errors.ConflictError):
            await store.create(key, body[::-1] + b"y")
        assert (await store.get(key)).body in (body, body[::-1] + b"y")


async def test_the_probe_accepts_it_and_leaves_nothing(store: ObjectStore) -> None:
    await probe.probe(store, "shard/dev-1/", clock=clock.SystemClock(), rng=clock.SystemRng())
    assert await listed(store, "") == []


async def test_a_wrapper_counts_calls_by_their_outcome(store: ObjectStore) -> None:
    counted: list[tuple[str, str]] = []
    watched = wrapped.ObservedStore(store, lambda op, code: counted.append((op, code)))
    version = await watched.create(K, b"one")
    await watched.replace(K, b"two", seen=version)
    with pytest.raises(errors.ConflictError):
        await watched.create(K, b"three")
    with pytest.raises(errors.NotFoundError):
        await watched.get(Key("absent"))
    assert await listed(watched, "shard/") == [K]
    await watched.delete(K)
    assert counted == [
        ("create", "ok"),
        ("replace", "ok"),
        ("create", "conflict"),
        ("get", "not_found"),
        ("list", "ok"),
        ("delete", "ok"),
    ]
