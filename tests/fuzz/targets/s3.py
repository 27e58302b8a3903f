"""Requests to the development S3 server: raw HTTP with two kinds of line ends, signed where a key is named."""

import asyncio
import functools
import hashlib
import hmac
import tempfile
import urllib.parse
from pathlib import Path
from xml.etree import ElementTree

from fuzz import http_wire
from fuzz.http_wire import StillClock
from fuzz.law import CLOSING, Broken, target
from nstance.dev.s3 import signature
from nstance.dev.s3.bucket import Bucket
from nstance.dev.s3.service import Service
from nstance.sim.rng import SeededRng

SCOPE = "20250615/us-east-1/s3/aws4_request"
STAMP = "20250615T150640Z"
SIGN = b"Authorization: dev"  # stands for a signature that fits
WORDS = (
    *(
        b"GET /dev/",
        b"PUT /dev/",
        b"POST /dev/a?uploads",
        b"?list-type=2&max-keys=",
        b"&continuation-token=",
        b"uploadId=",
    ),
    *(b"\nRange: bytes=", b"\nIf-Match: ", b"\nIf-None-Match: *", b"%2e%2e%2f", b"%00", SIGN),
    *(
        b"<!ENTITY a '",
        b"&a;",
        b"<Part>",
        b"<Delete>",
    ),
)


class _World:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "bucket").mkdir()
        (self.root / "bucket" / "a").write_bytes(b"0123456789")
        self.runner = asyncio.Runner()
        self.bucket = Bucket("dev", self.root / "bucket", clock=StillClock(), rng=SeededRng("fuzz"))
        self.service = Service({"dev": self.bucket}, clock=StillClock())

    def close(self) -> None:
        self.runner.run(self.bucket.close())
        self.runner.close()
        self.folder.cleanup()


@functools.cache
def _world() -> _World:
    made = _World()
    CLOSING.append(made.close)
    CLOSING.append(_world.cache_clear)
    return made


@target("s3-request", words=WORDS)
def request(data: bytes) -> None:
    world = _world()
    head, body = http_wire.framed(data)
    response = world.runner.run(http_wire.send(world.service.handle, _signed(head), body))
    if response.startswith(b"HTTP/1.1 500"):
        raise Broken(f"a refusal that is our own fault: {response[:300]!r}")
    answer = response.partition(b"\r\n\r\n")[2]
    if answer.startswith(b"<?xml"):
        ElementTree.fromstring(answer)
    if sorted(path.name for path in world.root.iterdir()) != ["bucket"]:
        raise Broken("a file outside of the bucket")


def _signed(head: bytes) -> bytes:
    if SIGN not in head:
        return head
    lines = head.split(b"\r\n")
    try:
        method, raw_target, _ = lines[0].decode("ascii").split(" ")
        path, query = signature.split_target(raw_target)
        host = _values(lines, b"host:")[0]
    except (ValueError, IndexError):
        return head
    hashes = _values(lines, b"x-amz-content-sha256:")
    payload = hashes[0] if hashes else "UNSIGNED-PAYLOAD"
    quote = functools.partial(urllib.parse.quote, safe="-_.~")
    canonical = "\n".join(
        [
            method,
            urllib.parse.quote(path, safe="/-_.~", errors="replace"),
            "&".join(
                sorted(f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in query)
            ),
            f"host:{host}",
            "",
            "host",
            payload,
        ]
    )
    key = b"AWS4dev"
    for part in SCOPE.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "\n".join(
        [signature.ALGORITHM, STAMP, SCOPE, hashlib.sha256(canonical.encode("utf-8", "replace")).hexdigest()]
    )
    made = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    line = f"Authorization: {signature.ALGORITHM} Credential=dev/{SCOPE}, SignedHeaders=host, Signature={made}".encode()
    added = [] if hashes else [b"x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    kept = [line if each.startswith(SIGN) else each for each in lines[1:-2]]
    return b"\r\n".join([lines[0], *kept, *added, b"x-amz-date: " + STAMP.encode(), b"", b""])


def _values(lines: list[bytes], name: bytes) -> list[str]:
    return [line[len(name) :].strip().decode("latin-1") for line in lines if line.lower().startswith(name)]
