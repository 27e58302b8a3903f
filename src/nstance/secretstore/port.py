"""The port to secrets.

Values are small and opaque. The trap: keys of Nstance itself are stored among the secrets (the nonce key in object
storage, the encryption key in a cloud's store), and a file of kind `secret` could otherwise name one and deliver it to a VM.
`check_name` rejects them.
"""

import re
from typing import NewType, Protocol

from nstance.secretstore import errors

SecretName = NewType("SecretName", str)

NONCE_KEY = "registration-nonce.key"
ENCRYPTION_KEY = "cluster-encryption.key"
RESERVED = frozenset({NONCE_KEY, ENCRYPTION_KEY})
MAX_VALUE = 256 * 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SecretStore(Protocol):
    """All calls may raise UnavailableError, and PermanentError for an invalid name. They have their own timeouts."""

    async def get(self, name: str) -> bytes:
        """Raises NotFoundError, DecryptionError."""
        ...

    async def create(self, name: str, value: bytes) -> None:
        """Write only if absent. Raises AlreadyExistsError."""
        ...

    async def put(self, name: str, value: bytes) -> None:
        """Write over anything."""
        ...

    async def list(self) -> list[SecretName]:
        """All names, sorted: complete, or an error."""
        ...

    async def delete(self, name: str) -> None:
        """Absent afterwards; deleting an absent secret is success."""
        ...


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and text not in RESERVED


def check_name(text: str) -> SecretName:
    if text in RESERVED:
        raise errors.PermanentError(f"the secret {text!r} belongs to Nstance itself; choose another name")
    if not is_name(text):
        raise errors.PermanentError(
            f"expected a secret's name of letters, digits, '.', '_' and '-', at most 128, found {text[:140]!r}"
        )
    return SecretName(text)


def check_value(value: bytes) -> None:
    if len(value) > MAX_VALUE:
        raise errors.PermanentError(f"expected a secret of at most {MAX_VALUE} bytes, found {len(value)}")
