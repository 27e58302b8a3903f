"""Records Kubernetes events on objects, as `kubectl describe` shows them.

`note` queues an event and a task writes it. A repeated event increases the count of the first one, so a storm costs one
call. Events are optional: if the server rejects them or too many are queued, they are dropped and counted.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object

log = logging.getLogger(__name__)

MAX_QUEUED = 1000
MAX_KNOWN = 4096
MAX_PER_OBJECT = 25  # new ones within FORGET_SECONDS, because messages that always differ must not fill the server
FORGET_SECONDS = 600.0  # a repetition after this time is a new event
RETRY_SECONDS = 5.0  # after a failure
ATTEMPTS = 3
COMPONENT = "nstance-operator"
_MAX_MESSAGE_CHARACTERS = 1024


class _Key(NamedTuple):
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool


@dataclass(slots=True)
class _Queued:
    times: int
    first: float  # wall clock
    last: float


@dataclass(slots=True)
class _Written:
    name: str
    count: int
    last: float  # monotonic


class Recorder:
    def __init__(self, kube: Kube, *, clock: Clock, rng: Rng, instance: str) -> None:
        """`instance` names the replica."""
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._instance = instance
        self._queue: OrderedDict[_Key, _Queued] = OrderedDict()
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._created: OrderedDict[tuple[object, ...], tuple[float, int]] = (
            OrderedDict()
        )  # object: since when, how many
        self._wake = asyncio.Event()
        self.dropped = 0

    def note(self, about: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Queues an event about an object. Does not wait."""
        metadata = about["metadata"]
        key = _Key(
            about.get("apiVersion", ""),
            about.get("kind", ""),
            metadata.get("namespace", ""),
            metadata["name"],
            metadata.get("uid", ""),
            reason,
            message if len(message) <= _MAX_MESSAGE_CHARACTERS else message[: _MAX_MESSAGE_CHARACTERS - 1] + "…",
            warning,
        )
        now = self._clock.wall()
        queued = self._queue.get(key)
        if queued is not None:
            queued.times += 1
            queued.last = now
        elif len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
        else:
            self._queue[key] = _Queued(1, now, now)
            self._wake.set()

    async def run(self) -> None:
        """Writes queued events in order, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._write(*self._queue.popitem(last=False))

    async def _write(self, key: _Key, queued: _Queued) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._write_once(key, queued)
                return
            except (errors.UnavailableError, errors.ThrottledError) as problem:
                delay = problem.delay if isinstance(problem, errors.ThrottledError) else RETRY_SECONDS
                if attempt < ATTEMPTS:
                    await self._clock.sleep(delay)
            except errors.KubeError as problem:  # repeating would not help
                self._drop(key, problem)
                return
        self._drop(key, f"the server failed {ATTEMPTS} times")

    def _drop(self, key: _Key, problem: object) -> None:
        self.dropped += 1
        log.info("event dropped", extra={"reason": key.reason, "about": key.name, "problem": str(problem)})

    async def _write_once(self, key: _Key, queued: _Queued) -> None:
        known = self._written.get(key)
        if known is not None and self._clock.monotonic() - known.last < FORGET_SECONDS:
            body: Object = {"count": known.count + queued.times, "lastTimestamp": _timestamp(queued.last)}
            try:
                await self._kube.patch(kinds.EVENT, known.name, body, namespace=key.namespace or "default")
                self._remember(key, _Written(known.name, known.count + queued.times, self._clock.monotonic()))
                return
            except errors.NotFoundError:  # the server deletes events after an hour
                del self._written[key]
        if self._exceeds_limit(key[:5]):
            self.dropped += 1
            return
        name = f"{key.name[:200]}.{self._rng.bits(64):016x}"
        await self._kube.create(kinds.EVENT, self._body(key, queued, name), namespace=key.namespace or "default")
        self._remember(key, _Written(name, queued.times, self._clock.monotonic()))

    def _exceeds_limit(self, about: tuple[object, ...]) -> bool:
        now = self._clock.monotonic()
        since, count = self._created.get(about, (now, 0))
        if now - since >= FORGET_SECONDS:
            since, count = now, 0
        if count >= MAX_PER_OBJECT:
            return True
        self._created[about] = since, count + 1
        self._created.move_to_end(about)
        if len(self._created) > MAX_KNOWN:
            self._created.popitem(last=False)
        return False

    def _remember(self, key: _Key, written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        if len(self._written) > MAX_KNOWN:
            self._written.popitem(last=False)

    def _body(self, key: _Key, queued: _Queued, name: str) -> Object:
        about = {
            "apiVersion": key.api_version,
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "uid": key.uid,
        }
        return {
            "metadata": {"name": name, "namespace": key.namespace or "default"},
            "involvedObject": {field: value for field, value in about.items() if value},
            "reason": key.reason,
            "message": key.message,
            "type": "Warning" if key.warning else "Normal",
            "count": queued.times,
            "firstTimestamp": _timestamp(queued.first),
            "lastTimestamp": _timestamp(queued.last),
            "source": {"component": COMPONENT, "host": self._instance},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }


def _timestamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
