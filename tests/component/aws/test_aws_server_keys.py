"""A server whose secrets or encryption key are in AWS: the first start, a rotated key, and faults that pass."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from component.whole_server import CLUSTER, SECONDS, World, config
from nstance.authority import open as authorities
from nstance.authority import rotation
from nstance.aws.client import KMS, SECRETS
from nstance.clock import SystemClock, SystemRng
from nstance.secretstore import keys, sealed, sealing
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.aws.secrets_manager import SecretsManagerStore
from nstance.server.config import configuration
from nstance.server.waits import Waits
from support import moto_server
from support.aws_faults import AwsFaults, Fault, serve_faults
from support.eventually import eventually
from support.key_clients import key_clients

PLACES = authorities.Places("cluster/")
OLD, NEW = b"1" * 32, b"2" * 32
KEY_NAME = f"nstance/{CLUSTER}/cluster-encryption.key"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server.run_moto() as url:
        yield url


@pytest.fixture
async def aws(moto: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsFaults]:
    moto_server.reset(moto)
    async with serve_faults(moto) as faults:
        for name, value in moto_server.environment(faults.url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("NSTANCE_ENCRYPTION_KEY", raising=False)
        yield faults


@pytest.fixture
async def clients(aws: AwsFaults) -> AsyncIterator[AwsClients]:
    clients = AwsClients(region="", clock=SystemClock(), rng=SystemRng(), environment=moto_server.environment(aws.url))
    yield clients
    await clients.close()


def with_secrets(**secrets: Any) -> dict[str, Any]:
    configured = config()
    configured["cluster"]["secrets"] = secrets
    return configured


@pytest.mark.parametrize(("kind", "name"), [("aws-secrets-manager", KEY_NAME), ("aws-parameter-store", f"/{KEY_NAME}")])
async def test_the_first_server_creates_the_key_in_the_store(
    tmp_path: Path, clients: AwsClients, kind: str, name: str
) -> None:
    async with World(tmp_path, with_secrets(provider=kind)) as world:
        await world.start(insecure_dev=False)
        key = (await keys.read_key(kind, name, environment={}, clients=key_clients(clients)))[0]
        sealed_ca = world.store.contents()[PLACES.sealed_ca]
        assert sealing.Keyring(key).open(sealed_ca, cluster=CLUSTER, name=PLACES.sealed_ca)
        await world.start("b", lead=False, insecure_dev=False)
        assert await keys.read_key(kind, name, environment={}, clients=key_clients(clients)) == (key,)


async def test_a_lost_key_is_never_replaced_by_a_new_one(
    tmp_path: Path, clients: AwsClients, aws: AwsFaults, caplog: pytest.LogCaptureFixture
) -> None:
    """The CA was sealed with it: with another key every VM would be cut off."""
    async with World(tmp_path, with_secrets(provider="aws-secrets-manager")) as world:
        await (await world.start(insecure_dev=False)).stop()
        key = (await keys.read_key("aws-secrets-manager", KEY_NAME, environment={}, clients=key_clients(clients)))[0]
        moto_server.reset(aws.moto)
        before = world.store.contents()[PLACES.sealed_ca]
        starting = asyncio.create_task(world.start("b", insecure_dev=False))
        await eventually(lambda: "was sealed with it; restore the key" in caplog.text)
        assert await SecretsManagerStore(clients, prefix="nstance/").list() == []
        await _create(clients, key)
        running = await asyncio.wait_for(starting, SECONDS)
        assert world.store.contents()[PLACES.sealed_ca] == before
        assert running.lead_now.issuer.authority.bundle == world.ca_pem


async def test_a_denied_key_is_named_and_heals(
    tmp_path: Path, aws: AwsFaults, caplog: pytest.LogCaptureFixture
) -> None:
    aws.always["GetSecretValue"] = Fault("AccessDeniedException")
    async with World(tmp_path, with_secrets(provider="aws-secrets-manager")) as world:
        starting = asyncio.create_task(world.start(insecure_dev=False))
        await eventually(lambda: f"secret {KEY_NAME}" in caplog.text)
        assert "AWS denies secretsmanager:GetSecretValue" in caplog.text
        del aws.always["GetSecretValue"]
        await asyncio.wait_for(starting, SECONDS)


async def test_a_rotated_key_needs_no_restart(
    tmp_path: Path, clients: AwsClients, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is sealed with the new key while the server runs: it reads secrets at once, and the CA as before."""
    secrets_manager = SecretsManagerStore(clients, prefix="nstance/")
    await secrets_manager.put("key", OLD)
    configured = with_secrets(
        provider="object-storage", encryption_key={"provider": "aws-secrets-manager", "source": "nstance/key"}
    )
    async with World(tmp_path, configured) as world:
        world.waits = Waits(ca_check=0.02)
        running = await world.start(insecure_dev=False)
        files = running.lead_now.file_sets.secret_store
        await _sealed(world, OLD).put("db", b"v1")
        assert await files.get("db") == b"v1"
        await secrets_manager.put("key", NEW)
        ring = await keys.read_keyring(
            keys.KeyLocation("aws-secrets-manager", "nstance/key"), [], environment={}, clients=key_clients(clients)
        )
        vault = authorities.open_vault(world.store, keyring=ring, cluster=CLUSTER, rng=world.rng)
        assert set(await rotation.rekey(vault, PLACES)) == {PLACES.sealed_ca, PLACES.nonce_key, "cluster/secret/db"}
        assert await files.get("db") == b"v1"
        await rotation.rotate_ca(vault, PLACES, clock=world.clock)
        await running.until(lambda: running.lead_now.issuer.authority.bundle == world.ca_pem)
        assert "failed to read the cluster's CA" not in caplog.text


