"""What the client of Google's object storage concludes from each thing that can go wrong on the way."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nstance import clock
from nstance.objects import errors, gcs, probe
from nstance.objects.port import Key, ObjectStore, Version, write_gap
from nstance.objects.wrapped import PrefixedStore
from support import gcs_server
from support.gcp.stand_in import INTERNAL_AFTER, LOST_REPLY, LOST_REQUEST, OUTAGE, THROTTLED, TOO_MANY, Fault, StandIn
from support.gcp.storage import Buckets

K = Key("shard/dev-1/leader.json")
INSERT, GET, LIST, DELETE = (f"storage.objects.{verb}" for verb in ("insert", "get", "list", "delete"))


@pytest.fixture
async def google() -> AsyncIterator[Buckets]:
    async with gcs_server.serving_gcs() as buckets:
        yield buckets


@pytest.fixture
async def store(google: Buckets) -> AsyncIterator[gcs.GcsStore]:
    store = gcs_server.client(google.stand_in)
    yield store
    await store.close()


def every_read(store: ObjectStore) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    async def listing() -> list[Key]:
        return [key async for key in store.list("shard/")]

    return [(GET, lambda: store.get(K)), (GET, lambda: store.head(K)), (LIST, listing)]


def every_write(store: ObjectStore) -> list[Callable[[], Awaitable[object]]]:
    return [lambda: store.create(K, b"1"), lambda: store.replace(K, b"1", seen=Version("1"))]


@pytest.mark.parametrize("fault", [LOST_REPLY, INTERNAL_AFTER, LOST_REQUEST, OUTAGE], ids=repr)
async def test_a_write_without_an_answer_is_unknown_and_is_sent_once(
    google: Buckets, store: gcs.GcsStore, fault: Fault
) -> None:
    await store.create(Key("other"), b"")  # the connection is open
    google.stand_in.spoil(INSERT, fault)
    with pytest.raises(errors.UnknownOutcomeError):
        await store.create(K, b"op-1")
    assert google.stand_in.calls[INSERT] == 2
    assert (("dev", K) in google.objects) == fault.after_effect


async def test_a_delete_without_an_answer_is_unknown_or_settled(google: Buckets, store: gcs.GcsStore) -> None:
    await store.create(K, b"1")
    google.stand_in.spoil(DELETE, INTERNAL_AFTER)
    with pytest.raises(errors.UnknownOutcomeError):
        await store.delete(K)
    await store.delete(K)
    assert not google.objects


async def test_a_delete_takes_only_what_it_has_seen(google: Buckets, store: gcs.GcsStore) -> None:
    """So a copy of it that arrives late deletes nothing newer."""
    await store.create(K, b"1")
    google.written_before_delete = [b"2"]
    await store.delete(K)
    assert google.stand_in.calls[DELETE] == 2
    assert not google.objects
    await store.create(K, b"1")
    google.written_before_delete = [b"2", b"3", b"4"]
    with pytest.raises(errors.ContendedError):
        await store.delete(K)
    assert google.objects["dev", K].body == b"4"


@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST, OUTAGE, Fault(404, ""), Fault(502, "")], ids=repr)
async def test_a_read_without_an_answer_of_google_is_unavailable(
    google: Buckets, store: gcs.GcsStore, fault: Fault
) -> None:
    """Also a proxy's 404: only Google may say that an object is missing."""
    await store.create(K, b"1")
    google.stand_in.always = {GET: fault, LIST: fault}
    for _, read in every_read(store):
        with pytest.raises(errors.UnavailableError):
            await read()


async def test_a_refused_connection_proves_that_nothing_happened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = gcs.GcsStore("dev", environment={"STORAGE_EMULATOR_HOST": f"127.0.0.1:{port}"})
    for call in (*every_write(store), *(read for _, read in every_read(store)), lambda: store.delete(K)):
        with pytest.raises(errors.UnavailableError):
            await call()
    await store.close()


async def test_a_missing_bucket_is_denied_by_every_verb(google: Buckets) -> None:
    store = gcs_server.client(google.stand_in, bucket="nothing-here")
    calls = (*every_write(store), *(read for _, read in every_read(store)), lambda: store.delete(K))
    for call in calls:
        with pytest.raises(errors.PermissionDeniedError, match="bucket"):
            await call()
    await store.close()


async def test_what_a_listing_does_not_find_is_the_bucket(google: Buckets, store: gcs.GcsStore) -> None:
    """Emulators say no more than this."""
    google.stand_in.spoil(LIST, Fault(404, "notFound", "Not Found"))
    with pytest.raises(errors.PermissionDeniedError, match="the bucket does not exist"):
        assert [key async for key in store.list("shard/")]


@pytest.mark.parametrize("bucket", ["my-bucket", "dev"])
async def test_an_object_is_missing_whatever_the_bucket_is_called(google: Buckets, bucket: str) -> None:
    """Google's answer quotes the name of the bucket and that of the object."""
    google.names.add(bucket)
    store = gcs_server.client(google.stand_in, bucket=bucket)
    for call in (store.get(K), store.head(Key("bucket/list")), store.replace(K, b"", seen=Version("4"))):
        with pytest.raises(errors.NotFoundError):
            await call
    await store.delete(K)
    await store.close()


async def test_a_denied_call_says_so_and_shows_no_token(google: Buckets, store: gcs.GcsStore) -> None:
    google.stand_in.denied = {INSERT}
    with pytest.raises(errors.PermissionDeniedError, match="403 forbidden") as caught:
        await store.create(K, b"1")
    assert "token-of" not in str(caught.value)


async def test_a_rejected_token_is_fetched_again(google: Buckets, store: gcs.GcsStore) -> None:
    await store.create(K, b"1")
    google.stand_in.tokens = set()
    with pytest.raises(errors.PermissionDeniedError):
        await store.get(K)
    google.stand_in.tokens = StandIn().tokens
    assert (await store.get(K)).body == b"1"
    assert google.stand_in.calls["token"] == 2


async def test_a_token_that_was_replaced_costs_nothing(google: Buckets, store: gcs.GcsStore) -> None:
    await store.create(K, b"1")
    google.stand_in.token, google.stand_in.tokens = "new", {"new"}
    assert (await store.get(K)).body == b"1"
    assert google.stand_in.calls["token"] == 2


@pytest.mark.parametrize("fault", [TOO_MANY, THROTTLED], ids=repr)
async def test_too_many_writes_of_one_object_are_contended(google: Buckets, store: gcs.GcsStore, fault: Fault) -> None:
    google.stand_in.spoil(INSERT, fault)
    with pytest.raises(errors.ContendedError):
        await store.create(K, b"1")
    await store.create(K, b"1")


async def test_a_listing_that_repeats_a_page_is_an_error(google: Buckets, store: gcs.GcsStore) -> None:
    real = store._json

    async def repeating(method: str, path: str, query: dict[str, str]) -> dict[str, object]:
        return {**await real(method, path, query), "nextPageToken": "again"}

    store._json = repeating  # type: ignore[method-assign,assignment]
    with pytest.raises(errors.UnavailableError, match="repeats a page"):
        assert [key async for key in store.list("shard/")]


async def test_the_probe_keeps_to_one_write_per_second(google: Buckets, store: gcs.GcsStore) -> None:
    """Without the pauses it would meet the limit in each race, and never pass."""
    google.write_gap = 0.9
    below = PrefixedStore(store, "clusters/a")
    assert write_gap(below) == gcs.WRITE_GAP_SECONDS
    await probe.probe(below, "shard/a/", clock=clock.SystemClock(), rng=clock.SystemRng(), replace_races=1)
    assert not google.objects
