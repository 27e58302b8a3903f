"""The body of an upload: decoded, and checked against all hashes of the client.

Clients that do not know the checksum in advance send `aws-chunked`: chunks with sizes, perhaps with signatures, and a
trailer with the checksum. CRC32C and CRC64NVME are accepted unchecked, because Python has no fast code for them.
"""

import base64
import hashlib
import hmac
import zlib
from collections.abc import Callable, Mapping

from nstance.dev.s3.errors import S3Error
from nstance.dev.s3.signature import UNSIGNED, Signed

_EMPTY = hashlib.sha256(b"").hexdigest()
_STREAMING = {  # name: (are chunks signed, is there a trailer)
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": (True, False),
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": (True, True),
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER": (False, True),
}
_DIGESTS: Mapping[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}


def unwrap(body: bytes, headers: Mapping[str, str], signed: Signed) -> bytes:
    """The decoded body. Raises S3Error if a hash or a signature does not match."""
    trailers: dict[str, str] = {}
    if signed.payload in _STREAMING:
        has_signatures, has_trailer = _STREAMING[signed.payload]
        body, trailers = _Chunks(body, signed if has_signatures else None, has_trailer).read()
        expected = headers.get("x-amz-decoded-content-length")
        if expected is not None and expected != str(len(body)):
            raise S3Error(400, "IncompleteBody", f"expected {expected} bytes after decoding, found {len(body)}")
    elif signed.payload != UNSIGNED and hashlib.sha256(body).hexdigest() != signed.payload:
        raise S3Error(400, "XAmzContentSHA256Mismatch", "the body does not have the hash that was signed")
    for name, digest in _DIGESTS.items():
        sent = trailers.get(name) or headers.get(name)
        if sent is not None and sent != base64.b64encode(digest(body)).decode():
            raise S3Error(400, "BadDigest", f"the body does not match {name}")
    return body


class _Chunks:
    def __init__(self, body: bytes, signed: Signed | None, has_trailer: bool) -> None:
        self._body = body
        self._at = 0
        self._signed = signed
        self._has_trailer = has_trailer
        self._previous = "" if signed is None else signed.signature

    def read(self) -> tuple[bytes, dict[str, str]]:
        body = bytearray()
        while chunk := self._chunk():
            body += chunk
        return bytes(body), self._trailers() if self._has_trailer else {}

    def _chunk(self) -> bytes:
        size_text, _, extension = self._line().partition(";")
        try:
            size = int(size_text, 16)
        except ValueError:
            raise _broken("a chunk does not start with its size") from None
        chunk = self._body[self._at : self._at + size]
        if size < 0 or len(chunk) != size:
            raise _broken("a chunk is shorter than its size")
        self._at += size
        if size and self._line():
            raise _broken("a chunk is longer than its size")
        if self._signed is not None:
            self._check(
                extension.removeprefix("chunk-signature="), "PAYLOAD", _EMPTY, hashlib.sha256(chunk).hexdigest()
            )
        return chunk

    def _trailers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self._at < len(self._body) and (line := self._line()):
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        signature = found.pop("x-amz-trailer-signature", "")
        if self._signed is not None:
            text = "".join(f"{name}:{value}\n" for name, value in sorted(found.items()))
            self._check(signature, "TRAILER", hashlib.sha256(text.encode()).hexdigest())
        return found

    def _check(self, signature: str, kind: str, *hashes: str) -> None:
        assert self._signed is not None
        self._previous = self._signed.chain(kind, self._previous, *hashes)
        if not hmac.compare_digest(signature.encode(), self._previous.encode()):
            raise S3Error(403, "SignatureDoesNotMatch", "a chunk of the body has a wrong signature")

    def _line(self) -> str:
        end = self._body.find(b"\r\n", self._at)
        if end < 0:
            raise _broken("it is incomplete")
        line = self._body[self._at : end]
        self._at = end + 2
        try:
            return line.decode("ascii")
        except UnicodeDecodeError:
            raise _broken("a line between the chunks is not text") from None


def _broken(why: str) -> S3Error:
    return S3Error(400, "IncompleteBody", f"the aws-chunked body is invalid: {why}")
