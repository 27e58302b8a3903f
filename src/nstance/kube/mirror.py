"""All objects of a kind, as they were a moment ago.

A list, then a watch from its version; when a watch breaks, another one from the last version heard of, bookmarks
included; only when that version has expired, a list again, and what it lacks is told as deleted. The traps: an object that
was deleted and made again under its name is two objects, told as a deletion and an addition; and while there is `trouble`,
what is missing here may well exist.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import cast

from nstance.clock import Clock, Rng
from nstance.kube import errors
from nstance.kube.kinds import Kind
from nstance.kube.port import Change, Kube, Object
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace (empty for cluster-wide kinds) and name
Callback = Callable[[Object | None, Object | None], None]

WATCH_SECONDS = 300.0
BRIEF_SECONDS = 1.0  # a watch that ends sooner and brought nothing counts as a failure
ESTABLISHED_SECONDS = 45.0  # a watch that lives this long was opened, whether or not it has said anything
RETRY = Backoff(0.1, 30.0, jitter=0.5)


class Mirror:
    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        *,
        clock: Clock,
        rng: Rng,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        trim: Callable[[Object], Object] | None = None,
    ) -> None:
        """`trim` says what of an object is worth keeping: thousands of whole pods are many megabytes. It keeps the
        metadata's name, namespace, uid and resourceVersion."""
        self.kind = kind
        self.synced = asyncio.Event()  # all was read once; it stays set
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._objects: dict[Key, Object] = {}
        self.objects: Mapping[Key, Object] = MappingProxyType(self._objects)
        self._callbacks: list[Callback] = []
        self._trim = trim or _lean
        self._version: str | None = None  # to go on from; none: list first
        self._trouble = f"{kind.plural} have not been read yet"
        self._watching_since: float | None = None
        self._failures = 0

    @property
    def trouble(self) -> str:
        """Why what is here may be old, for people; empty if it is not."""
        since = self._watching_since
        if since is not None and self._clock.monotonic() - since >= ESTABLISHED_SECONDS:
            return ""
        return self._trouble

    def listen(self, callback: Callback) -> None:
        """Called in the event loop with (old, new) right after `objects` changed; what is here already is told at once.
        Must return at once. The objects are everybody's: nobody changes them."""
        self._callbacks.append(callback)
        for held in list(self._objects.values()):
            self._call(callback, None, held)

    async def run(self) -> None:
        """For ever, whatever the server does."""
        while True:
            delay = await self._step()
            if delay > 0:
                await self._clock.sleep(delay)

    async def _step(self) -> float:
        """List if need be, watch until that ends; how long to wait before the next one."""
        try:
            if self._version is None:
                await self._list()
            last_seen = await self._watch()
        except errors.ExpiredError as problem:
            log.info("list again: the version to go on from has expired", extra={"kind": self.kind.plural})
            self._version = None
            # The first time at once; a server whose every watch expires is not asked in a tight loop.
            return 0.0 if self._failed(problem) == 1 else self._delay()
        except errors.KubeError as problem:
            self._failed(problem)
            asked = problem.delay if isinstance(problem, errors.ThrottledError) else 0.0
            return max(asked, self._delay())
        finally:
            self._watching_since = None
        if last_seen:
            self._failures = 0
            self._trouble = ""
            return 0.0
        self._failed(errors.UnavailableError("the watch ended as soon as it began"))
        return self._delay()

    async def _list(self) -> None:
        listing = await self._kube.list(self.kind, namespace=self._namespace, labels=self._labels, fields=self._fields)
        found = {_key(item): item for item in listing.items}
        for key in self._objects.keys() - found.keys():
            self._put(key, None)
        for key, item in found.items():
            self._put(key, item)
        self._version = listing.version
        self._trouble = ""
        self.synced.set()

    async def _watch(self) -> bool:
        """Whether it was a watch worth the name."""
        assert self._version is not None
        self._watching_since = started = self._clock.monotonic()
        last_seen = False
        stream = self._kube.watch(
            self.kind,
            version=self._version,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            timeout=WATCH_SECONDS * self._rng.uniform(1.0, 2.0),  # not all of them end at once
        )
        async with aclosing(stream) as events:  # type: ignore[type-var]
            async for change, item in events:
                if change is not Change.BOOKMARK:
                    last_seen = True
                    self._put(_key(item), None if change is Change.DELETED else item)
                self._version = item["metadata"]["resourceVersion"]
                self._trouble = ""
                if last_seen:
                    self._failures = 0
        return last_seen or self._clock.monotonic() - started >= BRIEF_SECONDS

    def _failed(self, problem: errors.KubeError) -> int:
        since = self._watching_since
        if since is not None and self._clock.monotonic() - since >= ESTABLISHED_SECONDS:
            self._failures = 0
        self._failures += 1
        self._trouble = f"{self.kind.plural} cannot be followed: {problem}"
        if not isinstance(problem, errors.ExpiredError):
            log.log(
                logging.WARNING if self._failures > 1 else logging.INFO,
                "the watch broke and will be resumed",
                extra={"kind": self.kind.plural, "failures": self._failures, "problem": str(problem)},
            )
        return self._failures

    def _delay(self) -> float:
        return RETRY.delay(self._failures, self._rng)

    def _put(self, key: Key, new: Object | None) -> None:
        old = self._objects.get(key)
        if new is None:
            if old is not None:
                del self._objects[key]
                self._tell(old, None)
            return
        if old is not None and _uid(old) != _uid(new):
            del self._objects[key]
            self._tell(old, None)
            old = None
        if old is not None and old["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]:
            return
        kept = self._objects[key] = self._trim(new)
        self._tell(old, kept)

    def _tell(self, old: Object | None, new: Object | None) -> None:
        for callback in self._callbacks:
            self._call(callback, old, new)

    def _call(self, callback: Callback, old: Object | None, new: Object | None) -> None:
        try:
            callback(old, new)
        except Exception:  # a defect of one listener must not keep the change from the others
            log.exception("a listener failed", extra={"kind": self.kind.plural})


def _key(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(item: Object) -> str:
    return cast(str, item["metadata"].get("uid", ""))


def _lean(item: Object) -> Object:
    """Without the record of who owns which field: it is often half of the object, and an update may leave it out."""
    metadata = item["metadata"]
    if "managedFields" not in metadata:
        return item
    return {**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}
