"""Objects as files that people and programs may edit: `{resource}/{namespace}/{name}.json`, or `{resource}/{name}.json`.

The files are the source of truth. An object's file is checked before the object is read or written through the API, so an
edit is never overwritten unseen; a watcher finds other edits. Files that this server wrote are recognized by inode, size
and time. The traps: a file is replaced, never written in place, or a watcher would read half of it; versions must continue
after a restart although deletions leave no file, so `.resource-version` holds a number above all used versions.

The folder of a kind that is not built in includes its group (`widgets.example.com`), because two groups may share a plural.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nstance import clock as clocks
from nstance.kube.api import crd_objects, server, status
from nstance.kube.api.resources import Resource, Served
from nstance.kube.api.store import Key
from nstance.kube.port import Object

log = logging.getLogger(__name__)

_VERSION_FILE = ".resource-version"
_VERSION_BLOCK = 1000  # versions that are reserved by one write
Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    resource: Resource
    namespace: str
    name: str


class Files:
    def __init__(
        self, folder: Path, clock: clocks.Clock, rng: clocks.Rng, *, window: int = server.WATCH_WINDOW
    ) -> None:
        """Reads all files. Raises OSError if the folder cannot be used."""
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seen: dict[Path, Signature] = {}
        self._unknown: set[Path] = set()  # files of kinds that are not served; a CRD may change that
        self._drafts = 0
        bodies = {path: body for path in self._paths() if (body := self._read(path)) is not None}
        self._reserved = 0
        self._reserve(max([self._read_reserved(), *map(_version, bodies.values())]))
        self.api = server.Api(clock, rng, version=self._reserved - _VERSION_BLOCK, window=window, sink=self._sink)
        self._load(bodies)
        self.api.begin()

    def _load(self, bodies: dict[Path, Any]) -> None:
        """Loads definitions first, then complete objects, then files that were written by hand."""
        by_hand = []
        for path in sorted(bodies, key=lambda path: (path.parent.name != crd_objects.ID.partition(".")[0], path)):
            body, place = bodies[path], self._place(path)
            if place is None:
                continue
            meta = body.get("metadata") if isinstance(body, dict) else None
            if isinstance(meta, dict) and meta.get("uid") and _version(body) and meta.get("name") == place.name:
                self.api.load(self._served(place, body), {**body, "apiVersion": place.resource.stored_as})
            else:
                del self._seen[path]
                by_hand.append(path)
        for path in by_hand:
            self.check(path)

    def path(self, key: Key) -> Path:
        plural, _, group = key.resource.partition(".")
        folder = self.folder / (plural if self.api.registry.built_in(group, plural) else key.resource)
        return (folder / key.namespace if key.namespace else folder) / f"{key.name}.json"

    def check_object(self, served: Served, namespace: str, name: str) -> None:
        """Applies edits of an object's file. An invalid name has no file."""
        if any(each.startswith(".") or "/" in each or "\0" in each for each in (namespace, name)):
            return
        self.check(self.path(Key(served.resource.id, namespace if served.resource.namespaced else "", name)))

    def check_all(self) -> None:
        for path in {*self._paths(), *self._seen}:
            self.check(path)

    def check_below(self, path: Path) -> None:
        """Checks a changed path: a file, or a folder with files."""
        if path.is_dir():
            for each in path.rglob("*.json"):
                self.check(each)
        else:
            self.check(path)

    def check(self, path: Path) -> None:
        if path.suffix != ".json" or path.name.startswith("."):
            return
        try:
            now = _signature(path)
        except OSError as problem:
            log.warning("failed to read file", extra={"file": str(path), "problem": str(problem)})
            return
        if now == self._seen.get(path):
            return
        place = self._place(path)
        if place is None:
            if now is not None:
                self._seen[path] = now
            return
        if now is None:
            self._removed(path, place)
        else:
            self._edited(path, place)

    def _edited(self, path: Path, place: Place) -> None:
        body = self._read(path)
        if body is None:
            return
        served = self._served(place, body)
        try:
            stored = self.api.adopt(served, place.name, body, namespace=place.namespace)
        except status.ApiError as error:
            extra = {"file": str(path), "problem": error.message}
            log.warning("failed to apply file, the last valid object stays", extra=extra)
            return
        log.info("object edited by hand", extra={"file": str(path), "version": stored["metadata"]["resourceVersion"]})
        key = Key(place.resource.id, place.namespace, place.name)
        current = self.api.store.get(key)
        if current is not None and current != body:  # so that it keeps its uid
            self._write(path, current, only_known=True)

    def _removed(self, path: Path, place: Place) -> None:
        self._seen.pop(path, None)
        key = Key(place.resource.id, place.namespace, place.name)
        current = self.api.store.get(key)
        if current is None:
            return
        log.info("object deleted by hand", extra={"file": str(path)})
        try:
            self.api.delete(server.Target(self._served(place, current), place.name, place.namespace))
        except status.ApiError as error:
            log.warning("failed to delete object", extra={"file": str(path), "problem": error.message})
        remaining = self.api.store.get(key)
        if remaining is not None and path not in self._seen:
            self._write(path, remaining)

    def _place(self, path: Path) -> Place | None:
        """The object that a path stands for. None if its kind is not served (yet)."""
        parts = path.relative_to(self.folder).parts
        plural, _, group = parts[0].partition(".")
        if group:
            resource = self.api.registry.resource(group, plural)
        else:
            resource = next((each for each in self.api.registry.all() if self._plain(each, plural)), None)
        if resource is None:
            self._unknown.add(path)
            log.info("file of an unknown kind ignored", extra={"file": str(path)})
            return None
        if len(parts) != (3 if resource.namespaced else 2):
            expected = f"{parts[0]}/{'{namespace}/' if resource.namespaced else ''}{{name}}.json"
            log.warning("file in the wrong folder ignored", extra={"file": str(path), "expected": expected})
            return None
        return Place(resource, parts[1] if resource.namespaced else "", path.stem)

    def _plain(self, resource: Resource, plural: str) -> bool:
        return resource.plural == plural and self.api.registry.built_in(resource.group, plural)

    def _served(self, place: Place, body: Any) -> Served:
        """In the version of the file, or else the stored version."""
        own = body.get("apiVersion") if isinstance(body, dict) else None
        wanted = own or place.resource.stored_as
        versions = place.resource.versions
        found = next((each for each in versions if Served(place.resource, each).api_version == wanted), versions[0])
        return Served(place.resource, found)

    def _paths(self) -> Iterator[Path]:
        for path in self.folder.rglob("*.json"):
            if not path.name.startswith("."):
                yield path

    def _read(self, path: Path) -> Any:
        """None if it is gone or invalid. A problem is logged once for each version of the file."""
        try:
            signature, raw = _signature(path), path.read_bytes()
        except OSError as problem:
            log.warning("failed to read file", extra={"file": str(path), "problem": str(problem)})
            return None
        if signature is None:
            return None
        self._seen[path] = signature
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            place = {"line": error.lineno, "column": error.colno} if isinstance(error, json.JSONDecodeError) else {}
            extra = {"file": str(path), "problem": str(error), **place}
            log.warning("failed to parse file, the last valid object stays", extra=extra)
        return None

    def _sink(self, key: Key, body: Object | None) -> None:
        if self.api.store.version + 1 >= self._reserved:
            self._reserve(self.api.store.version + 1)
        if key.resource == crd_objects.ID:
            for path in self._unknown:
                self._seen.pop(path, None)
            self._unknown.clear()
        path = self.path(key)
        if body is None:
            path.unlink(missing_ok=True)
            self._seen.pop(path, None)
        else:
            self._write(path, body, only_known=path in self._seen)

    def _write(self, path: Path, body: Object, *, only_known: bool = False) -> None:
        """`only_known`: write only over the file that was read. A file that was removed or edited since is checked next
        and must not be restored."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = self._replace(
            path,
            json.dumps(body, indent=2, ensure_ascii=False) + "\n",
            expected=self._seen.get(path) if only_known else None,
        )
        if written is not None:
            self._seen[path] = written

    def _replace(self, path: Path, text: str, *, expected: Signature | None = None) -> Signature | None:
        """The signature of the new file, taken before the rename, because afterwards it may be another file. None: the
        file to replace is not the expected one."""
        self._drafts += 1
        draft = path.parent / f".draft-{os.getpid()}-{self._drafts}"
        try:
            draft.write_text(text)
            signature = _signature(draft)
            if expected is not None and _signature(path) != expected:
                return None
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        assert signature is not None
        return signature

    def _read_reserved(self) -> int:
        try:
            text = (self.folder / _VERSION_FILE).read_text().strip()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdecimal() else 0

    def _reserve(self, version: int) -> None:
        self._reserved = version + _VERSION_BLOCK
        self._replace(self.folder / _VERSION_FILE, f"{self._reserved}\n")


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _version(body: Any) -> int:
    meta = body.get("metadata") if isinstance(body, dict) else None
    text = str(meta.get("resourceVersion", "")) if isinstance(meta, dict) else ""
    return int(text) if text.isdecimal() else 0
