"""Reading the encryption key from its source."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from nstance.secretstore import errors, sealing

DEFAULT_VARIABLE = "NSTANCE_ENCRYPTION_KEY"

_MAX_FILE = 4096


class KeySource(Enum):
    ENV = "env"
    FILE = "file"
    AWS_SECRETS_MANAGER = "aws-secrets-manager"
    AWS_PARAMETER_STORE = "aws-parameter-store"
    GOOGLE_SECRET_MANAGER = "google-secret-manager"


def read_key(provider: str, source: str = "", *, environment: Mapping[str, str]) -> bytes:
    """`source` is the name of a variable or the path of a file. Raises BadKeyError."""
    if provider == KeySource.ENV.value:
        variable = source or DEFAULT_VARIABLE
        text = environment.get(variable, "")
        if not text:
            raise errors.BadKeyError(f"no encryption key: the environment variable {variable} is not set")
        return _parse(text, f"environment variable {variable}")
    if provider == KeySource.FILE.value:
        if not source:
            raise errors.BadKeyError(
                "no encryption key: the key provider 'file' needs the path of a file as its source"
            )
        try:
            with Path(source).open("rb") as file:
                data = file.read(_MAX_FILE)
        except OSError as error:
            raise errors.BadKeyError(f"no encryption key: failed to read {source}: {error.strerror}") from error
        return _parse(data, source)
    known = ", ".join(kind.value for kind in KeySource)
    if provider in {kind.value for kind in KeySource}:
        raise errors.BadKeyError(f"the key provider {provider!r} is not built yet; use 'env' or 'file'")
    raise errors.BadKeyError(f"expected a key provider of {known}, found {provider!r}")


def _parse(key: str | bytes, where: str) -> bytes:
    try:
        return sealing.parse_key(key)
    except errors.BadKeyError as error:
        raise errors.BadKeyError(f"{where}: {error}") from None
