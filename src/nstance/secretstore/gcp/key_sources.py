"""Encryption keys that Google keeps.

Secret Manager also keeps the versions before the last one. The one before is returned as an old key, so a new version rotates
the key: what the old one sealed can still be read until `nstance-admin cluster rekey` has run.
"""

import base64
import binascii
import re

from nstance.gcp.endpoints import KMS
from nstance.secretstore import errors, sealing
from nstance.secretstore.gcp.calls import Calls, SecretCall
from nstance.secretstore.gcp.clients import GoogleClients
from nstance.secretstore.gcp.secret_manager import create_secret, read_version

_KMS_SOURCE = re.compile(r"(projects/[^/:]+/locations/[^/:]+/keyRings/[^/:]+/cryptoKeys/[^/:]+):([A-Za-z0-9+/=]+)")


async def read_secret_key(clients: GoogleClients, source: str) -> tuple[bytes, ...]:
    """The current key, then the previous one if there is one. `source`: the ID of a secret, or its whole name."""
    path = await _path(clients, source)
    value, number = await read_version(clients, path)
    current = sealing.parse_named_key(value, f"secret {source}")
    if number <= 1:
        return (current,)
    try:
        old, _ = await read_version(clients, path, str(number - 1))
    except errors.NotFoundError:
        return (current,)
    except errors.PermanentError as problem:
        if "FAILED_PRECONDITION" not in str(problem):  # it is disabled or destroyed
            raise
        return (current,)
    try:
        return current, sealing.parse_key(old)
    except errors.BadKeyError:
        return (current,)  # an old value that is no key sealed nothing


async def unwrap_data_key(clients: GoogleClients, source: str) -> tuple[bytes, ...]:
    """From KMS: `source` is the name of the KMS key, a colon, and the encrypted data key in base64."""
    match = _KMS_SOURCE.fullmatch(source)
    if match is None:
        raise errors.BadKeyError(
            "expected projects/…/cryptoKeys/NAME, a colon and an encrypted data key in base64 as the source of "
            "'google-kms'; make one with: head -c 32 /dev/urandom | gcloud kms encrypt --key NAME --keyring RING "
            "--location PLACE --plaintext-file - --ciphertext-file - | base64 -w0"
        )
    calls = Calls(clients.client(), KMS, clients.clock)
    answer = await calls.call(
        SecretCall(
            method="POST",
            path=f"{match[1]}:decrypt",
            permission="cloudkms.cryptoKeyVersions.useToDecrypt",
            about=f"data key encrypted with {match[1]}",
            body={"ciphertext": match[2]},
        )
    )
    try:
        return (
            sealing.parse_named_key(base64.b64decode(str(answer["plaintext"]), validate=True), "data key from KMS"),
        )
    except (KeyError, binascii.Error) as problem:
        raise errors.BadKeyError("data key from KMS: the answer has no key") from problem


async def create_secret_key(clients: GoogleClients, source: str) -> None:
    """A new key in Secret Manager. Raises AlreadyExistsError if another server was faster."""
    key = base64.b64encode(clients.rng.bytes(sealing.KEY_BYTES))
    await create_secret(clients, await _path(clients, source), key)


async def _path(clients: GoogleClients, source: str) -> str:
    return source if source.startswith("projects/") else f"projects/{await clients.project()}/secrets/{source}"
