"""Secrets in AWS Secrets Manager. A secret's name there is the prefix and the name here."""

import base64
import binascii
import uuid

from nstance.aws.client import SECRETS
from nstance.aws.encoding import Answer
from nstance.clock import Rng
from nstance.secretstore import errors, port, text
from nstance.secretstore.aws.calls import Calls
from nstance.secretstore.aws.clients import AwsClients

MAX_VALUE = 65_536  # AWS's limit, in bytes of the stored text
_PAGE = 100


class SecretsManagerStore:
    def __init__(self, clients: AwsClients, *, prefix: str) -> None:
        self._calls = Calls(clients.client(), SECRETS, clients.clock)
        self._rng = clients.rng
        self._prefix = prefix

    async def get(self, name: str) -> bytes:
        return await read_version(self._calls, self._prefix + port.check_name(name))

    async def create(self, name: str, value: bytes) -> None:
        full = self._prefix + port.check_name(name)
        await create_secret(self._calls, full, self._encode(full, value), new_token(self._rng))

    async def put(self, name: str, value: bytes) -> None:
        full = self._prefix + port.check_name(name)
        encoded, token = self._encode(full, value), new_token(self._rng)
        try:
            await self._put(full, encoded, token)
        except errors.NotFoundError:
            try:
                await create_secret(self._calls, full, encoded, token)
            except errors.AlreadyExistsError:  # another writer created it in between
                await self._put(full, encoded, token)

    async def list(self) -> list[port.SecretName]:
        params = {"MaxResults": _PAGE, "Filters": [{"Key": "name", "Values": [self._prefix]}]}
        about = f"secrets {self._prefix}*"
        return await self._calls.names("ListSecrets", params, "SecretList", self._prefix, about=about)

    async def delete(self, name: str) -> None:
        full = self._prefix + port.check_name(name)
        params = {"SecretId": full, "ForceDeleteWithoutRecovery": True}
        try:
            await self._calls.call("DeleteSecret", params, about=f"secret {full}")
        except errors.NotFoundError:
            return

    async def _put(self, full: str, encoded: str, token: str) -> None:
        params = {"SecretId": full, "SecretString": encoded, "ClientRequestToken": token}
        await self._calls.call("PutSecretValue", params, about=f"secret {full}")

    def _encode(self, full: str, value: bytes) -> str:
        port.check_value(value)
        encoded = text.to_text(value)
        if (size := len(encoded.encode())) > MAX_VALUE:
            raise errors.PermanentError(
                f"secret {full}: expected at most {MAX_VALUE} bytes for {self._calls.place}, found {size}; "
                "store it in object storage"
            )
        return encoded


def new_token(rng: Rng) -> str:
    """Lets a call be repeated: AWS carries out only one of the calls that share a token."""
    return str(uuid.UUID(int=rng.bits(128), version=4))


async def create_secret(calls: Calls, full: str, encoded: str, token: str) -> None:
    """Raises AlreadyExistsError."""
    params = {"Name": full, "SecretString": encoded, "ClientRequestToken": token}
    await calls.call("CreateSecret", params, about=f"secret {full}")


async def read_version(calls: Calls, full: str, stage: str = "AWSCURRENT") -> bytes:
    """A version of a secret by its full name or ARN. Raises NotFoundError."""
    about = f"secret {full}"
    answer = await calls.call("GetSecretValue", {"SecretId": full, "VersionStage": stage}, about=about)
    value = _value(answer, about)
    if len(value) > port.MAX_VALUE:
        raise errors.DecryptionError(f"{about}: expected at most {port.MAX_VALUE} bytes, found {len(value)}")
    return value


def _value(answer: Answer, about: str) -> bytes:
    if isinstance(string := answer.get("SecretString"), str):
        return text.from_text(string, about)
    try:
        return base64.b64decode(str(answer["SecretBinary"]), validate=True)
    except (KeyError, binascii.Error) as problem:
        raise errors.DecryptionError(f"{about}: AWS's answer has no value") from problem
