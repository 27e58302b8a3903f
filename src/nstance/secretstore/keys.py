"""Reading encryption keys from their sources. Those of clouds are imported only when they are configured."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from nstance.secretstore import errors, port, sealing
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.gcp.clients import GoogleClients

DEFAULT_VARIABLE = "NSTANCE_ENCRYPTION_KEY"

_MAX_FILE = 4096


class KeySource(Enum):
    ENV = "env"
    FILE = "file"
    AWS_SECRETS_MANAGER = "aws-secrets-manager"
    AWS_PARAMETER_STORE = "aws-parameter-store"
    AWS_KMS = "aws-kms"
    GOOGLE_SECRET_MANAGER = "google-secret-manager"
    GOOGLE_KMS = "google-kms"


_OF_AWS = (KeySource.AWS_SECRETS_MANAGER, KeySource.AWS_PARAMETER_STORE, KeySource.AWS_KMS)
_OF_GOOGLE = (KeySource.GOOGLE_SECRET_MANAGER, KeySource.GOOGLE_KMS)


class Location(Protocol):
    """Where a key is."""

    @property
    def provider(self) -> str: ...

    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class KeyLocation:
    provider: str
    source: str


@dataclass(frozen=True, slots=True)
class KeyClients:
    """The clients of clouds that keep keys."""

    aws: AwsClients
    google: GoogleClients


async def read_keyring(
    current: Location, old: Sequence[Location], *, environment: Mapping[str, str], clients: KeyClients
) -> sealing.Keyring:
    """Raises BadKeyError for a missing or malformed key, and other errors if a store of keys cannot be read."""
    first, *rest = [
        key
        for location in (current, *old)
        for key in await read_key(location.provider, location.source, environment=environment, clients=clients)
    ]
    return sealing.Keyring(first, tuple(rest))


async def read_key(
    provider: str, source: str = "", *, environment: Mapping[str, str], clients: KeyClients
) -> tuple[bytes, ...]:
    """The key, then older values that the source still has. `source` is the name of a variable, file, secret or parameter,
    or an encrypted data key."""
    if provider == KeySource.ENV.value:
        variable = source or DEFAULT_VARIABLE
        text = environment.get(variable, "")
        if not text:
            raise errors.BadKeyError(f"no encryption key: the environment variable {variable} is not set")
        return (sealing.parse_named_key(text, f"environment variable {variable}"),)
    if not source and provider in {kind.value for kind in KeySource}:
        needed = "the path of a file" if provider == KeySource.FILE.value else "the name of the secret"
        raise errors.BadKeyError(f"no encryption key: the key provider {provider!r} needs {needed} as its source")
    if provider == KeySource.FILE.value:
        return (sealing.parse_named_key(_read_file(source), source),)
    if provider in (each.value for each in _OF_AWS):
        return await _read_from_aws(KeySource(provider), source, clients.aws)
    if provider in (each.value for each in _OF_GOOGLE):
        return await _read_from_google(KeySource(provider), source, clients.google)
    known = ", ".join(kind.value for kind in KeySource)
    raise errors.BadKeyError(f"expected a key provider of {known}, found {provider!r}")


async def _read_from_aws(kind: KeySource, source: str, clients: AwsClients) -> tuple[bytes, ...]:
    from nstance.secretstore.aws import key_sources

    if kind is KeySource.AWS_SECRETS_MANAGER:
        return await key_sources.read_secret_key(clients, source)
    if kind is KeySource.AWS_PARAMETER_STORE:
        return await key_sources.read_parameter_key(clients, source)
    return await key_sources.unwrap_data_key(clients, source)


async def _read_from_google(kind: KeySource, source: str, clients: GoogleClients) -> tuple[bytes, ...]:
    from nstance.secretstore.gcp import key_sources

    if kind is KeySource.GOOGLE_SECRET_MANAGER:
        return await key_sources.read_secret_key(clients, source)
    return await key_sources.unwrap_data_key(clients, source)


def stored_key(kind: str, prefix: str) -> KeyLocation | None:
    """Where the key is that a cloud's secret store holds itself; None for stores that need one of the configuration."""
    if kind == KeySource.AWS_SECRETS_MANAGER.value:
        return KeyLocation(kind, prefix + port.ENCRYPTION_KEY)
    if kind == KeySource.AWS_PARAMETER_STORE.value:
        from nstance.secretstore.aws.parameter_store import hierarchy

        return KeyLocation(kind, hierarchy(prefix) + port.ENCRYPTION_KEY)
    if kind == KeySource.GOOGLE_SECRET_MANAGER.value:
        from nstance.secretstore.gcp.secret_manager import secret_id

        return KeyLocation(kind, secret_id(prefix + port.ENCRYPTION_KEY))
    return None


async def create_stored_key(location: Location, clients: KeyClients) -> None:
    """A new key where `stored_key` says, unless another server was faster."""
    with contextlib.suppress(errors.AlreadyExistsError):
        if location.provider == KeySource.GOOGLE_SECRET_MANAGER.value:
            from nstance.secretstore.gcp import key_sources as google_sources

            await google_sources.create_secret_key(clients.google, location.source)
            return
        from nstance.secretstore.aws import key_sources

        if location.provider == KeySource.AWS_SECRETS_MANAGER.value:
            await key_sources.create_secret_key(clients.aws, location.source)
        else:
            await key_sources.create_parameter_key(clients.aws, location.source)


def _read_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_FILE)
    except OSError as error:
        raise errors.BadKeyError(f"no encryption key: failed to read {path}: {error.strerror}") from error
