"""Headers that a client stores with an object and wants back: its content type, its own metadata.

Files have no place for them, so they lie in the bucket's hidden folder, and say which version of the object they belong
to: an object that was written since, or edited by hand, does not get those of another. The trap: they are written after
the object, so a reader may come between, and of two writers at once the earlier may win here.
"""

import hashlib
import json
import mimetypes
import os
import pathlib
from collections.abc import Mapping

from nstance import clock as clocks
from nstance.dev.s3.errors import invalid
from nstance.objects import directory

MOST_METADATA = 2048  # bytes, as on S3

_STANDARD = ("content-type", "content-encoding", "content-disposition", "content-language", "cache-control", "expires")
_OWN = "x-amz-meta-"


class Kept:
    def __init__(self, bucket: pathlib.Path, rng: clocks.Rng) -> None:
        self._folder = bucket / directory.HIDDEN / "headers"
        self._rng = rng

    def write(self, key: str, version: str, headers: Mapping[str, str]) -> None:
        if not headers:
            return  # what is there belongs to another version
        self._folder.mkdir(exist_ok=True)
        temporary = self._folder / f"{self._rng.bits(64):016x}"
        temporary.write_text(json.dumps({"key": key, "version": version, "headers": dict(headers)}))
        os.replace(temporary, self._path(key))

    def read(self, key: str, version: str) -> dict[str, str]:
        try:
            found = json.loads(self._path(key).read_text())
        except (FileNotFoundError, ValueError):  # the latter after a power cut: an object stays readable without them
            return {}
        return dict(found["headers"]) if found["version"] == version else {}

    def forget(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> pathlib.Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()


def wanted(key: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a request that are to be kept. Raises S3Error."""
    found = {
        name.lower(): value
        for name, value in headers.items()
        if name.lower() in _STANDARD or name.lower().startswith(_OWN)
    }
    encodings = [part.strip() for part in found.pop("content-encoding", "").split(",")]
    if encoding := ", ".join(part for part in encodings if part not in ("", "aws-chunked")):  # that one is unwrapped
        found["content-encoding"] = encoding
    if found.get("content-type") == guessed(key):
        del found["content-type"]
    for name, value in found.items():
        sendable(name, value)
    own = sum(len(name) - len(_OWN) + len(value.encode()) for name, value in found.items() if name.startswith(_OWN))
    if own > MOST_METADATA:
        raise invalid(f"an object may have {MOST_METADATA} bytes of metadata")
    return found


def sendable(name: str, value: str) -> str:
    """The value, which is to go out as a header. Raises S3Error when it cannot."""
    if not (name + value).isprintable():
        raise invalid(f"the value of {name[:80]!r} has characters that a header cannot carry")
    return value


def guessed(key: str) -> str:
    return mimetypes.guess_type(key)[0] or "binary/octet-stream"
