"""What the S3 client concludes from each thing that can go wrong on the way."""

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from bench import wires

from nstance import clock
from nstance.objects import errors, probe, s3
from nstance.objects.port import Key, ObjectStore, Stored, Version
from support import real_stores, s3_server
from support.fault_proxy import Answer, Do, Proxy

K = Key("shard/dev-1/leader.json")

LOST = [Do.APPLY_THEN_DROP, Do.APPLY_THEN_RESET, Do.APPLY_THEN_500, Do.APPLY_THEN_HANG]


@pytest.fixture
async def direct(tmp_path: pathlib.Path) -> AsyncIterator[s3.S3Store]:
    async with s3_server.serving(tmp_path) as endpoint:
        yield s3_server.client(endpoint)


@pytest.fixture
async def proxy(tmp_path: pathlib.Path, direct: s3.S3Store) -> AsyncIterator[Proxy]:
    async with wires.listening(Proxy(int(repr(direct).rpartition(":")[2]))) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, request: pytest.FixtureRequest) -> s3.S3Store:
    hangs = getattr(request.node, "callspec", None) and request.node.callspec.params.get("fault") is Do.APPLY_THEN_HANG
    return s3_server.client(proxy.endpoint, timeout=2.0 if hangs else 30.0)


def every_read(store: ObjectStore) -> list[Awaitable[object]]:
    async def listing() -> list[Key]:
        return [key async for key in store.list("shard/")]

    return [store.get(K), store.head(K), listing()]


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
async def test_an_applied_write_without_an_answer_is_unknown(
    proxy: Proxy, store: s3.S3Store, direct: s3.S3Store, fault: Do
) -> None:
    proxy.script = [fault]
    with pytest.raises(errors.UnknownOutcomeError):
        await store.create(K, b"op-1")
    assert proxy.requests == [f"PUT /dev/{K}"]  # sent once: a retry would meet its own write
    found = await direct.get(K)
    assert found.body == b"op-1"
    proxy.script = [fault]
    with pytest.raises(errors.UnknownOutcomeError):
        await store.replace(K, b"op-2", seen=found.version)
    assert (await direct.get(K)).body == b"op-2"
    proxy.script = [fault]
    with pytest.raises(errors.UnknownOutcomeError):
        await store.delete(K)
    with pytest.raises(errors.NotFoundError):
        await direct.get(K)
    assert len(proxy.requests) == 3


async def test_a_dropped_request_is_unknown_too(proxy: Proxy, store: s3.S3Store) -> None:
    """From here it looks the same as one that was applied."""
    proxy.script = [Do.DROP]
    with pytest.raises(errors.UnknownOutcomeError):
        await store.create(K, b"op-1")
    await store.create(K, b"op-1")


@pytest.mark.parametrize("fault", [*LOST, Do.APPLY_THEN_CUT, Do.DROP], ids=lambda fault: fault.name)
async def test_a_read_without_an_answer_is_unavailable(
    proxy: Proxy, store: s3.S3Store, direct: s3.S3Store, fault: Do
) -> None:
    await direct.create(K, b"x" * 5000)
    for read in every_read(store):
        proxy.script = [fault]
        with pytest.raises(errors.UnavailableError):
            await read
    assert len(proxy.requests) == 3


Verb = Callable[[ObjectStore], Awaitable[object]]
GET: Verb = lambda store: store.get(K)  # noqa: E731
HEAD: Verb = lambda store: store.head(K)  # noqa: E731
CREATE: Verb = lambda store: store.create(K, b"1")  # noqa: E731
REPLACE: Verb = lambda store: store.replace(K, b"1", seen=Version('"x"'))  # noqa: E731
DELETE: Verb = lambda store: store.delete(K)  # noqa: E731
WRITES = (CREATE, REPLACE)

