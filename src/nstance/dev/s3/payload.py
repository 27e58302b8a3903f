"""The body of an upload: unwrapped, and checked against every hash that the client sent.

Clients wrap a body whose checksum they do not know yet in `aws-chunked`: sized chunks, perhaps each with a signature,
and a trailer with the checksum. CRC32C and CRC64NVME are accepted unchecked, because Python has no fast code for them.
"""

import base64
import binascii
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
    """The bytes that are meant. Raises S3Error when they are not what the client hashed or signed."""
    trailers: dict[str, str] = {}
    if signed.payload in _STREAMING:
        signs, trails = _STREAMING[signed.payload]
        body, trailers = _Chunks(body, signed if signs else None, trails).read()
        expected = headers.get("x-amz-decoded-content-length")
        if expected is not None and expected != str(len(body)):
            raise S3Error(400, "IncompleteBody", f"expected {expected} bytes after decoding, found {len(body)}")
    elif signed.payload != UNSIGNED and hashlib.sha256(body).hexdigest() != signed.payload:
        raise S3Error(400, "XAmzContentSHA256Mismatch", "the body does not have the hash that was signed")
    for name, digest in _DIGESTS.items():
        given = trailers.get(name) or headers.get(name)
        if given is not None and given != base64.b64encode(digest(body)).decode():
            raise S3Error(400, "BadDigest", f"the body does not match {name}")
    return body


class _Chunks:
    def __init__(self, body: bytes, signed: Signed | None, trails: bool) -> None:
        self._body = body
        self._at = 0
        self._signed = signed
        self._trails = trails
        self._previous = "" if signed is None else signed.signature

    def read(self) -> tuple[bytes, dict[str, str]]:
        whole = bytearray()
        while chunk := self._chunk():
            whole += chunk
        return bytes(whole), self._trailers() if self._trails else {}

    def _chunk(self) -> bytes:
        size_text, _, extension = self._line().partition(";")
        try:
            size = int(size_text, 16)
        except ValueError:
            raise _broken("a chunk does not start with its size") from None
        chunk = self._body[self._at : self._at + size]
        if size < 0 or len(chunk) != size:
            raise _broken("a chunk is shorter than it says")
        self._at += size
        if size and self._line():
            raise _broken("a chunk is longer than it says")
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

    def _check(self, given: str, kind: str, *hashes: str) -> None:
        assert self._signed is not None
        self._previous = self._signed.chain(kind, self._previous, *hashes)
        if not hmac.compare_digest(given.encode(), self._previous.encode()):
            raise S3Error(403, "SignatureDoesNotMatch", "a chunk of the body does not have the signature it says")

    def _line(self) -> str:
        end = self._body.find(b"\r\n", self._at)
        if end < 0:
            raise _broken("it ends in the middle")
        line = self._body[self._at : end]
        self._at = end + 2
        try:
            return line.decode("ascii")
        except UnicodeDecodeError:
            raise _broken("a line between the chunks is not text") from None


def _broken(why: str) -> S3Error:
    return S3Error(400, "IncompleteBody", f"the aws-chunked body cannot be read: {why}")


def md5_etag(body: bytes) -> str:
    return binascii.hexlify(_DIGESTS["content-md5"](body)).decode()
