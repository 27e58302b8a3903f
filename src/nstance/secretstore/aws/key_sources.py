"""Encryption keys that AWS keeps.

Secrets Manager and Parameter Store also keep the value before the last change. It is returned as an old key, so a new
value rotates the key: what the old one sealed can still be read until `nstance-admin cluster rekey` has run.
"""

import base64
import binascii

from nstance.aws.client import KMS, SECRETS, SSM
from nstance.secretstore import errors, sealing
from nstance.secretstore.aws.calls import Calls
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.aws.parameter_store import read_parameter, write_parameter
from nstance.secretstore.aws.secrets_manager import create_secret, new_token, read_version


async def read_secret_key(clients: AwsClients, source: str) -> tuple[bytes, ...]:
    """From Secrets Manager: the current key, then the previous one if there is one."""
    calls = Calls(clients.client(source), SECRETS, clients.clock)
    current = sealing.parse_named_key(await read_version(calls, source), f"secret {source}")
    try:
        return current, *_parse_old(await read_version(calls, source, "AWSPREVIOUS"))
    except errors.NotFoundError:
        return (current,)


async def read_parameter_key(clients: AwsClients, source: str) -> tuple[bytes, ...]:
    """From Parameter Store: the current key, then that of the version before, unless the source names a version."""
    calls = Calls(clients.client(source), SSM, clients.clock)
    value, version = await read_parameter(calls, source)
    current = sealing.parse_named_key(value, f"parameter {source}")
    if version <= 1 or ":" in source:  # an ARN takes no version
        return (current,)
    try:
        return current, *_parse_old((await read_parameter(calls, f"{source}:{version - 1}"))[0])
    except errors.NotFoundError:
        return (current,)


async def unwrap_data_key(clients: AwsClients, source: str) -> tuple[bytes, ...]:
    """From KMS: `source` is the data key, encrypted, in base64. Only KMS can turn it into the key."""
    try:
        if not base64.b64decode(source, validate=True):
            raise binascii.Error("nothing was given")
    except binascii.Error as problem:
        raise errors.BadKeyError(
            f"expected an encrypted data key in base64 as the source of 'aws-kms': {problem}; make one with: "
            "aws kms generate-data-key-without-plaintext --key-id KEY --key-spec AES_256"
        ) from problem
    calls = Calls(clients.client(), KMS, clients.clock)
    answer = await calls.call("Decrypt", {"CiphertextBlob": source}, about="encrypted data key")
    try:
        return (
            sealing.parse_named_key(base64.b64decode(str(answer["Plaintext"]), validate=True), "data key from KMS"),
        )
    except (KeyError, binascii.Error) as problem:
        raise errors.BadKeyError("data key from KMS: the answer has no key") from problem


async def create_secret_key(clients: AwsClients, source: str) -> None:
    """A new key in Secrets Manager. Raises AlreadyExistsError if another server was faster."""
    calls = Calls(clients.client(source), SECRETS, clients.clock)
    await create_secret(calls, source, _new_key(clients), new_token(clients.rng))


async def create_parameter_key(clients: AwsClients, source: str) -> None:
    """A new key in Parameter Store. Raises AlreadyExistsError if another server was faster."""
    calls = Calls(clients.client(source), SSM, clients.clock)
    await write_parameter(calls, source, _new_key(clients), overwrite=False)


def _new_key(clients: AwsClients) -> str:
    return base64.b64encode(clients.rng.bytes(sealing.KEY_BYTES)).decode("ascii")


def _parse_old(key: bytes) -> tuple[bytes, ...]:
    """An old value that is no key sealed nothing."""
    try:
        return (sealing.parse_key(key),)
    except errors.BadKeyError:
        return ()
