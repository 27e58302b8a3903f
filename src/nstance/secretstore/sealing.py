"""Encryption of secrets in object storage.

A blob is magic, version, key ID, nonce and AES-256-GCM ciphertext. The cluster and the object's full name are
authenticated with it, so a moved or swapped blob cannot be decrypted. The nonce is random, so no two blobs are equal: a
writer that lost its answer recognizes its own blob. The trap: a blob that cannot be decrypted is never the same as no
blob; callers create a new secret when one is missing.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.secretstore import errors

KEY_BYTES = 32
MAGIC = b"NSTC"

_PLAIN = 0
_SEALED = 1
_ID = 8
_NONCE = 12
_START = len(MAGIC) + 1


class Sealer(Protocol):
    def seal(self, plain: bytes, *, cluster: ClusterId, name: str, rng: Rng) -> bytes:
        """`name` is the full key of the object."""
        ...

    def open(self, blob: bytes, *, cluster: ClusterId, name: str) -> bytes:
        """Raises DecryptionError."""
        ...

    def is_current(self, blob: bytes) -> bool:
        """Whether `seal` would use the same key and format."""
        ...


@dataclass(frozen=True, slots=True)
class Keyring:
    """The current key encrypts; old keys only decrypt."""

    current: bytes = field(repr=False)
    old: Sequence[bytes] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for key in (self.current, *self.old):
            if len(key) != KEY_BYTES:
                raise errors.BadKeyError(f"expected an encryption key of {KEY_BYTES} bytes, found {len(key)}")

    def seal(self, plain: bytes, *, cluster: ClusterId, name: str, rng: Rng) -> bytes:
        head = MAGIC + bytes([_SEALED]) + key_id(self.current)
        nonce = rng.bytes(_NONCE)
        return head + nonce + AESGCM(self.current).encrypt(nonce, plain, _associated_data(head, cluster, name))

    def open(self, blob: bytes, *, cluster: ClusterId, name: str) -> bytes:
        if _version(blob, name) == _PLAIN:
            raise errors.DecryptionError(
                f"{name} was stored without encryption by a server started with --insecure-dev; "
                "use it that way, or start again with an empty store"
            )
        head, nonce, ciphertext = blob[: _START + _ID], blob[_START + _ID :][:_NONCE], blob[_START + _ID + _NONCE :]
        used = head[_START:]
        key = next((key for key in (self.current, *self.old) if key_id(key) == used), None)
        if key is None:
            ours = ", ".join(key_id(key).hex() for key in (self.current, *self.old))
            raise errors.DecryptionError(
                f"{name} is sealed with key {used.hex()}, this program has {ours}; "
                "set the right encryption key, or add it to old_encryption_keys"
            )
        try:
            return AESGCM(key).decrypt(nonce, ciphertext, _associated_data(head, cluster, name))
        except (InvalidTag, ValueError):
            raise errors.DecryptionError(
                f"{name} is sealed with the right key {used.hex()} but cannot be decrypted: "
                f"it is damaged, was moved there, or belongs to another cluster than {cluster}"
            ) from None

    def is_current(self, blob: bytes) -> bool:
        return blob.startswith(MAGIC + bytes([_SEALED]) + key_id(self.current))


@dataclass(frozen=True, slots=True)
class Unsealed:
    """For `--insecure-dev` without a key: plain text, marked as such, and rejected by every server that has a key."""

    def seal(self, plain: bytes, *, cluster: ClusterId, name: str, rng: Rng) -> bytes:
        return MAGIC + bytes([_PLAIN]) + rng.bytes(_NONCE) + plain

    def open(self, blob: bytes, *, cluster: ClusterId, name: str) -> bytes:
        if _version(blob, name) == _SEALED:
            used = blob[_START : _START + _ID].hex()
            raise errors.DecryptionError(
                f"{name} is sealed with key {used}, and no encryption key is configured; set it"
            )
        return blob[_START + _NONCE :]

    def is_current(self, blob: bytes) -> bool:
        return blob.startswith(MAGIC + bytes([_PLAIN]))


def parse_key(key: str | bytes) -> bytes:
    """32 raw bytes, or base64 or hexadecimal of them, possibly with a line end. Raises BadKeyError."""
    raw = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    if len(raw) == KEY_BYTES:
        return raw
    text = raw.rstrip(b"\r\n")
    if len(text) == KEY_BYTES:
        return text
    text = raw.strip()
    for decode in (binascii.unhexlify, _base64):
        try:
            decoded = decode(text)
        except ValueError:
            continue
        if len(decoded) == KEY_BYTES:
            return decoded
    raise errors.BadKeyError(
        f"expected an encryption key of {KEY_BYTES} bytes, raw or as base64 or hexadecimal, "
        f"found {len(raw)} other bytes; make a key with: openssl rand -base64 32"
    )


def parse_named_key(key: str | bytes, where: str) -> bytes:
    """The same, for an error that says where the key is."""
    try:
        return parse_key(key)
    except errors.BadKeyError as problem:
        raise errors.BadKeyError(f"{where}: {problem}") from None


def _base64(text: bytes) -> bytes:
    standard = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    return base64.b64decode(standard + b"=" * (-len(standard) % 4), validate=True)


def key_id(key: bytes) -> bytes:
    """Identifies a key without revealing it."""
    return hashlib.sha256(b"nstance-key-id-v1\0" + key).digest()[:_ID]


def _associated_data(head: bytes, cluster: ClusterId, name: str) -> bytes:
    return head + f"{cluster}\0{name}".encode()


def _version(blob: bytes, name: str) -> int:
    if not blob.startswith(MAGIC) or len(blob) < _START + _NONCE:
        raise errors.DecryptionError(f"{name} is not a sealed object of Nstance; it was damaged or overwritten")
    version = blob[len(MAGIC)]
    if version not in (_PLAIN, _SEALED):
        raise errors.DecryptionError(
            f"{name} is sealed in version {version}, which is newer than this program; upgrade it"
        )
    return version


def is_in_clear(blob: bytes) -> bool:
    """Whether the secret was stored without encryption."""
    return blob.startswith(MAGIC + bytes([_PLAIN]))
