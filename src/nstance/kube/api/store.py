"""Objects by key, one version counter, and a bounded history of changes.

Every write and removal takes the next version. A watcher is a cursor over the history, so a slow one costs nothing and
gets a 410 when its version is no longer in it. The trap: stored objects are shared with the history and with readers, so
they are replaced, never changed.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nstance.kube.api import status, values
from nstance.kube.port import Change, Object


@dataclass(frozen=True, slots=True, order=True)
class Key:
    resource: str  # Resource.id
    namespace: str  # empty for cluster-scoped resources
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    version: int
    change: Change
    key: Key
    body: Object
    before: Object | None


Sink = Callable[[Key, Object | None], None]


class Store:
    def __init__(self, *, version: int, window: int, sink: Sink | None) -> None:
        """`window`: the size of the history. `sink` is called before each change; if it raises, nothing changes."""
        self.version = version
        self._oldest = version  # the oldest version from which all later changes are known
        self._window = window
        self._sink = sink
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._events: dict[int, Event] = {}
        self._owned: dict[str, set[Key]] = {}  # by the owner's uid
        self._next_change: asyncio.Future[None] | None = None

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key.resource, {}).get((key.namespace, key.name))

    def keys(self, resource: str, namespace: str = "") -> list[Key]:
        found = [name for name in self._objects.get(resource, {}) if not namespace or name[0] == namespace]
        return [Key(resource, *name) for name in sorted(found)]

    def all(self, resource: str, namespace: str = "") -> list[Object]:
        found = self._objects.get(resource, {})
        return [found[name] for name in sorted(found) if not namespace or name[0] == namespace]

    def resources(self) -> list[str]:
        return [resource for resource, found in self._objects.items() if found]

    def owned_by(self, uid: str) -> list[Key]:
        return sorted(self._owned.get(uid, ()))

    def put(self, key: Key, body: Object) -> Object:
        before = self.get(key)
        version = self.version + 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}
        if self._sink is not None:
            self._sink(key, body)
        self._index(key, before, body)
        self._objects.setdefault(key.resource, {})[key.namespace, key.name] = body
        self._record(Event(version, Change.ADDED if before is None else Change.MODIFIED, key, body, before))
        return body

    def remove(self, key: Key) -> Object:
        before = self._objects[key.resource][key.namespace, key.name]
        version = self.version + 1
        if self._sink is not None:
            self._sink(key, None)
        self._index(key, before, None)
        del self._objects[key.resource][key.namespace, key.name]
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(version)}}
        self._record(Event(version, Change.DELETED, key, last, before))
        return last

    def load(self, key: Key, body: Object) -> None:
        """Adds an object from an earlier run. It is not a change."""
        self._index(key, self.get(key), body)
        self._objects.setdefault(key.resource, {})[key.namespace, key.name] = body

    def since(self, version: int) -> Iterator[Event]:
        """All changes after a version. Raises 410 if they are not in the history."""
        if version < self._oldest or version > self.version:
            raise status.expired(version, self._oldest if version < self._oldest else self.version)
        for number in range(version + 1, self.version + 1):
            yield self._events[number]

    def as_of(self, version: int, resource: str) -> dict[tuple[str, str], Object]:
        """The objects of a resource at a version in the history."""
        objects = dict(self._objects.get(resource, {}))
        for event in reversed(list(self.since(version))):
            if event.key.resource != resource:
                continue
            name = (event.key.namespace, event.key.name)
            if event.before is None:
                objects.pop(name, None)
            else:
                objects[name] = event.before
        return objects

    def forget(self) -> None:
        """Clears the history: a watch from an older version gets a 410."""
        self._events.clear()
        self._oldest = self.version

    def changed(self) -> "asyncio.Future[None]":
        """Completes with the next change."""
        loop = asyncio.get_running_loop()
        if self._next_change is None or self._next_change.get_loop() is not loop:
            self._next_change = loop.create_future()
        return self._next_change

    def _record(self, event: Event) -> None:
        self.version = event.version
        self._events[event.version] = event
        while len(self._events) > self._window:
            self._oldest += 1
            del self._events[self._oldest]
        if self._next_change is not None:
            waiter, self._next_change = self._next_change, None
            if not waiter.done():
                waiter.set_result(None)

    def _index(self, key: Key, before: Object | None, after: Object | None) -> None:
        for body, add in ((before, False), (after, True)):
            for owner in values.at(body, ("metadata", "ownerReferences")) or ():
                uid = owner.get("uid", "")
                if add:
                    self._owned.setdefault(uid, set()).add(key)
                elif uid in self._owned:
                    self._owned[uid].discard(key)
                    if not self._owned[uid]:
                        del self._owned[uid]
