"""Secrets and encryption keys in Google Cloud: rotation, missing permissions, KMS, and whole servers on them."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component.whole_server import CLUSTER, World, config
from nstance.clock import SystemClock, SystemRng
from nstance.secretstore import errors, keys
from nstance.secretstore.gcp import secret_manager
from nstance.secretstore.gcp.clients import GoogleClients
from nstance.secretstore.gcp.secret_manager import SecretManagerStore
from support.eventually import eventually
from support.gcp.cloud import Cloud, google_cloud
from support.gcp.secrets import KMS_KEY, Secret, wrapped
from support.gcp.stand_in import INTERNAL, LOST_REPLY, OUTAGE, PROJECT, TOO_MANY, Fault
from support.key_clients import key_clients

SECRETS = "google-secret-manager"
OLD, NEW = b"1" * 32, b"2" * 32
ACCESS = "secretmanager.projects.secrets.versions.access"
KEY_ID = f"nstance__{CLUSTER}__cluster-encryption_dkey"


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with google_cloud() as made:
        yield made


@pytest.fixture
async def clients(cloud: Cloud) -> AsyncIterator[GoogleClients]:
    environment = cloud.stand_in.environment()
    clients = GoogleClients(project="", clock=SystemClock(), rng=SystemRng(), environment=environment)
    yield clients
    await clients.close()


async def read(clients: GoogleClients, source: str, provider: str = SECRETS) -> tuple[bytes, ...]:
    return await keys.read_key(provider, source, environment={}, clients=key_clients(google=clients))


@pytest.mark.parametrize("name", ["a", "tls.key", "A_b-c.d_", "x" * 128, "nstance/prod/a.b_c"])
def test_names_survive(name: str) -> None:
    assert secret_manager.name_of(secret_manager.secret_id(name)) == name


def test_names_of_others_are_none_of_ours() -> None:
    for id in ("a_b", "a_", "_x"):
        assert secret_manager.name_of(id) == ""
    with pytest.raises(errors.PermanentError, match="at most 255"):
        secret_manager.secret_id("." * 200)


async def test_a_new_version_rotates_the_key(cloud: Cloud, clients: GoogleClients) -> None:
    cloud.secrets.kept["key"] = Secret(0.0, [OLD])
    assert await read(clients, "key") == (OLD,)
    cloud.secrets.kept["key"].versions.append(base64.b64encode(NEW))
    assert await read(clients, f"projects/{PROJECT}/secrets/key") == (NEW, OLD)
    cloud.secrets.kept["key"].versions[0] = None  # destroyed
    assert await read(clients, "key") == (NEW,)
    cloud.secrets.kept["key"].versions[0] = b"no key"
    assert await read(clients, "key") == (NEW,)


async def test_an_error_about_the_earlier_version_is_no_absence(cloud: Cloud, clients: GoogleClients) -> None:
    cloud.secrets.kept["key"] = Secret(0.0, [OLD, NEW])
    cloud.stand_in.spoil(ACCESS, None, *[OUTAGE] * 5)
    with pytest.raises(errors.UnavailableError):
        await read(clients, "key")


async def test_kms_unwraps_a_data_key(cloud: Cloud, clients: GoogleClients) -> None:
    source = f"{KMS_KEY}:{wrapped(NEW)}"
    assert await read(clients, source, "google-kms") == (NEW,)
    with pytest.raises(errors.BadKeyError, match="32 bytes"):
        await read(clients, f"{KMS_KEY}:{wrapped(b'short')}", "google-kms")
    cloud.secrets.kms_key_is_enabled = False
    with pytest.raises(errors.PermanentError, match=r"cryptoKeys/cluster .*not enabled"):
        await read(clients, source, "google-kms")
    cloud.stand_in.denied = {"cloudkms.cryptoKeyVersions.useToDecrypt"}
    with pytest.raises(errors.PermanentError, match=r"denies cloudkms\.cryptoKeyVersions\.useToDecrypt"):
        await read(clients, source, "google-kms")


async def test_a_denied_secret_names_the_permission_and_is_no_absence(cloud: Cloud, clients: GoogleClients) -> None:
    store = SecretManagerStore(clients, prefix="nstance/prod/")
    cloud.stand_in.denied = {
        f"secretmanager.{name}"
        for name in ("versions.access", "versions.add", "secrets.create", "secrets.list", "secrets.delete")
    }
    for call, permission in (
        (store.list(), "secrets.list"),
        (store.create("a", b"1"), "secrets.create"),
        (store.put("a", b"1"), "versions.add"),
        (store.get("a"), "versions.access"),
        (store.delete("a"), "secrets.delete"),
    ):
        with pytest.raises(errors.PermanentError, match=rf"denies secretmanager\.{permission}"):
            await call
    cloud.stand_in.denied = set()
    with pytest.raises(errors.NotFoundError, match="there is no secret nstance__prod__a in Secret Manager"):
        await store.get("a")


@pytest.mark.parametrize("fault", [OUTAGE, INTERNAL, TOO_MANY, LOST_REPLY], ids=repr)
async def test_what_passes_is_tried_again(cloud: Cloud, clients: GoogleClients, fault: Fault) -> None:
    store = SecretManagerStore(clients, prefix="nstance/prod/")
    await store.put("a", b"1")
    cloud.stand_in.spoil(ACCESS, fault, fault)
    assert await store.get("a") == b"1"


async def test_a_secret_that_a_crash_left_empty_is_finished(cloud: Cloud, clients: GoogleClients) -> None:
    store = SecretManagerStore(clients, prefix="nstance/prod/")
    cloud.secrets.kept["nstance__prod__a"] = Secret(SystemClock().wall())
    with pytest.raises(errors.NotFoundError):
        await store.get("a")
    with pytest.raises(errors.AlreadyExistsError):  # its writer may be about to finish it
        await store.create("a", b"1")
    cloud.secrets.kept["nstance__prod__a"] = Secret(SystemClock().wall() - 120.0)
    await store.create("a", b"1")
    assert await store.get("a") == b"1"


async def test_the_first_server_creates_the_key_and_others_use_it(
    cloud: Cloud, clients: GoogleClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.stand_in.environment().items():
        monkeypatch.setenv(name, value)
    settings = config()
    settings["cluster"]["secrets"] = {"provider": SECRETS, "project_id": PROJECT}
    async with World(tmp_path, settings) as world:
        await world.start("a", insecure_dev=False)
        key = (await read(clients, KEY_ID))[0]
        await world.start("b", lead=False, insecure_dev=False)
        assert await read(clients, KEY_ID) == (key,)
        store = SecretManagerStore(clients, prefix=f"nstance/{CLUSTER}/")
        await store.put("db.password", b"hunter2")
        assert await world.leader.server.server.env.secret_store.get("db.password") == b"hunter2"  # type: ignore[union-attr]
        assert await store.list() == ["db.password"]


async def test_a_denied_key_is_named_until_it_is_allowed(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.stand_in.environment().items():
        monkeypatch.setenv(name, value)
    cloud.secrets.kept["key"] = Secret(0.0, [NEW])
    cloud.stand_in.denied = {"secretmanager.versions.access"}
    settings = config()
    settings["cluster"]["secrets"] = {
        "encryption_key": {"provider": SECRETS, "source": f"projects/{PROJECT}/secrets/key"}
    }
    async with World(tmp_path, settings) as world:
        start = asyncio.create_task(world.start("a", insecure_dev=False))
        await eventually(
            lambda: (
                "a" in world.servers and "secretmanager.versions.access" in str(world.servers["a"].server._boot_problem)
            )
        )
        cloud.stand_in.denied = set()
        await start
