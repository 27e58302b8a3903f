"""Checks the body of an upload against all hashes of the client.

CRC32C and CRC64NVME are accepted unchecked, because Python has no fast code for them. The chunks of `aws-chunked` are
rejected: clients that know the body, and all of AWS's own ones without TLS, send it as it is.
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping

from nstance.dev.s3.errors import S3Error, not_implemented
from nstance.dev.s3.signature import UNSIGNED

_DIGESTS: Mapping[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}


def check(body: bytes, headers: Mapping[str, str], signed: str) -> None:
    """`signed`: the x-amz-content-sha256 of the signature. Raises S3Error if a hash does not match."""
    if signed.startswith("STREAMING-"):
        raise not_implemented("a body in chunks (aws-chunked)")
    if signed != UNSIGNED and hashlib.sha256(body).hexdigest() != signed:
        raise S3Error(400, "XAmzContentSHA256Mismatch", "the body does not have the hash that was signed")
    for name, digest in _DIGESTS.items():
        sent = headers.get(name)
        if sent is not None and sent != base64.b64encode(digest(body)).decode():
            raise S3Error(400, "BadDigest", f"the body does not match {name}")
