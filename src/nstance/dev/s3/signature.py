"""Verifies AWS Signature Version 4, in a header or in a presigned URL.

The signature covers the raw request line: a path that a library has decoded and encoded again does not verify. The trap: S3
encodes a path once, other AWS services twice.
"""

import calendar
import hashlib
import hmac
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

from nstance import clock as clocks
from nstance.dev.s3.errors import S3Error

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW_SECONDS = 15 * 60
MAX_PRESIGNED_SECONDS = 7 * 24 * 3600
UNSIGNED = "UNSIGNED-PAYLOAD"

_AUTHORIZATION = re.compile(
    rf"{ALGORITHM}\s+Credential=(?P<credential>[^,\s]+)\s*,\s*SignedHeaders=(?P<signed>[^,\s]+)\s*,\s*"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class _Claim:
    """The unverified claims of a request."""

    credential: str
    signed: str
    signature: str
    stamp: str
    payload: str
    query: list[tuple[str, str]]
    lifetime: int | None  # of a presigned URL


def split_target(target: str) -> tuple[str, list[tuple[str, str]]]:
    """The decoded path and query of a raw request target. A plus sign is a space only in the query.

    Bytes that are not UTF-8 are preserved: with replacement characters the path would be another key.
    """
    path, _, query = target.partition("?")
    pairs = [part.partition("=") for part in query.split("&") if part]
    decode = urllib.parse.unquote_plus
    return urllib.parse.unquote(path, errors="surrogateescape"), [
        (decode(name), decode(value)) for name, _, value in pairs
    ]


def verify(
    method: str, target: str, headers: Mapping[str, str], *, credentials: Mapping[str, str], clock: clocks.Clock
) -> str:
    """The x-amz-content-sha256 that was signed. `headers` must be case-insensitive; `credentials` maps access keys to secret
    keys. Raises S3Error."""
    path, query = split_target(target)
    claim = _presigned(query) if any(name == "X-Amz-Signature" for name, _ in query) else _in_header(headers, query)
    access_key, _, scope = claim.credential.partition("/")
    date, _, rest = scope.partition("/")
    region, _, service = rest.partition("/")
    if service != "s3/aws4_request" or claim.stamp[:8] != date:
        raise S3Error(
            400, "AuthorizationHeaderMalformed", f"the credential scope {scope!r} is not date/region/s3/aws4_request"
        )
    secret = credentials.get(access_key)
    if secret is None:
        raise S3Error(403, "InvalidAccessKeyId", "unknown access key; expected dev, with the secret dev")
    _check_time(claim, clock.wall())
    names = claim.signed.split(";")
    if "host" not in names:
        raise S3Error(403, "AccessDenied", "the header host must be signed")
    canonical = "\n".join(
        [
            method,
            _encode(path, safe="/"),
            # Sorted as pairs, so that a name precedes longer names that start with it.
            "&".join("=".join(pair) for pair in sorted((_encode(name), _encode(value)) for name, value in claim.query)),
            *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names),
            "",
            claim.signed,
            claim.payload,
        ]
    )
    text = "\n".join([ALGORITHM, claim.stamp, scope, hashlib.sha256(_to_bytes(canonical)).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, _to_bytes(part), hashlib.sha256).digest()
    expected = hmac.new(key, _to_bytes(text), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), _to_bytes(claim.signature)):
        message = "the signature does not match the request; check the secret key"
        raise S3Error(403, "SignatureDoesNotMatch", message)
    return claim.payload


def _in_header(headers: Mapping[str, str], query: list[tuple[str, str]]) -> _Claim:
    authorization = headers.get("authorization")
    if authorization is None:
        raise S3Error(403, "AccessDenied", "the request is not signed; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    match = _AUTHORIZATION.fullmatch(authorization)
    if match is None:
        raise S3Error(400, "AuthorizationHeaderMalformed", f"expected an {ALGORITHM} authorization header")
    stamp = headers.get("x-amz-date", "")
    payload = headers.get("x-amz-content-sha256")
    if payload is None:
        raise S3Error(400, "InvalidRequest", "the header x-amz-content-sha256 is missing")
    return _Claim(match["credential"], match["signed"], match["signature"], stamp, payload, query, None)


def _presigned(query: list[tuple[str, str]]) -> _Claim:
    parameters = dict(query)
    try:
        if parameters["X-Amz-Algorithm"] != ALGORITHM:
            raise ValueError
        lifetime = int(parameters["X-Amz-Expires"])
        if not 1 <= lifetime <= MAX_PRESIGNED_SECONDS:
            raise ValueError
        return _Claim(
            credential=parameters["X-Amz-Credential"],
            signed=parameters["X-Amz-SignedHeaders"],
            signature=parameters["X-Amz-Signature"],
            stamp=parameters["X-Amz-Date"],
            payload=parameters.get("X-Amz-Content-Sha256", UNSIGNED),
            query=[(name, value) for name, value in query if name != "X-Amz-Signature"],
            lifetime=lifetime,
        )
    except (KeyError, ValueError):
        message = (
            "a presigned URL needs X-Amz-Algorithm, -Credential, -Date, -Expires (1 s to 7 days) and -SignedHeaders"
        )
        raise S3Error(400, "AuthorizationQueryParametersError", message) from None


def _check_time(claim: _Claim, now: float) -> None:
    try:
        signed_at = calendar.timegm(time.strptime(claim.stamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise S3Error(403, "AccessDenied", f"the date {claim.stamp!r} is not in the form 20260102T030405Z") from None
    if claim.lifetime is None:
        if abs(now - signed_at) > MAX_SKEW_SECONDS:
            raise S3Error(403, "RequestTimeTooSkewed", f"the clocks differ by {abs(now - signed_at):.0f} s; set them")
    elif now > signed_at + claim.lifetime or signed_at > now + MAX_SKEW_SECONDS:
        raise S3Error(403, "AccessDenied", "the presigned URL has expired")


def _to_bytes(text: str) -> bytes:
    """The bytes as they were sent: aiohttp keeps bytes that are not UTF-8 as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def _encode(text: str, *, safe: str = "") -> str:
    return urllib.parse.quote(_to_bytes(text), safe=safe + "-_.~")
