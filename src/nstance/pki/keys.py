"""Ed25519 keys: making, spelling and judging them.

A public key is 32 raw bytes everywhere in Nstance; PEM is for files and the wire. The trap: `cryptography` loads any
32 bytes as a public key, also those for which everybody can forge signatures (points of small order) and second
spellings of one point. `check_point` is the only judge, and every key that comes from outside passes it.
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
# Divisible by 8, congruent to -1 modulo L, and of the shape that X25519 leaves alone: see `check_point`.
_MINUS_ONE = X25519PrivateKey.from_private_bytes((5 * _L - 1).to_bytes(32, "little"))


class UnacceptableKeyError(ValueError):
    """The key is not one that we accept. The message never holds private material."""


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


@functools.lru_cache(maxsize=256)  # judged when it arrives and again when it is certified; refusals are not kept
def check_point(raw: bytes) -> None:
    """Accept exactly the canonical encodings of points of order L; raise otherwise.

    Every point is a sum of a part of order L (or the neutral element) and a part whose order divides 8. Multiplying
    with `_MINUS_ONE` removes the second part and turns the first one's sign. X25519 knows a point only by its
    u coordinate, which does not see the sign: so u comes back unchanged exactly if there was no second part. That is
    one multiplication in C instead of a millisecond of Python. Half of all y belong to no point of the curve but to one
    of its twist; there the large prime is another one, and no u comes back unchanged.
    """
    if len(raw) != 32:
        raise UnacceptableKeyError(f"expected an Ed25519 public key of 32 bytes, found {len(raw)}")
    y = int.from_bytes(raw, "little") & (1 << 255) - 1
    if y >= _P:
        raise UnacceptableKeyError("the Ed25519 public key is not canonically encoded")
    try:
        u = ((1 + y) * pow(1 - y, -1, _P) % _P).to_bytes(32, "little")
        same = _MINUS_ONE.exchange(X25519PublicKey.from_public_bytes(u)) == u
    except ValueError:  # y is 1, or the product is the neutral element
        raise UnacceptableKeyError("the Ed25519 public key is a point of small order") from None
    if not same:
        raise UnacceptableKeyError("the Ed25519 public key is not a point of full order")
