"""ID tokens of an identity provider, verified strictly.

The algorithm must be in a short list of signatures with public keys, and fit the key that the header names: there is no
`none`, no shared secret, and no key that the token brings along. The signature is checked before any claim is read.
"""

import base64
import binascii
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

MAX_TOKEN_LENGTH = 64 * 1024
MAX_KEYS = 64
MIN_RSA_BITS = 2048
LEEWAY_SECONDS = 60.0
RSA_ALGORITHMS = ("RS256", "PS256")
EC_ALGORITHM, ED_ALGORITHM = "ES256", "EdDSA"
ALGORITHMS = (*RSA_ALGORITHMS, EC_ALGORITHM, ED_ALGORITHM)
P256_BYTES = 32
MAX_TIME = 1 << 53

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class InvalidTokenError(Exception):
    """The token is rejected. The message is for the log and for the person who logs in."""


class UnknownKeyError(InvalidTokenError):
    """It is signed with a key that is not known, perhaps a newer one."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    key: PublicKey
    algorithms: tuple[str, ...]  # that it may be used with


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    issuer: str
    client_id: str
    nonce: str
    now: float


def read_keys(document: Any) -> dict[str, SigningKey]:
    """The signing keys of a JWKS by ID. Keys that are not for us are skipped."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InvalidTokenError("expected a JSON object with keys")
    found: dict[str, SigningKey] = {}
    for raw in listed[:MAX_KEYS]:
        try:
            kid = raw["kid"]
            if isinstance(kid, str) and kid and raw.get("use", "sig") == "sig":
                found[kid] = _read_key(raw)
        except (InvalidTokenError, ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm):
            continue
    return found


def _read_key(raw: Mapping[str, Any]) -> SigningKey:
    key: PublicKey
    algorithms: tuple[str, ...]
    match raw["kty"], raw.get("crv"):
        case "RSA", _:
            key, algorithms = rsa.RSAPublicNumbers(_number(raw["e"]), _number(raw["n"])).public_key(), RSA_ALGORITHMS
            if key.key_size < MIN_RSA_BITS:
                raise InvalidTokenError(f"expected an RSA key of at least {MIN_RSA_BITS} bits")
        case "EC", "P-256":
            curve = ec.SECP256R1()
            key = ec.EllipticCurvePublicNumbers(_number(raw["x"]), _number(raw["y"]), curve).public_key()
            algorithms = (EC_ALGORITHM,)
        case "OKP", "Ed25519":
            key, algorithms = ed25519.Ed25519PublicKey.from_public_bytes(_decode(raw["x"])), (ED_ALGORITHM,)
        case _:
            raise InvalidTokenError("not a kind of key that is supported")
    if "alg" in raw:
        algorithms = tuple(each for each in algorithms if each == raw["alg"])
    return SigningKey(key, algorithms)


def verify(token: str, keys: Mapping[str, SigningKey], expected: Expected) -> dict[str, Any]:
    """The claims. Raises InvalidTokenError."""
    parts = token.split(".") if len(token) <= MAX_TOKEN_LENGTH and token.isascii() else []
    if len(parts) != 3:
        raise InvalidTokenError("expected a signed token of three parts")
    header = _object(parts[0], "the header")
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise InvalidTokenError(f"expected a token signed with {', '.join(ALGORITHMS)}, found {str(algorithm)[:32]!r}")
    if "crit" in header or header.get("typ", "JWT") != "JWT":
        raise InvalidTokenError("expected a plain JWT, found extensions that must be understood, or another type")
    if kid is None and len(keys) == 1:  # then a provider may leave it out
        [kid] = keys
    if not isinstance(kid, str) or not kid:
        raise InvalidTokenError("expected the ID of the signing key in the header")
    key = keys.get(kid)
    if key is None:
        raise UnknownKeyError(f"the signing key {kid[:64]!r} is not one of the provider's")
    if algorithm not in key.algorithms:
        raise InvalidTokenError(f"the signing key {kid[:64]!r} is not for {algorithm}")
    _check_signature(key.key, algorithm, _decode(parts[2]), f"{parts[0]}.{parts[1]}".encode())
    claims = _object(parts[1], "the claims")
    _check_claims(claims, expected)
    return claims


def _check_signature(key: PublicKey, algorithm: str, signature: bytes, signed: bytes) -> None:
    try:
        if isinstance(key, rsa.RSAPublicKey):
            scheme: padding.AsymmetricPadding = padding.PKCS1v15()
            if algorithm == "PS256":
                scheme = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size)
            key.verify(signature, signed, scheme, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            if len(signature) != 2 * P256_BYTES:
                raise InvalidSignature
            r, s = signature[:P256_BYTES], signature[P256_BYTES:]
            encoded = encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))
            key.verify(encoded, signed, ec.ECDSA(hashes.SHA256()))
        else:
            key.verify(signature, signed)
    except InvalidSignature:
        raise InvalidTokenError("the signature is wrong") from None


def _check_claims(claims: Mapping[str, Any], expected: Expected) -> None:
    if claims.get("iss") != expected.issuer:
        raise InvalidTokenError(f"expected the issuer {expected.issuer}, found {str(claims.get('iss'))[:200]!r}")
    audience = claims.get("aud")
    audiences: Sequence[Any] = audience if isinstance(audience, list) else [audience]
    if expected.client_id not in audiences:
        raise InvalidTokenError(f"the token is not for the client {expected.client_id}")
    authorized = claims.get("azp")
    if (len(audiences) > 1 or authorized is not None) and authorized != expected.client_id:
        raise InvalidTokenError("the token was issued to another client")
    expires, issued = claims.get("exp"), claims.get("iat")
    times: list[Any] = [each for each in (expires, issued, claims.get("nbf", issued)) if _is_time(each)]
    if len(times) != 3:
        raise InvalidTokenError("expected the times exp and iat")
    if times[0] + LEEWAY_SECONDS <= expected.now:
        raise InvalidTokenError("the token has expired; do the clocks differ?")
    if max(times[1:]) - LEEWAY_SECONDS > expected.now:
        raise InvalidTokenError("the token is of the future; do the clocks differ?")
    nonce = claims.get("nonce")
    if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), expected.nonce.encode()):
        raise InvalidTokenError("the token is not the answer to this login")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise InvalidTokenError("expected a subject")


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_TIME


def _object(part: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(_decode(part), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise InvalidTokenError(f"{what} cannot be read") from None
    if not isinstance(found, dict):
        raise InvalidTokenError(f"{what} cannot be read")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _number(text: str) -> int:
    return int.from_bytes(_decode(text), "big")


def _decode(text: str) -> bytes:
    """Canonical base64url without padding."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        data = b""
    if not data or base64.urlsafe_b64encode(data).rstrip(b"=") != text.encode():
        raise InvalidTokenError("a part is not base64url")
    return data
