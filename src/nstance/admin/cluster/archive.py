"""The file format of a backup: a compressed tar of objects, and last a manifest with their checksums.

It is never unpacked to disk: the names in it are object keys, not paths.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nstance.admin import errors

VERSION = 1
MANIFEST = "nstance-backup.json"
MAX_OBJECT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """The end of a shard's journal."""

    slot: int
    epoch: int
    instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    cluster: str
    created: float
    shards: Mapping[str, ShardState]
    objects: Mapping[str, str]  # key → SHA-256 of its body


class Writer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.objects: dict[str, str] = {}

    def add(self, key: str, body: bytes) -> None:
        self.objects[key] = hashlib.sha256(body).hexdigest()
        self._put(key, body)

    def finish(self, *, cluster: str, created: float, shards: Mapping[str, ShardState]) -> Manifest:
        manifest = Manifest(cluster=cluster, created=created, shards=shards, objects=self.objects)
        self._put(MANIFEST, json.dumps({"v": VERSION, **asdict(manifest)}, sort_keys=True).encode())
        return manifest

    def _put(self, name: str, body: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(body)
        self._tar.addfile(member, io.BytesIO(body))


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """The file appears only if everything was written."""
    draft = path.with_name(f".{path.name}.new")
    try:
        with open(draft, "xb") as raw:
            draft.chmod(0o600)
            with tarfile.open(fileobj=raw, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
                yield Writer(tar)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def bodies(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every object with its key; the manifest comes last."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() and member.size <= MAX_OBJECT_BYTES else None
                if file is None:
                    raise errors.CommandError(
                        f"{path} is not a backup of Nstance: {member.name[:100]!r} is not an object"
                    )
                yield member.name, file.read()
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, OSError, ValueError) as problem:
        raise errors.CommandError(f"failed to read backup {path}: {problem}") from problem


def verify(path: Path) -> Manifest:
    """Reads the file and compares the checksums. Raises CommandError."""
    found: dict[str, str] = {}
    manifest: Manifest | None = None
    for key, body in bodies(path):
        if manifest is not None:
            raise errors.CommandError(f"{path} is damaged: data follows its manifest")
        if key == MANIFEST:
            manifest = _decode(path, body)
        elif key in found:
            raise errors.CommandError(f"{path} is damaged: {key} appears twice")
        else:
            found[key] = hashlib.sha256(body).hexdigest()
    if manifest is None:
        raise errors.CommandError(f"{path} is damaged or truncated: it has no manifest")
    if wrong := sorted(k for k in {*found, *manifest.objects} if found.get(k) != manifest.objects.get(k)):
        raise errors.CommandError(f"{path} is damaged: {wrong[0]} has a wrong checksum ({len(wrong)} such objects)")
    return manifest


def _decode(path: Path, body: bytes) -> Manifest:
    try:
        raw: dict[str, Any] = json.loads(body)
        if raw["v"] != VERSION:
            raise errors.CommandError(
                f"{path} has version {raw['v']}, this program knows version {VERSION}: upgrade it"
            )
        return Manifest(
            cluster=str(raw["cluster"]),
            created=float(raw["created"]),
            shards={str(name): ShardState(**state) for name, state in raw["shards"].items()},
            objects={str(key): str(checksum) for key, checksum in raw["objects"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise errors.CommandError(f"{path} is damaged: its manifest cannot be read: {problem!r}") from problem
