"""AWS Signature Version 4 for requests that carry their body in one piece."""

import hashlib
import hmac
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires: float | None = None  # wall clock; None: they do not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A POST to a service's endpoint."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    service: str
    region: str


def sign(request: Request, credentials: Credentials, *, now: float) -> dict[str, str]:
    """All headers to send: the request's own and those that sign it."""
    url = urllib.parse.urlsplit(request.url)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers |= {"host": url.netloc, "x-amz-date": stamp}
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = sorted(headers)
    canonical = "\n".join(
        [
            "POST",
            urllib.parse.quote(url.path or "/", safe="/-_.~%"),
            url.query,
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    scope = f"{stamp[:8]}/{request.region}/{request.service}/aws4_request"
    text = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return headers
