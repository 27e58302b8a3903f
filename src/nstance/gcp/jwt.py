"""Signs with the key of a service account (RS256)."""

import base64
import json
from collections.abc import Mapping

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa


def sign(claims: Mapping[str, object], private_key: str, *, key_id: str) -> str:
    """A JWT. Raises ValueError for a key that cannot be read."""
    header = {"alg": "RS256", "typ": "JWT", "kid": key_id}
    content = ".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims))
    return f"{content}.{_encode(sign_bytes(content.encode(), private_key))}"


def sign_bytes(content: bytes, private_key: str) -> bytes:
    """Raises ValueError."""
    key = serialization.load_pem_private_key(private_key.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("expected an RSA key")
    return key.sign(content, padding.PKCS1v15(), hashes.SHA256())


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
