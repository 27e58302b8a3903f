"""Ed25519 keys: generating, encoding and checking them.

A public key is 32 raw bytes everywhere in Nstance; PEM is for files and the wire. The trap: `cryptography` accepts any 32
bytes as a public key, also points of small order, for which anybody can forge signatures, and second encodings of one
point. Every key from outside must pass `check_point`.
"""

import functools
import hashlib

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from nstance.clock import Rng

MAX_PEM = 1024

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
# Divisible by 8, congruent to -1 modulo L, and not changed by X25519's clamping: see `check_point`.
_MINUS_ONE = X25519PrivateKey.from_private_bytes((5 * _L - 1).to_bytes(32, "little"))


class UnacceptableKeyError(ValueError):
    """The key is not acceptable. The message never contains private material."""


def generate(rng: Rng) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(rng.bytes(32))


def public_bytes(key: Ed25519PrivateKey | Ed25519PublicKey) -> bytes:
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def fingerprint(public: bytes) -> str:
    """SHA-256 of the raw key, in hexadecimal."""
    return hashlib.sha256(public).hexdigest()


def private_to_pem(key: Ed25519PrivateKey) -> str:
    pkcs8 = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()).decode("ascii")


def private_key_from_pem(pem: str | bytes) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(_bounded(pem), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnacceptableKeyError("expected an unencrypted Ed25519 private key in PEM (PKCS #8)") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UnacceptableKeyError("expected an Ed25519 private key, found another kind of key")
    return key


def public_to_pem(public: bytes) -> str:
    key = Ed25519PublicKey.from_public_bytes(public)
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, info).decode("ascii")


def public_key_from_pem(pem: str | bytes) -> bytes:
    """The 32 raw bytes of an acceptable public key."""
    try:
        key = serialization.load_pem_public_key(_bounded(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnacceptableKeyError("expected an Ed25519 public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UnacceptableKeyError("expected an Ed25519 public key, found another kind of key")
    raw = public_bytes(key)
    check_point(raw)
    return raw


def _bounded(pem: str | bytes) -> bytes:
    data = pem.encode("utf-8", "replace") if isinstance(pem, str) else pem
    if len(data) > MAX_PEM:
        raise UnacceptableKeyError(f"expected a key in PEM of at most {MAX_PEM} bytes, found {len(data)}")
    return data


@functools.lru_cache(maxsize=256)  # checked on arrival and again when it is certified; failures are not cached
def check_point(raw: bytes) -> None:
    """Accept exactly the canonical encodings of points of order L; raise otherwise.

    Every point is the sum of a part of order L (or the neutral element) and a part whose order divides 8. Multiplying by
    `_MINUS_ONE` removes the second part and negates the first. X25519 uses only the u coordinate, which is the same for a
    point and its negative: so u stays the same exactly if there was no second part. That is one multiplication in C
    instead of a millisecond of Python. Half of all y belong to the twist of the curve, whose large prime is another one;
    there u never stays the same.
    """
    if len(raw) != 32:
        raise UnacceptableKeyError(f"expected an Ed25519 public key of 32 bytes, found {len(raw)}")
    y = int.from_bytes(raw, "little") & (1 << 255) - 1
    if y >= _P:
        raise UnacceptableKeyError("the Ed25519 public key is not canonically encoded")
    try:
        u = ((1 + y) * pow(1 - y, -1, _P) % _P).to_bytes(32, "little")
        is_full_order = _MINUS_ONE.exchange(X25519PublicKey.from_public_bytes(u)) == u
    except ValueError:  # y is 1, or the product is the neutral element
        raise UnacceptableKeyError("the Ed25519 public key is a point of small order") from None
    if not is_full_order:
        raise UnacceptableKeyError("the Ed25519 public key is not a point of full order")
