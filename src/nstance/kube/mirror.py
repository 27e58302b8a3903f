"""A local copy of all objects of a kind (an informer).

It lists, then watches from the version of the list. A broken watch continues from the last version seen, bookmarks
included. If that version has expired, it lists again and reports missing objects as deleted. The traps: an object that was
deleted and created again is reported as a deletion and an addition; while there is a `stale_reason`, an object that is
missing here may exist; and a watch from a version that an API server has lost (a backup of its storage was restored) is
silent for ever, so it lists again after a watch without any event or bookmark.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import cast

from nstance.clock import Clock, Rng
from nstance.kube import errors
from nstance.kube.port import Change, Kube, Object, Selection
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace (empty for cluster-scoped kinds) and name
Callback = Callable[[Object | None, Object | None], None]

WATCH_SECONDS = 300.0
MIN_WATCH_SECONDS = 1.0  # a watch that ends sooner without an event counts as a failure
ESTABLISHED_SECONDS = 45.0  # a watch that lasts this long is open, even without an event
RETRY = Backoff(0.1, 30.0, jitter=0.5)


class Mirror:
    def __init__(
        self,
        kube: Kube,
        selection: Selection,
        *,
        clock: Clock,
        rng: Rng,
        trim: Callable[[Object], Object] | None = None,
    ) -> None:
        """`trim` removes what need not be kept, because thousands of pods are many megabytes. It must keep the name,
        namespace, uid and resourceVersion."""
        self._selection = selection
        self.synced = asyncio.Event()  # set after the first list, and stays set
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._objects: dict[Key, Object] = {}
        self.objects: Mapping[Key, Object] = MappingProxyType(self._objects)
        self._callbacks: list[Callback] = []
        self._trim = trim or _without_managed_fields
        self._version: str | None = None  # to continue from; None: list first
        self._stale_reason = f"{selection.kind.plural} have not been read yet"
        self._watching_since: float | None = None
        self._failures = 0

    @property
    def stale_reason(self) -> str:
        """Why the copy may be stale; empty if it is not."""
        since = self._watching_since
        if since is not None and self._clock.monotonic() - since >= ESTABLISHED_SECONDS:
            return ""
        return self._stale_reason

    def listen(self, callback: Callback) -> None:
        """Calls back with (old, new) after each change, and at once for each known object. The callback must not block and
        must not change the objects, which are shared."""
        self._callbacks.append(callback)
        for item in list(self._objects.values()):
            self._call(callback, None, item)

    async def run(self) -> None:
        """Keeps the copy up to date until cancelled."""
        while True:
            delay = await self._step()
            if delay > 0:
                await self._clock.sleep(delay)

    async def _step(self) -> float:
        """Lists if necessary and watches until the watch ends. Returns the delay before the next step."""
        try:
            if self._version is None:
                await self._list()
            is_alive = await self._watch()
        except errors.ExpiredError as problem:
            log.info(
                "listing again: the version to continue from has expired", extra={"kind": self._selection.kind.plural}
            )
            self._version = None
            # At once the first time; with a delay if every watch expires.
            return 0.0 if self._failed(problem) == 1 else self._delay()
        except errors.KubeError as problem:
            self._failed(problem)
            requested = problem.delay if isinstance(problem, errors.ThrottledError) else 0.0
            return max(requested, self._delay())
        finally:
            self._watching_since = None
        if is_alive:
            self._failures = 0
            self._stale_reason = ""
            return 0.0
        self._failed(errors.UnavailableError("the watch ended at once"))
        return self._delay()

    async def _list(self) -> None:
        of = self._selection
        listing = await self._kube.list(of.kind, namespace=of.namespace, labels=of.labels, fields=of.fields)
        found = {_key(item): item for item in listing.items}
        for key in self._objects.keys() - found.keys():
            self._put(key, None)
        for key, item in found.items():
            self._put(key, item)
        self._version = listing.version
        self._stale_reason = ""
        self.synced.set()

    async def _watch(self) -> bool:
        """Watches until the stream ends. Returns whether it worked: with an event, or for a while."""
        assert self._version is not None
        self._watching_since = started = self._clock.monotonic()
        is_alive, before = False, self._version
        stream = self._kube.watch(
            self._selection,
            version=self._version,
            timeout=WATCH_SECONDS * self._rng.uniform(1.0, 2.0),  # not all watches end at the same time
        )
        async with aclosing(stream) as events:  # type: ignore[type-var]
            async for change, item in events:
                if change is not Change.BOOKMARK:
                    is_alive = True
                    self._put(_key(item), None if change is Change.DELETED else item)
                self._version = item["metadata"]["resourceVersion"]
                self._stale_reason = ""
                if is_alive:
                    self._failures = 0
        lasted = self._clock.monotonic() - started
        if self._version == before and lasted >= ESTABLISHED_SECONDS:
            self._version = None
        return is_alive or lasted >= MIN_WATCH_SECONDS

    def _failed(self, problem: errors.KubeError) -> int:
        since = self._watching_since
        if since is not None and self._clock.monotonic() - since >= ESTABLISHED_SECONDS:
            self._failures = 0
        self._failures += 1
        self._stale_reason = f"failed to watch {self._selection.kind.plural}: {problem}"
        if not isinstance(problem, errors.ExpiredError):
            log.log(
                logging.WARNING if self._failures > 1 else logging.INFO,
                "failed to watch, will resume",
                extra={"kind": self._selection.kind.plural, "failures": self._failures, "problem": str(problem)},
            )
        return self._failures

    def _delay(self) -> float:
        return RETRY.delay(self._failures, self._rng)

    def _put(self, key: Key, new: Object | None) -> None:
        old = self._objects.get(key)
        if new is None:
            if old is not None:
                del self._objects[key]
                self._notify(old, None)
            return
        if old is not None and _uid(old) != _uid(new):
            del self._objects[key]
            self._notify(old, None)
            old = None
        if old is not None and old["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]:
            return
        trimmed = self._objects[key] = self._trim(new)
        self._notify(old, trimmed)

    def _notify(self, old: Object | None, new: Object | None) -> None:
        for callback in self._callbacks:
            self._call(callback, old, new)

    def _call(self, callback: Callback, old: Object | None, new: Object | None) -> None:
        try:
            callback(old, new)
        except Exception:  # a bug in one callback must not keep the change from the others
            log.exception("failed to run callback", extra={"kind": self._selection.kind.plural})


def _key(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(item: Object) -> str:
    return cast(str, item["metadata"].get("uid", ""))


def _without_managed_fields(item: Object) -> Object:
    """Managed fields are often half of the object, and an update may omit them."""
    metadata = item["metadata"]
    if "managedFields" not in metadata:
        return item
    return {**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}
