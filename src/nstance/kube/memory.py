"""Kubernetes in memory, for tests and the simulator.

The semantics are those of `kube.api`, which dev-k8s serves too. It is deterministic for a given clock and rng. Faults come
in through `faults`, which returns the `Fate` of each call; several clients with faults of their own share one `Api`. As
with a real server, a write may be applied although its answer is lost, and a watch may break between any two events.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, cast

from nstance import clock as clocks
from nstance.kube import errors, kinds, response_errors
from nstance.kube.api import selectors, server, status, values
from nstance.kube.api.patches import Patch
from nstance.kube.api.resources import Served
from nstance.kube.api.watches import Watch
from nstance.kube.kinds import Kind
from nstance.kube.port import FIELD_MANAGER, Change, Listing, Object, Selection, Token

T = TypeVar("T")

BOOKMARK_SECONDS = 30.0


class Verb(StrEnum):
    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    REPLACE = "replace"
    PATCH = "patch"
    DELETE = "delete"
    EVICT = "evict"
    TOKEN = "token"


READS = frozenset({Verb.GET, Verb.LIST, Verb.WATCH})


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one call. Default: no fault."""

    before: float = 0.0  # seconds until the server applies the call
    after: float = 0.0  # seconds from then until the answer
    error: errors.KubeError | None = None  # raised instead of applying anything
    lost: bool = False  # applied without an answer: UnknownOutcomeError (a read: UnavailableError)


Faults = Callable[
    [Verb, Kind, str], Awaitable[Fate]
]  # the last argument is the object's name, empty for list and watch


def cluster(clock: clocks.Clock, rng: clocks.Rng, *, window: int = server.WATCH_WINDOW) -> server.Api:
    """An empty cluster with its namespaces."""
    api = server.Api(clock, rng, window=window)
    api.begin()
    return api


