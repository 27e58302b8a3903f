"""Events on objects, for people who look with `kubectl describe`.

`note` only remembers; a task writes. The same thing again is counted on the first event instead of making another, and a
storm of it costs one call. Events are a courtesy: when the server cannot take them or too many wait, they are dropped and
counted, and nobody waits or fails because of them.
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

MAX_WAITING = 1000
MAX_KNOWN = 4096
MAX_PER_OBJECT = 25  # new ones within that time; a message that differs each time must not fill the server
FORGET_SECONDS = 600.0  # the same thing later than this is a new event
PAUSE_SECONDS = 5.0  # after a failure
ATTEMPTS = 3
_LONGEST_MESSAGE = 1024


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
class _Waiting:
    times: int
    first: float  # wall clock
    last: float


@dataclass(slots=True)
class _Written:
    name: str
    count: int
    last: float  # monotonic


class Recorder:
    def __init__(
        self, kube: Kube, *, clock: Clock, rng: Rng, instance: str, component: str = "nstance-operator"
    ) -> None:
        """`instance` says which of several replicas it was."""
        self._kube = kube
        self._clock = clock
        self._rng = rng
        self._instance = instance
        self._component = component
        self._waiting: OrderedDict[_Key, _Waiting] = OrderedDict()
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._made: OrderedDict[tuple[object, ...], tuple[float, int]] = (
            OrderedDict()
        )  # per object: since when, how many
        self._news = asyncio.Event()
        self.dropped = 0

    def note(self, about: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Returns at once. `about` is the whole object: kind, name and uid are read from it."""
        metadata = about["metadata"]
        key = _Key(
            about.get("apiVersion", ""),
            about.get("kind", ""),
            metadata.get("namespace", ""),
            metadata["name"],
            metadata.get("uid", ""),
            reason,
            message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…",
            warning,
        )
        now = self._clock.wall()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.times += 1
            waiting.last = now
        elif len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting[key] = _Waiting(1, now, now)
            self._news.set()

    async def run(self) -> None:
        """For ever: writes what was noted, in order."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._write(*self._waiting.popitem(last=False))

    async def _write(self, key: _Key, waiting: _Waiting) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._once(key, waiting)
                return
            except (errors.UnavailableError, errors.ThrottledError) as problem:
                delay = problem.delay if isinstance(problem, errors.ThrottledError) else PAUSE_SECONDS
                if attempt < ATTEMPTS:
                    await self._clock.sleep(delay)
            except errors.KubeError as problem:  # what would repeating it help?
                self._drop(key, problem)
                return
        self._drop(key, "the server took none of several attempts")

    def _drop(self, key: _Key, problem: object) -> None:
        self.dropped += 1
        log.info("an event was dropped", extra={"reason": key.reason, "about": key.name, "problem": str(problem)})

    async def _once(self, key: _Key, waiting: _Waiting) -> None:
        known = self._written.get(key)
        if known is not None and self._clock.monotonic() - known.last < FORGET_SECONDS:
            body: Object = {"count": known.count + waiting.times, "lastTimestamp": _moment(waiting.last)}
            try:
                await self._kube.patch(kinds.EVENT, known.name, body, namespace=key.namespace or "default")
                self._remember(key, _Written(known.name, known.count + waiting.times, self._clock.monotonic()))
                return
            except errors.NotFoundError:  # the server keeps events for an hour
                del self._written[key]
        if self._too_many(key[:5]):
            self.dropped += 1
            return
        name = f"{key.name[:200]}.{self._rng.bits(64):016x}"
        await self._kube.create(kinds.EVENT, self._body(key, waiting, name), namespace=key.namespace or "default")
        self._remember(key, _Written(name, waiting.times, self._clock.monotonic()))

    def _too_many(self, about: tuple[object, ...]) -> bool:
        now = self._clock.monotonic()
        since, made = self._made.get(about, (now, 0))
        if now - since >= FORGET_SECONDS:
            since, made = now, 0
        if made >= MAX_PER_OBJECT:
            return True
        self._made[about] = since, made + 1
        self._made.move_to_end(about)
        if len(self._made) > MAX_KNOWN:
            self._made.popitem(last=False)
        return False

    def _remember(self, key: _Key, written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        if len(self._written) > MAX_KNOWN:
            self._written.popitem(last=False)

    def _body(self, key: _Key, waiting: _Waiting, name: str) -> Object:
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
            "count": waiting.times,
            "firstTimestamp": _moment(waiting.first),
            "lastTimestamp": _moment(waiting.last),
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
