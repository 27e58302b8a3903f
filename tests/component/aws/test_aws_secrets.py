"""Keys and secrets in AWS, against moto with the errors added that moto does not have."""

import base64
from collections.abc import AsyncIterator, Iterator

import pytest

from nstance.aws.client import KMS
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import ClusterId
from nstance.secretstore import cloud_calls, errors, keys
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.aws.parameter_store import ParameterStore
from nstance.secretstore.aws.secrets_manager import SecretsManagerStore
from nstance.tasks.backoff import Backoff
from support import moto_server
from support.aws_faults import AwsFaults, Fault, serve_faults
from support.key_clients import key_clients

FIRST, SECOND = b"1" * 32, b"2" * 32
CLUSTER = ClusterId("prod")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server.run_moto() as url:
        yield url


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[AwsFaults]:
    moto_server.reset(moto)
    async with serve_faults(moto) as faults:
        yield faults


@pytest.fixture
async def clients(aws: AwsFaults, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsClients]:
    monkeypatch.setattr(cloud_calls, "RETRY", Backoff(0.001, 0.001))
    clients = AwsClients(region="", clock=SystemClock(), rng=SystemRng(), environment=moto_server.environment(aws.url))
    yield clients
    await clients.close()


async def read(clients: AwsClients, provider: str, source: str) -> tuple[bytes, ...]:
    return await keys.read_key(provider, source, environment={}, clients=key_clients(clients))


async def test_a_new_value_in_secrets_manager_rotates_the_key(clients: AwsClients) -> None:
    store = SecretsManagerStore(clients, prefix="keys/")
    await store.put("main", base64.b64encode(FIRST))
    assert await read(clients, "aws-secrets-manager", "keys/main") == (FIRST,)
    await store.put("main", SECOND)
    assert await read(clients, "aws-secrets-manager", "keys/main") == (SECOND, FIRST)


async def test_a_new_version_of_a_parameter_rotates_the_key(clients: AwsClients) -> None:
    store = ParameterStore(clients, prefix="keys")
    await store.put("main", FIRST.hex().encode())
    assert await read(clients, "aws-parameter-store", "/keys/main") == (FIRST,)
    await store.put("main", SECOND)
    assert await read(clients, "aws-parameter-store", "/keys/main") == (SECOND, FIRST)
    assert await read(clients, "aws-parameter-store", "/keys/main:1") == (FIRST,)


async def test_an_earlier_value_that_is_no_key_is_left_out(clients: AwsClients) -> None:
    store = SecretsManagerStore(clients, prefix="keys/")
    await store.put("main", b"a mistake")
    with pytest.raises(errors.BadKeyError, match=r"secret keys/main: expected an encryption key of 32 bytes") as caught:
        await read(clients, "aws-secrets-manager", "keys/main")
    assert "mistake" not in str(caught.value)
    await store.put("main", SECOND)
    assert await read(clients, "aws-secrets-manager", "keys/main") == (SECOND,)


async def test_an_error_about_the_earlier_value_is_no_absence(clients: AwsClients, aws: AwsFaults) -> None:
    """Otherwise what the earlier key sealed would seem to be sealed with an unknown one."""
    store = ParameterStore(clients, prefix="keys")
    for key in (FIRST, SECOND):
        await store.put("main", key)
    aws.once["GetParameter"] = [None, Fault("AccessDeniedException")]
    with pytest.raises(errors.PermanentError, match=r"parameter /keys/main:1 in .* denies ssm:GetParameter"):
        await read(clients, "aws-parameter-store", "/keys/main")


async def data_key(clients: AwsClients) -> tuple[str, str]:
    """The ID of a new KMS key, and a data key that it encrypts."""
    client = clients.client()
    key = (await client.json(KMS, "CreateKey", {}))["KeyMetadata"]["KeyId"]
    made = await client.json(KMS, "GenerateDataKeyWithoutPlaintext", {"KeyId": key, "KeySpec": "AES_256"})
    return key, made["CiphertextBlob"]


async def test_kms_unwraps_a_data_key(clients: AwsClients) -> None:
    _, wrapped = await data_key(clients)
    unwrapped = await read(clients, "aws-kms", wrapped)
    assert len(unwrapped[0]) == 32
    assert await read(clients, "aws-kms", wrapped) == unwrapped


async def test_a_disabled_kms_key_is_named(clients: AwsClients, aws: AwsFaults) -> None:
    _, wrapped = await data_key(clients)
    aws.always["Decrypt"] = Fault("DisabledException", "arn:aws:kms:eu-north-1:1:key/abc is disabled.")
    with pytest.raises(errors.PermanentError, match=r"encrypted data key in KMS in eu-north-1: .*key/abc is disabled"):
        await read(clients, "aws-kms", wrapped)