class MemoryKube:
    def __init__(self, api: server.Api, clock: clocks.Clock, *, faults: Faults | None = None) -> None:
        self.api = api
        self._clock = clock
        self._faults = faults
        self._breaks = 0
        self._broken = asyncio.Event()

    def __repr__(self) -> str:
        return "memory kube"

    def break_watches(self) -> None:
        """Ends every open watch of this client like a lost connection."""
        self._breaks += 1
        self._broken.set()
        self._broken = asyncio.Event()

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        return await self._call(Verb.GET, kind, name, lambda: self.api.get(self._target(kind, name, namespace)))

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        def read() -> Listing:
            served, selector = self._find(Selection(kind, namespace, labels, fields))
            page = self.api.list(served, namespace=namespace, selector=selector)
            return Listing(values.copy(page.items), page.version)

        return await self._call(Verb.LIST, kind, "", read)

    async def watch(
        self, selection: Selection, *, version: str, timeout: float = 300.0
    ) -> AsyncIterator[tuple[Change, Object]]:
        kind = selection.kind

        def begin() -> Watch:
            served, selector = self._find(selection)
            return self.api.watch(served, version, namespace=selection.namespace, selector=selector)

        breaks, broken = self._breaks, self._broken
        watch = await self._call(Verb.WATCH, kind, "", begin)
        end = self._clock.monotonic() + timeout
        mark = self._clock.monotonic() + BOOKMARK_SECONDS
        while True:
            try:
                events = watch.take()
            except status.ApiError as error:
                raise to_kube_error(error) from None
            for change, body in events:
                if self._breaks != breaks:
                    raise errors.UnavailableError(f"watch {kind.plural}: the connection was lost")
                yield change, values.copy(body)
            if self._breaks != breaks:
                raise errors.UnavailableError(f"watch {kind.plural}: the connection was lost")
            now = self._clock.monotonic()
            if now >= min(end, mark):
                yield Change.BOOKMARK, watch.bookmark()
                mark = now + BOOKMARK_SECONDS
                if now >= end:
                    return
            if watch.version == self.api.store.version:
                await _wait_for_either(self.api.store.changed(), broken, timeout=min(end, mark) - now)

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        def write() -> Object:
            return self.api.create(self._served(kind), _with_type(kind, body), namespace=namespace)

        return await self._call(Verb.CREATE, kind, str(values.at(body, ("metadata", "name"), "")), write)

    async def replace(self, kind: Kind, body: Object) -> Object:
        meta = body.get("metadata") or {}
        name, namespace = str(meta.get("name", "")), str(meta.get("namespace", ""))
        if not meta.get("resourceVersion"):
            raise errors.InvalidError(
                f"replace {kind.plural} {name}: expected a resourceVersion, found none; read the object first"
            )

        def write() -> Object:
            return self.api.replace(self._target(kind, name, namespace), _with_type(kind, body))

        return await self._call(Verb.REPLACE, kind, name, write)

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: str = "") -> Object:
        def write() -> Object:
            target = self._target(kind, name, namespace, subresource)
            options = server.Options(manager=FIELD_MANAGER)
            return self.api.patch(target, values.copy(body), how=Patch.MERGE, options=options)

        return await self._call(Verb.PATCH, kind, name, write)

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", uid: str = "") -> None:
        def write() -> None:
            self.api.delete(self._target(kind, name, namespace), uid=uid)

        await self._call(Verb.DELETE, kind, name, write)

    async def evict(self, pod: str, *, namespace: str, uid: str = "") -> None:
        """There is no kubelet: the pod is gone at once, without a grace period."""
        await self._call(Verb.EVICT, kinds.POD, pod, lambda: self.api.evict(pod, namespace=namespace, uid=uid))

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token:
        def request() -> Token:
            return Token(*self.api.token(service_account, namespace=namespace, seconds=seconds))

        return await self._call(Verb.TOKEN, kinds.SERVICE_ACCOUNT, service_account, request)

    async def close(self) -> None:
        """Nothing to close."""

    def _served(self, kind: Kind) -> Served:
        return self.api.served(kind.group, kind.version, kind.plural)

    def _target(self, kind: Kind, name: str, namespace: str, subresource: str = "") -> server.Target:
        return server.Target(self._served(kind), name, namespace, subresource)

    def _find(self, selection: Selection) -> tuple[Served, selectors.Selector]:
        served = self._served(selection.kind)
        selectable = served.version.fields
        return served, selectors.parse(labels=selection.labels, fields=selection.fields, selectable=selectable)

    async def _call(self, verb: Verb, kind: Kind, name: str, act: Callable[[], T]) -> T:
        fate = Fate() if self._faults is None else await self._faults(verb, kind, name)
        if fate.before:
            await self._clock.sleep(fate.before)
        if fate.error is not None:
            raise fate.error
        answer, rejection = None, None
        try:
            answer = values.copy(act())
        except status.ApiError as error:
            rejection = to_kube_error(error)
        if fate.after:
            await self._clock.sleep(fate.after)
        if fate.lost:
            what = f"{verb} {kind.plural} {name}: no answer"
            raise errors.UnavailableError(what) if verb in READS else errors.UnknownOutcomeError(what)
        if rejection is not None:
            raise rejection
        return cast(T, answer)


def _with_type(kind: Kind, body: Object) -> Object:
    copy: Object = values.copy(body)
    return {"apiVersion": kind.api_version, "kind": kind.name, **copy}


async def _wait_for_either(changed: "asyncio.Future[None]", broken: asyncio.Event, *, timeout: float) -> None:
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait((changed, breaking), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        breaking.cancel()


def to_kube_error(error: status.ApiError) -> errors.KubeError:
    """An error of the API as the error of the port."""
    causes = [str(each.get("message")) for each in error.details.get("causes", ())] if error.code == 429 else []
    message = " ".join((error.message, *causes))
    return response_errors.from_status(error.code, error.reason, message, delay=None, changes=False)