TABLE: list[tuple[Answer, tuple[Verb, ...], type[errors.StorageError]]] = [
    (Answer(412, "PreconditionFailed"), WRITES, errors.ConflictError),
    (Answer(409, "ConditionalRequestConflict"), (*WRITES, DELETE), errors.ContendedError),  # try again
    (Answer(404, "NoSuchKey"), (GET, REPLACE), errors.NotFoundError),
    (Answer(404, "NoSuchBucket"), (GET, CREATE, REPLACE, DELETE), errors.PermissionDeniedError),
    (Answer(404), (GET, CREATE, REPLACE, DELETE), errors.UnavailableError),  # somebody on the way, not the store
    (Answer(401), (GET, HEAD, CREATE, REPLACE, DELETE), errors.PermissionDeniedError),
    (Answer(403, "AccessDenied"), (GET, HEAD, CREATE, REPLACE, DELETE), errors.PermissionDeniedError),
    (Answer(403, "RequestTimeTooSkewed"), (GET, CREATE), errors.PermissionDeniedError),
    (Answer(301, "PermanentRedirect"), (GET, CREATE), errors.PermissionDeniedError),
    (Answer(400, "InvalidArgument"), (GET, CREATE), errors.PermissionDeniedError),
    (Answer(400, "RequestTimeout"), (GET,), errors.UnavailableError),
    (Answer(400, "RequestTimeout"), WRITES, errors.UnknownOutcomeError),
    (Answer(429, "TooManyRequests"), (GET, *WRITES), errors.UnavailableError),
    (Answer(500, "InternalError"), (*WRITES, DELETE), errors.UnknownOutcomeError),
    (Answer(503, "SlowDown"), (*WRITES, DELETE), errors.UnknownOutcomeError),
    (Answer(503, "SlowDown"), (GET, HEAD), errors.UnavailableError),
    (Answer(501, "NotImplemented"), WRITES, errors.PermissionDeniedError),
]


@pytest.mark.parametrize(
    ("answer", "verbs", "expected"), TABLE, ids=lambda value: str(value)[:40] if isinstance(value, Answer) else None
)
async def test_each_answer_has_its_consequence(
    proxy: Proxy, store: s3.S3Store, answer: Answer, verbs: tuple[Verb, ...], expected: type[errors.StorageError]
) -> None:
    for verb in verbs:
        proxy.script = [answer]
        with pytest.raises(errors.StorageError) as caught:
            await verb(store)
        assert type(caught.value) is expected, caught.value
        assert str(K) in str(caught.value)
    assert len(proxy.requests) == len(verbs)  # none was retried


async def test_deleting_what_the_store_says_is_absent_is_success(proxy: Proxy, store: s3.S3Store) -> None:
    proxy.script = [Answer(404, "NoSuchKey")]
    await store.delete(K)


async def test_a_404_to_head_is_believed_only_when_get_says_what_is_missing(proxy: Proxy, store: s3.S3Store) -> None:
    proxy.script = [Answer(404), Answer(404, "NoSuchKey")]
    with pytest.raises(errors.NotFoundError):
        await store.head(K)
    proxy.script = [Answer(404), Answer(404, "NoSuchBucket")]
    with pytest.raises(errors.PermissionDeniedError):
        await store.head(K)
    proxy.script = [Answer(404), Answer(404)]
    with pytest.raises(errors.UnavailableError):
        await store.head(K)


async def test_a_refused_connection_proves_that_nothing_happened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = s3_server.client(f"http://127.0.0.1:{port}")
    for verb in (GET, HEAD, CREATE, REPLACE, DELETE):
        with pytest.raises(errors.UnavailableError):
            await verb(store)
    for read in every_read(store):
        with pytest.raises(errors.UnavailableError):
            await read


async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    store = s3_server.client("http://storage.invalid:1")
    with pytest.raises(errors.UnavailableError):
        await store.create(K, b"1")


async def test_a_wrong_secret_or_bucket_is_denied_and_no_secret_is_shown(direct: s3.S3Store) -> None:
    endpoint = repr(direct).rpartition(" ")[2]
    for store in (
        s3_server.client(endpoint, secret="a-wrong-secret"),
        s3_server.client(endpoint, bucket="nothing-here"),
    ):
        for call in (
            *every_read(store),
            store.create(K, b"1"),
            store.replace(K, b"1", seen=Version("x")),
            store.delete(K),
        ):
            with pytest.raises(errors.PermissionDeniedError) as caught:
                await call
            assert "a-wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("verb", ["create", "replace"])
