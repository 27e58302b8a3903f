"""Headers that are stored with an object: content type and user metadata.

They are in the bucket's hidden folder, with the version of their object, so that an object that was written or edited since
does not get old headers. The trap: they are written after the object, so a reader may not see them yet, and of two
concurrent writers the first may win.
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

MAX_METADATA_BYTES = 2048  # as on S3

_STANDARD = ("content-type", "content-encoding", "content-disposition", "content-language", "cache-control", "expires")
_USER_METADATA = "x-amz-meta-"


class ObjectHeaders:
    def __init__(self, bucket: pathlib.Path, rng: clocks.Rng) -> None:
        self._folder = bucket / directory.HIDDEN / "headers"
        self._rng = rng

    def write(self, key: str, version: str, headers: Mapping[str, str]) -> None:
        if not headers:
            return  # the stored ones belong to another version
        self._folder.mkdir(exist_ok=True)
        temporary = self._folder / f"{self._rng.bits(64):016x}"
        temporary.write_text(json.dumps({"key": key, "version": version, "headers": dict(headers)}))
        os.replace(temporary, self._path(key))

    def read(self, key: str, version: str) -> dict[str, str]:
        try:
            found = json.loads(self._path(key).read_text())
        except (FileNotFoundError, ValueError):  # invalid after a power failure; the object stays readable
            return {}
        return dict(found["headers"]) if found["version"] == version else {}

    def forget(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> pathlib.Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()


def storable_headers(key: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request to store. Raises S3Error."""
    found = {
        name.lower(): value
        for name, value in headers.items()
        if name.lower() in _STANDARD or name.lower().startswith(_USER_METADATA)
    }
    encodings = [part.strip() for part in found.pop("content-encoding", "").split(",")]
    if encoding := ", ".join(part for part in encodings if part not in ("", "aws-chunked")):  # which is decoded
        found["content-encoding"] = encoding
    if found.get("content-type") == guess_type(key):
        del found["content-type"]
    for name, value in found.items():
        check_header(name, value)
    size = sum(
        len(name) - len(_USER_METADATA) + len(value.encode())
        for name, value in found.items()
        if name.startswith(_USER_METADATA)
    )
    if size > MAX_METADATA_BYTES:
        raise invalid(f"expected at most {MAX_METADATA_BYTES} bytes of metadata")
    return found


def check_header(name: str, value: str) -> str:
    """The value. Raises S3Error if it cannot be sent as a header."""
    if not (name + value).isprintable():
        raise invalid(f"the value of {name[:80]!r} has characters that are not allowed in a header")
    return value


def guess_type(key: str) -> str:
    return mimetypes.guess_type(key)[0] or "binary/octet-stream"
