"""Presigned URLs with Signature Version 2, which boto3 creates for us-east-1 by default.

The trap: signed headers can be in the URL (`content-type=...`, `x-amz-meta-...=...`) instead of the request. They count as
headers for the signature and for the request.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping

from nstance import clock as clocks
from nstance.dev.s3 import signature
from nstance.dev.s3.errors import S3Error

PARAMETERS = frozenset({"AWSAccessKeyId", "Signature", "Expires", "content-type", "content-md5"})

_SIGNED_PARAMETERS = frozenset(
    (
        *("acl", "cors", "delete", "lifecycle", "location", "logging", "notification", "partNumber", "policy"),
        *("requestPayment", "restore", "tagging", "torrent", "uploadId", "uploads", "versionId", "versioning"),
        *("versions", "website", "response-content-type", "response-content-language", "response-expires"),
        *("response-cache-control", "response-content-disposition", "response-content-encoding"),
    )
)


def is_presigned(query: Mapping[str, str]) -> bool:
    return "AWSAccessKeyId" in query and "Signature" in query


def verify(
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    host_bucket: str,
    credentials: Mapping[str, str],
    clock: clocks.Clock,
) -> signature.Signed:
    """`headers` include those in the URL; `host_bucket` is the bucket in the host name, or empty."""
    _, pairs = signature.split_target(target)
    query = dict(pairs)
    secret = signature.find_secret(query["AWSAccessKeyId"], credentials)
    expires = query.get("Expires", "")
    if not re.fullmatch("[0-9]{1,12}", expires):
        raise S3Error(403, "AccessDenied", "expected Expires in seconds since 1970 in the presigned URL")
    if clock.wall() > int(expires):
        raise S3Error(403, "AccessDenied", "the presigned URL has expired")
    signed = sorted((name, value) for name, value in pairs if name in _SIGNED_PARAMETERS)
    resource = (f"/{host_bucket}" if host_bucket else "") + target.partition("?")[0]
    if resource.count("/") == 1 and resource != "/":
        resource += "/"  # a bucket is signed with the slash, even if requested without
    if signed:
        resource += "?" + "&".join(f"{name}={value}" if value else name for name, value in signed)
    amazon = sorted({name.lower() for name in headers if name.lower().startswith("x-amz-")})
    text = "\n".join(
        [
            method,
            headers.get("content-md5", ""),
            headers.get("content-type", ""),
            expires,
            *(f"{name}:{headers[name].strip()}" for name in amazon),
            resource,
        ]
    )
    digest = hmac.new(secret.encode(), signature.to_bytes(text), hashlib.sha1).digest()
    if not hmac.compare_digest(base64.b64encode(digest), signature.to_bytes(query["Signature"])):
        raise signature.mismatch()
    return signature.Signed(signature.UNSIGNED, b"", "", "", "")