async def test_a_new_data_key_of_kms_needs_no_restart(
    tmp_path: Path, clients: AwsClients, caplog: pytest.LogCaptureFixture
) -> None:
    """Its place is the configuration. Both servers follow that, also the one that does not lead."""
    old, new = await _wrapped_key(clients), await _wrapped_key(clients)
    async with World(tmp_path, with_secrets(encryption_key=old)) as world:
        world.waits = Waits(ca_check=0.02)
        running = await world.start(insecure_dev=False)
        standby = await world.start("b", lead=False, insecure_dev=False)
        files = running.lead_now.file_sets.secret_store
        world.configure(with_secrets(encryption_key=new, old_encryption_keys=[old]))
        for server in (running, standby):
            assert await server.active_config.refresh()
            settings = server.active_config.booted.settings, server.active_config.configuration.settings
            assert configuration.needs_restart(*settings) == []
        locations = (keys.KeyLocation(**new), [keys.KeyLocation(**old)])
        ring = await keys.read_keyring(*locations, environment={}, clients=key_clients(clients))
        vault = authorities.open_vault(world.store, keyring=ring, insecure_dev=False, cluster=CLUSTER, rng=world.rng)
        await rotation.rekey(vault, PLACES)
        (unwrapped,) = await keys.read_key(**new, environment={}, clients=key_clients(clients))
        await _sealed(world, unwrapped).put("db", b"v1")
        assert await files.get("db") == b"v1"
        await rotation.rotate_ca(vault, PLACES, clock=world.clock)
        for server in (running, standby):
            await server.until(lambda server=server: server.configured.env.issuer.authority.bundle == world.ca_pem)
        assert "failed to read the cluster's CA" not in caplog.text


async def _wrapped_key(clients: AwsClients) -> dict[str, str]:
    client = clients.client()
    key = (await client.json(KMS, "CreateKey", {}))["KeyMetadata"]["KeyId"]
    made = await client.json(KMS, "GenerateDataKeyWithoutPlaintext", {"KeyId": key, "KeySpec": "AES_256"})
    return {"provider": "aws-kms", "source": made["CiphertextBlob"]}


def _sealed(world: World, key: bytes) -> sealed.SealedStore:
    return sealed.SealedStore(
        world.store, prefix="cluster/secret/", sealer=sealing.Keyring(key), cluster=CLUSTER, rng=world.rng
    )


async def _create(clients: AwsClients, key: bytes) -> None:
    await clients.client().json(SECRETS, "CreateSecret", {"Name": KEY_NAME, "SecretString": key.hex()})
