"""Opaque tokens: of service accounts, and for the next page of a list."""

import base64
import binascii
import json
from collections.abc import Sequence

from nstance.kube.api import status
from nstance.kube.port import Object


def unsigned_token(account: Object, *, now: int, seconds: int, audiences: Sequence[str], uid: str) -> tuple[str, float]:
    """A well-formed, unsigned token of a service account, and its expiry."""
    meta = account["metadata"]
    claims = {
        "iss": "dev-k8s",
        "sub": f"system:serviceaccount:{meta['namespace']}:{meta['name']}",
        "aud": list(audiences) or ["dev-k8s"],
        "iat": now,
        "nbf": now,
        "exp": now + seconds,
        "jti": uid,
        "kubernetes.io": {"namespace": meta["namespace"], "serviceaccount": {"name": meta["name"], "uid": meta["uid"]}},
    }
    parts = [json.dumps(each, separators=(",", ":")).encode() for each in ({"alg": "none", "typ": "JWT"}, claims)]
    texts = [base64.urlsafe_b64encode(each).decode().rstrip("=") for each in (*parts, b"unsigned")]
    return ".".join(texts), float(now + seconds)


def encode_continue(version: int, after: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *after]).encode()).decode()


def decode_continue(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(version), (str(namespace), str(name))
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
        raise status.bad_request("continue key is not valid") from None