async def test_a_cancelled_write_may_land_later_but_never_over_newer(
    proxy: Proxy, direct: s3.S3Store, verb: str
) -> None:
    store = s3_server.client(proxy.endpoint)
    await direct.create(Key("other"), b"")
    version = await direct.create(K, b"first") if verb == "replace" else None
    proxy.script = [Do.HOLD]
    call = store.create(K, b"late") if version is None else store.replace(K, b"late", seen=version)
    task = asyncio.ensure_future(call)
    async with asyncio.timeout(30):
        await proxy.held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    newer = await direct.create(K, b"newer") if version is None else await direct.replace(K, b"newer", seen=version)
    proxy.release.set()
    async with asyncio.timeout(30):
        await proxy.landed.wait()
    assert await direct.get(K) == Stored(b"newer", newer)


async def test_a_cancelled_write_can_complete(proxy: Proxy, direct: s3.S3Store) -> None:
    store = s3_server.client(proxy.endpoint)
    proxy.script = [Do.HOLD]
    task = asyncio.ensure_future(store.create(K, b"late"))
    async with asyncio.timeout(30):
        await proxy.held.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        proxy.release.set()
        await proxy.landed.wait()
    assert (await direct.get(K)).body == b"late"


@pytest.mark.parametrize("sent", [{"If-None-Match"}, {"If-Match"}], ids=str)
async def test_an_s3_that_ignores_conditions_is_refused_by_name(
    tmp_path: pathlib.Path, sent: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nstance.dev.s3 import bucket

    real = bucket.Bucket._write

    async def forgetful(self: bucket.Bucket, key: Key, body: bytes, headers: bucket.Headers) -> Version:
        kept = {name.lower(): value for name, value in headers.items() if name.title() not in sent}
        return await real(self, key, body, kept)

    monkeypatch.setattr(bucket.Bucket, "_write", forgetful)
    async with s3_server.serving(tmp_path) as endpoint:
        store = s3_server.client(endpoint)
        with pytest.raises(probe.UnsuitableStoreError, match="S3 bucket dev at http") as caught:
            await probe.probe(store, "shard/dev-1/", clock=clock.SystemClock(), rng=clock.SystemRng())
        assert next(iter(sent)) in str(caught.value)
        assert [key async for key in store.list("")] == []


@pytest.mark.parametrize("name", real_stores.present(is_suitable=False))
async def test_real_servers_that_let_several_writers_win_are_refused_by_name(name: str, tmp_path: pathlib.Path) -> None:
    """S3Proxy passes about one probe of thirty: to pass is evidence, not proof."""
    with real_stores.serving(name, tmp_path) as endpoint:
        store = s3_server.client(endpoint, **real_stores.CREDENTIALS)

        async def probe_often() -> None:
            for _ in range(5):
                await probe.probe(store, "shard/dev-1/", clock=clock.SystemClock(), rng=clock.SystemRng())

        with pytest.raises(probe.UnsuitableStoreError, match=f"S3 bucket dev at {endpoint}"):
            await probe_often()


async def test_the_usual_variables_apply(direct: s3.S3Store) -> None:
    endpoint = repr(direct).rpartition(" ")[2]
    with s3_server.environment(
        AWS_ENDPOINT_URL=endpoint,
        AWS_S3_USE_PATH_STYLE="true",
        AWS_REGION="eu-north-1",
        AWS_ACCESS_KEY_ID="dev",
        AWS_SECRET_ACCESS_KEY="dev",
    ):
        store = s3.S3Store("dev")
    await store.create(K, b"1")
    assert (await direct.get(K)).body == b"1"
    with s3_server.environment(AWS_ENDPOINT_URL_S3="http://127.0.0.1:1", **s3_server.CREDENTIALS):
        store = s3.S3Store("dev", endpoint=endpoint)  # an argument wins over every variable
    assert (await store.get(K)).body == b"1"


@pytest.mark.parametrize(
    ("path_style", "target"),
    [("true", "http://storage.test/dev/"), ("false", "http://dev.storage.test/"), (None, "http://storage.test/dev/")],
)
async def test_the_bucket_is_in_the_path_or_in_the_host(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, path_style: str | None, target: str
) -> None:
    for name in ("NO_PROXY", "no_proxy", "AWS_S3_USE_PATH_STYLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.endpoint)  # so that no name has to resolve
    if path_style is not None:
        monkeypatch.setenv("AWS_S3_USE_PATH_STYLE", path_style)
    store = s3_server.client("http://storage.test")
    proxy.script = [Answer(412, "PreconditionFailed")]
    with pytest.raises(errors.ConflictError):
        await store.create(K, b"1")
    assert proxy.requests == [f"PUT {target}{K}"]