DENIED = "User: arn:aws:sts::1:assumed-role/nstance/i-1 is not authorized to perform: {} on resource: {}"


@pytest.mark.parametrize(
    ("fault", "permission"),
    [
        (Fault("AccessDeniedException", DENIED.format("secretsmanager:GetSecretValue", "x")), "GetSecretValue"),
        (Fault("AccessDeniedException", "Access to KMS is not allowed"), "kms:Decrypt"),
        (Fault("AccessDeniedException", "no"), "secretsmanager:GetSecretValue"),
    ],
)
async def test_a_denied_secret_names_the_permission_and_itself(
    clients: AwsClients, aws: AwsFaults, fault: Fault, permission: str
) -> None:
    aws.always["GetSecretValue"] = fault
    store = SecretsManagerStore(clients, prefix="nstance/prod/")
    with pytest.raises(errors.PermanentError, match=f"AWS denies .*{permission}") as caught:
        await store.get("db-password")
    assert "secret nstance/prod/db-password in Secrets Manager in eu-north-1" in str(caught.value)


async def test_a_missing_secret_says_where_it_was_looked_for(clients: AwsClients) -> None:
    with pytest.raises(errors.NotFoundError, match="no secret nstance/prod/a in Secrets Manager in eu-north-1"):
        await SecretsManagerStore(clients, prefix="nstance/prod/").get("a")
    with pytest.raises(errors.NotFoundError, match="no parameter /nstance/prod/a in SSM Parameter Store in eu-north-1"):
        await ParameterStore(clients, prefix="nstance/prod/").get("a")


@pytest.mark.parametrize("fault", [Fault("ThrottlingException"), Fault("InternalServiceError", status=500)])
async def test_what_passes_is_tried_again(clients: AwsClients, aws: AwsFaults, fault: Fault) -> None:
    store = SecretsManagerStore(clients, prefix="nstance/prod/")
    await store.put("a", b"1")
    aws.once["GetSecretValue"] = [fault, fault]
    assert await store.get("a") == b"1"
    aws.always["GetSecretValue"] = fault
    with pytest.raises(errors.UnavailableError):
        await store.get("a")


async def test_a_create_whose_answer_was_lost_happens_once(clients: AwsClients, aws: AwsFaults) -> None:
    store = SecretsManagerStore(clients, prefix="nstance/prod/")
    aws.once["CreateSecret"] = [Fault("InternalServiceError", status=500, after=True)]
    await store.create("a", b"1")
    assert aws.calls.count("CreateSecret") == 2
    with pytest.raises(errors.AlreadyExistsError):
        await store.create("a", b"1")


async def test_a_parameter_whose_create_is_unknown_is_not_reported_as_anothers(
    clients: AwsClients, aws: AwsFaults
) -> None:
    store = ParameterStore(clients, prefix="nstance/prod/")
    aws.once["PutParameter"] = [Fault("InternalServerError", status=500, after=True)]
    with pytest.raises(errors.UnavailableError):
        await store.create("a", b"1")
    assert await store.get("a") == b"1"


async def test_a_secret_that_is_being_deleted_is_no_absence(clients: AwsClients, aws: AwsFaults) -> None:
    aws.always["GetSecretValue"] = Fault(
        "InvalidRequestException", "You can't perform this operation on the secret because it was marked for deletion."
    )
    with pytest.raises(errors.PermanentError, match=r"scheduled for deletion; restore it"):
        await SecretsManagerStore(clients, prefix="nstance/prod/").get("a")


async def test_secrets_made_by_people_can_be_read(clients: AwsClients) -> None:
    """As bytes, as Terraform may store them, and in a marked form that is damaged."""
    from nstance.aws.client import SECRETS

    client, store = clients.client(), SecretsManagerStore(clients, prefix="nstance/prod/")
    await client.json(
        SECRETS, "CreateSecret", {"Name": "nstance/prod/bytes", "SecretBinary": base64.b64encode(b"\xff\0").decode()}
    )
    assert await store.get("bytes") == b"\xff\0"
    await client.json(SECRETS, "CreateSecret", {"Name": "nstance/prod/bad", "SecretString": "nstance-base64:???"})
    with pytest.raises(errors.DecryptionError, match="is not base64"):
        await store.get("bad")
    assert await store.list() == ["bad", "bytes"]


async def test_an_arn_is_looked_for_in_its_own_region(clients: AwsClients) -> None:
    assert clients.client("arn:aws:secretsmanager:us-west-2:1:secret:x-AbCdEf").region == "us-west-2"
    assert clients.client("x").region == clients.client().region == moto_server.REGION
