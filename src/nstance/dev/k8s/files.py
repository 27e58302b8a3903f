"""Objects as files that people and programs may edit: `{resource}/{namespace}/{name}.json`, or `{resource}/{name}.json`.

The files are the truth. Before an object is read or written through the API its file is looked at, so an edit is never
overwritten by somebody who did not see it; a watcher finds the other edits. What this server wrote itself is told by the
file's inode, size and time, not by its content. The traps: a file is replaced, never written in place, or a watcher would
read half of it; versions must go on after a restart although deletions leave no file, so a mark beyond every version given
out is kept in `.resource-version`.

A kind that is not built in has its group in the folder's name (`widgets.example.com`), as kubectl writes it: two groups may
have a plural in common.
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

_MARK = ".resource-version"
_BLOCK = 1000  # versions per write of the mark
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
        """Reads everything. Raises OSError when the folder cannot be used."""
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seen: dict[Path, Signature] = {}
        self._strange: set[Path] = set()  # of kinds that are not served: a definition may change that
        self._drafts = 0
        kept = {path: read for path in self._paths() if (read := self._read(path)) is not None}
        self._mark = 0
        self._reserve(max([self._read_mark(), *map(_version, kept.values())]))
        self.api = server.Api(clock, rng, version=self._mark - _BLOCK, window=window, sink=self._sink)
        self._load(kept)
        self.api.begin()

    def _load(self, kept: dict[Path, Any]) -> None:
        """Definitions first, as others are of their kinds; then what is whole; then what somebody wrote by hand meanwhile."""
        by_hand = []
        for path in sorted(kept, key=lambda path: (path.parent.name != crd_objects.ID.partition(".")[0], path)):
            body, place = kept[path], self._place(path)
            if place is None:
                continue
            meta = body.get("metadata") if isinstance(body, dict) else None
            if isinstance(meta, dict) and meta.get("uid") and _version(body) and meta.get("name") == place.name:
                self.api.load(self._served(place, body), {**body, "apiVersion": place.resource.stored_as})
            else:
                del self._seen[path]
                by_hand.append(path)
        for path in by_hand:
            self.look(path)

    def path(self, key: Key) -> Path:
        plural, _, group = key.resource.partition(".")
        folder = self.folder / (plural if self.api.registry.built_in(group, plural) else key.resource)
        return (folder / key.namespace if key.namespace else folder) / f"{key.name}.json"

    def look_at(self, served: Served, namespace: str, name: str) -> None:
        """Takes in what somebody may have done to an object's file. What cannot be a name is nobody's file."""
        if any(each.startswith(".") or "/" in each or "\0" in each for each in (namespace, name)):
            return
        self.look(self.path(Key(served.resource.id, namespace if served.resource.namespaced else "", name)))

    def look_everywhere(self) -> None:
        for path in {*self._paths(), *self._seen}:
            self.look(path)

    def look_below(self, path: Path) -> None:
        """A path that something happened to: a file, or a folder with files in it."""
        if path.is_dir():
            for each in path.rglob("*.json"):
                self.look(each)
        else:
            self.look(path)

    def look(self, path: Path) -> None:
        if path.suffix != ".json" or path.name.startswith("."):
            return
        try:
            now = _signature(path)
        except OSError as problem:
            log.warning("file cannot be read", extra={"file": str(path), "problem": str(problem)})
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
        except status.ApiError as refused:
            extra = {"file": str(path), "problem": refused.message}
            log.warning("file is refused, the last good object stays", extra=extra)
            return
        log.info("object changed by hand", extra={"file": str(path), "version": stored["metadata"]["resourceVersion"]})
        key = Key(place.resource.id, place.namespace, place.name)
        kept = self.api.store.get(key)
        if kept is not None and kept != body:  # so that it keeps its uid when it is read again
            self._write(path, kept, over=True)

    def _removed(self, path: Path, place: Place) -> None:
        self._seen.pop(path, None)
        key = Key(place.resource.id, place.namespace, place.name)
        kept = self.api.store.get(key)
        if kept is None:
            return
        log.info("object deleted by hand", extra={"file": str(path)})
        try:
            self.api.delete(self._served(place, kept), place.name, namespace=place.namespace)
        except status.ApiError as refused:
            log.warning("deletion is refused", extra={"file": str(path), "problem": refused.message})
        left = self.api.store.get(key)
        if left is not None and path not in self._seen:
            self._write(path, left)

    def _place(self, path: Path) -> Place | None:
        """What a file holds, by where it lies. None for what is no object of a kind that is served (yet)."""
        parts = path.relative_to(self.folder).parts
        plural, _, group = parts[0].partition(".")
        if group:
            resource = self.api.registry.resource(group, plural)
        else:
            resource = next((each for each in self.api.registry.all() if self._plain(each, plural)), None)
        if resource is None:
            self._strange.add(path)
            log.info("file of an unknown kind is left alone", extra={"file": str(path)})
            return None
        if len(parts) != (3 if resource.namespaced else 2):
            wanted = f"{parts[0]}/{'{namespace}/' if resource.namespaced else ''}{{name}}.json"
            log.warning("file is in the wrong place", extra={"file": str(path), "expected": wanted})
            return None
        return Place(resource, parts[1] if resource.namespaced else "", path.stem)

    def _plain(self, resource: Resource, plural: str) -> bool:
        return resource.plural == plural and self.api.registry.built_in(resource.group, plural)

    def _served(self, place: Place, body: Any) -> Served:
        """At the version that the file says, or the one objects are kept in."""
        said = body.get("apiVersion") if isinstance(body, dict) else None
        wanted = said or place.resource.stored_as
        versions = place.resource.versions
        found = next((each for each in versions if Served(place.resource, each).api_version == wanted), versions[0])
        return Served(place.resource, found)

    def _paths(self) -> Iterator[Path]:
        for path in self.folder.rglob("*.json"):
            if not path.name.startswith("."):
                yield path

    def _read(self, path: Path) -> Any:
        """None when it is gone or broken, which is said; what it was is remembered, so that it is said once."""
        try:
            signature, raw = _signature(path), path.read_bytes()
        except OSError as problem:
            log.warning("file cannot be read", extra={"file": str(path), "problem": str(problem)})
            return None
        if signature is None:
            return None
        self._seen[path] = signature
        try:
            return json.loads(raw)
        except json.JSONDecodeError as fault:
            extra = {"file": str(path), "line": fault.lineno, "column": fault.colno, "problem": fault.msg}
            log.warning("file is no JSON, the last good object stays", extra=extra)
        except (ValueError, RecursionError) as fault:
            log.warning("file is no JSON, the last good object stays", extra={"file": str(path), "problem": str(fault)})
        return None

    def _sink(self, key: Key, body: Object | None) -> None:
        if self.api.store.version + 1 >= self._mark:
            self._reserve(self.api.store.version + 1)
        if key.resource == crd_objects.ID:
            for path in self._strange:
                self._seen.pop(path, None)
            self._strange.clear()
        path = self.path(key)
        if body is None:
            path.unlink(missing_ok=True)
            self._seen.pop(path, None)
        else:
            self._write(path, body, over=path in self._seen)

    def _write(self, path: Path, body: Object, *, over: bool = False) -> None:
        """`over`: only over the file that was read. One that somebody removed or changed meanwhile is looked at next; it
        must not come back because we had something to add to it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = self._replace(
            path, json.dumps(body, indent=2, ensure_ascii=False) + "\n", over=self._seen.get(path) if over else None
        )
        if written is not None:
            self._seen[path] = written

    def _replace(self, path: Path, text: str, *, over: Signature | None = None) -> Signature | None:
        """What the new file is known by. Asked before it is in place: afterwards it might be somebody else's. None: the
        file is no longer the one it should have replaced."""
        self._drafts += 1
        draft = path.parent / f".draft-{os.getpid()}-{self._drafts}"
        try:
            draft.write_text(text)
            signature = _signature(draft)
            if over is not None and _signature(path) != over:
                return None
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        assert signature is not None
        return signature

    def _read_mark(self) -> int:
        try:
            text = (self.folder / _MARK).read_text().strip()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdecimal() else 0

    def _reserve(self, version: int) -> None:
        self._mark = version + _BLOCK
        self._replace(self.folder / _MARK, f"{self._mark}\n")


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
