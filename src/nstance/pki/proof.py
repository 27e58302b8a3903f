"""Proof that a caller holds the private key of the public key that it presents.

Each message starts with its purpose and names the cluster, so that a signature is valid for one use only. No part can
contain the separator.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from nstance.model.ids import ClusterId


class InvalidProofError(ValueError):
    """The caller has not shown that it holds the key."""


def prove_registration(key: Ed25519PrivateKey, *, cluster: ClusterId, nonce: str) -> bytes:
    return key.sign(_message("nstance-register-v1", cluster, nonce))


def check_registration(proof: bytes, *, public_key: bytes, cluster: ClusterId, nonce: str) -> None:
    """`public_key` must have passed `keys.check_point`."""
    _check(proof, public_key, _message("nstance-register-v1", cluster, nonce))


def prove_renewal(key: Ed25519PrivateKey, *, cluster: ClusterId, id: str) -> bytes:
    """`id`: the instance's or operator's."""
    return key.sign(_message("nstance-renew-v1", cluster, id))


def check_renewal(proof: bytes, *, public_key: bytes, cluster: ClusterId, id: str) -> None:
    _check(proof, public_key, _message("nstance-renew-v1", cluster, id))


def _message(purpose: str, cluster: ClusterId, subject: str) -> bytes:
    if "\0" in cluster or "\0" in subject:
        raise InvalidProofError("a part of the signed message contains NUL")
    return f"{purpose}\0{cluster}\0{subject}".encode()


def _check(proof: bytes, public_key: bytes, message: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(proof, message)
    except InvalidSignature:
        raise InvalidProofError("the signature does not fit the key, the cluster or what was signed") from None
