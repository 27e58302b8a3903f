"""The contract of `secretstore.port`, held against every implementation."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nstance import clock
from nstance.model.ids import ClusterId
from nstance.objects import memory as objects
from nstance.objects.port import MAX_READ
from nstance.secretstore import env, errors, file, keys, kinds, memory, port, sealed, sealing
from nstance.secretstore.aws import parameter_store, secrets_manager
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.gcp import secret_manager
from nstance.secretstore.gcp.clients import GoogleClients
from support import moto_server
from support.gcp.cloud import google_cloud


def sealed_store(sealer: sealing.Sealer) -> port.SecretStore:
    store = objects.MemoryStore(clock.SystemClock())
    return sealed.SealedStore(
        store, prefix="cluster/secret/", sealer=sealer, cluster=ClusterId("prod"), rng=clock.SystemRng()
    )


def aws_clients(environment: dict[str, str]) -> AwsClients:
    return AwsClients(region="", clock=clock.SystemClock(), rng=clock.SystemRng(), environment=environment)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server.run_moto() as url:
        yield url


def google_clients(environment: dict[str, str]) -> GoogleClients:
    return GoogleClients(project="", clock=clock.SystemClock(), rng=clock.SystemRng(), environment=environment)


GOOGLE = "google-secret-manager"


@pytest.fixture(params=["memory", "sealed", "unsealed", "file", "aws-secrets-manager", "aws-parameter-store", GOOGLE])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[port.SecretStore]:
    match request.param:
        case "memory":
            yield memory.MemoryStore()
        case "sealed":
            yield sealed_store(sealing.Keyring(b"k" * 32))
        case "unsealed":
            yield sealed_store(sealing.Unsealed())
        case "file":
            yield file.FileStore(tmp_path / "secrets")
        case "google-secret-manager":
            async with google_cloud() as cloud:
                google = google_clients(cloud.stand_in.environment())
                yield kinds.open_store(
                    GOOGLE, backends(google=google), prefix="", cluster=ClusterId("prod"), sealer=None
                )
                await google.close()
        case _:
            url = request.getfixturevalue("moto")
            moto_server.reset(url)
            clients = aws_clients(moto_server.environment(url))
            yield kinds.open_store(
                request.param, backends(aws=clients), prefix="", cluster=ClusterId("prod"), sealer=None
            )
            await clients.close()


def backends(*, aws: AwsClients | None = None, google: GoogleClients | None = None) -> kinds.Backends:
    return kinds.Backends(
        objects=objects.MemoryStore(clock.SystemClock()),
        clients=keys.KeyClients(
            aws=aws or aws_clients({"AWS_REGION": "eu-north-1"}), google=google or google_clients({})
        ),
        environment={},
        rng=clock.SystemRng(),
    )


def largest(store: port.SecretStore) -> int:
    """What fits into the store."""
    match store:
        case secrets_manager.SecretsManagerStore():
            return secrets_manager.MAX_VALUE
        case secret_manager.SecretManagerStore():
            return secret_manager.MAX_VALUE
        case parameter_store.ParameterStore():
            return parameter_store.MAX_VALUE
        case _:
            return port.MAX_VALUE


async def test_what_was_put_is_there(store: port.SecretStore) -> None:
    for value in (b"one", b"two", b"two", b"", bytes(range(256))):
        await store.put("a", value)
        assert await store.get("a") == value


async def test_create_happens_once(store: port.SecretStore) -> None:
    await store.create("a", b"first")
    with pytest.raises(errors.AlreadyExistsError):
        await store.create("a", b"second")
    with pytest.raises(errors.AlreadyExistsError):
        await store.create("a", b"first")
    assert await store.get("a") == b"first"


async def test_absence_is_reported_as_such(store: port.SecretStore) -> None:
    with pytest.raises(errors.NotFoundError):
        await store.get("a")
    await store.delete("a")
    assert await store.list() == []


async def test_deleted_is_gone_and_the_name_is_free(store: port.SecretStore) -> None:
    await store.put("a", b"1")
    await store.delete("a")
    with pytest.raises(errors.NotFoundError):
        await store.get("a")
    await store.create("a", b"2")
    assert await store.get("a") == b"2"


async def test_list_is_complete_and_sorted(store: port.SecretStore) -> None:
    for name in ("b", "a.key", "B", "a-b", "0"):
        await store.put(name, b"x")
    assert await store.list() == sorted(["b", "a.key", "B", "a-b", "0"])


BAD = ["", ".", "..", ".a", "a/b", "../a", "a..b", "a\0", "a\n", "ä", "a b", "x" * 129, "-a", "/etc/passwd"]


@pytest.mark.parametrize("name", [*BAD, *sorted(port.RESERVED)])
async def test_bad_and_reserved_names_are_refused(store: port.SecretStore, name: str) -> None:
    for call in (store.get(name), store.put(name, b""), store.create(name, b""), store.delete(name)):
        with pytest.raises(errors.PermanentError):
            await call


async def test_huge_values_are_refused(store: port.SecretStore) -> None:
    most = largest(store)
    for call in (store.put("a", b"x" * (most + 1)), store.create("a", b"x" * (most + 1))):
        with pytest.raises(errors.PermanentError, match=r"expected .*at most"):
            await call
    await store.put("a", b"x" * most)
    assert await store.get("a") == b"x" * most


async def test_a_list_of_many_pages_is_complete(store: port.SecretStore) -> None:
    names = [f"s{number:03}" for number in range(23)]
    for name in names:
        await store.put(name, b"x")
    assert await store.list() == names


async def test_files_belong_to_their_owner_only_and_leave_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    store = file.FileStore(directory)
    await store.put("a", b"1")
    with pytest.raises(errors.AlreadyExistsError):
        await store.create("a", b"2")
    (directory / ".left-by-a-crash").write_bytes(b"half")
    assert await store.list() == ["a"]
    assert sorted(path.name for path in directory.iterdir()) == [".left-by-a-crash", "a"]
    assert (directory / "a").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_a_directory_that_is_none_is_no_absence(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("a file")
    for call in (file.FileStore(tmp_path / "secrets").get("a"), file.FileStore(tmp_path / "secrets").list()):
        with pytest.raises(errors.UnavailableError):
            await call


async def test_environment_is_read_only() -> None:
    store = env.EnvStore({"NSTANCE_SECRET_DB_PASSWORD": "x", "PATH": "/bin", "NSTANCE_SECRET_": "y"})
    assert await store.list() == ["db-password"]
    for name in ("db-password", "db.password", "DB_PASSWORD"):
        assert await store.get(name) == b"x"
    with pytest.raises(errors.NotFoundError, match="NSTANCE_SECRET_OTHER"):
        await store.get("other")
    for call in (store.put("a", b""), store.create("a", b""), store.delete("a")):
        with pytest.raises(errors.PermanentError, match="read-only"):
            await call
    for name in BAD:
        with pytest.raises(errors.PermanentError):
            await store.get(name)


@pytest.mark.parametrize(
    ("kind", "built"),
    [
        ("object-storage", sealed.SealedStore),
        ("file", file.FileStore),
        ("env", env.EnvStore),
        ("aws-secrets-manager", secrets_manager.SecretsManagerStore),
        ("aws-parameter-store", parameter_store.ParameterStore),
        (GOOGLE, secret_manager.SecretManagerStore),
    ],
)
def test_kinds(kind: str, built: type, tmp_path: Path) -> None:
    store = kinds.open_store(
        kind,
        backends(),
        prefix=str(tmp_path),
        cluster=ClusterId("prod"),
        sealer=sealing.Keyring(b"k" * 32),
    )
    assert isinstance(store, built)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("object-storage", "encryption key"),
        ("file", "directory"),
        ("vault", "expected a secret store of"),
    ],
)
def test_kinds_that_cannot_be_opened(kind: str, says: str) -> None:
    with pytest.raises(errors.SecretError, match=says):
        kinds.open_store(kind, backends(), prefix="", cluster=ClusterId("prod"), sealer=None)


async def test_a_secret_that_is_too_large_is_not_read_and_not_taken_for_absent(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(port.MAX_VALUE + 1))
    with pytest.raises(errors.DecryptionError):
        await file.FileStore(tmp_path).get("a")
    objects_store = objects.MemoryStore(clock.SystemClock())
    objects_store.tamper("cluster/secret/a", bytes(MAX_READ + 1))
    store = sealed.SealedStore(
        objects_store,
        prefix="cluster/secret/",
        sealer=sealing.Unsealed(),
        cluster=ClusterId("prod"),
        rng=clock.SystemRng(),
    )
    with pytest.raises(errors.DecryptionError):
        await store.get("a")
