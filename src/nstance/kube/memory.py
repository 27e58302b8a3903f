"""Kubernetes in a dictionary: for tests and the simulator.

All semantics are `kube.api`'s, which dev-k8s serves too. It is deterministic given its clock and chance. What goes wrong
comes in through `faults`, a callable that is asked before each call and answers with its `Fate`; several clients of one
cluster, each with faults of its own, are `MemoryKube`s over one `Api`. The trap it shares with a real server: a write may
be applied although its answer is lost, and a watch may break between any two events.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, cast

from nstance import clock as clocks
from nstance.kube import errors, kinds
from nstance.kube.api import selectors, server, status, values
from nstance.kube.api.keeper import Propagation
from nstance.kube.api.resources import Served
from nstance.kube.api.watches import Watch
from nstance.kube.kinds import Kind
from nstance.kube.port import Change, Listing, Object, Operations, Patch, Token

T = TypeVar("T")

BOOKMARKS = 30.0  # seconds between two of them on a quiet watch


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
    """What happens to one call. The default is: nothing special."""

    before: float = 0.0  # seconds until the server applies the call
    after: float = 0.0  # seconds from then until the answer is there
    error: errors.KubeError | None = None  # raised instead of applying anything
    lost: bool = False  # applied, but no answer: Unknown (a read: Unavailable)


Faults = Callable[[Verb, Kind, str], Awaitable[Fate]]  # the last one is the object's name, empty for list and watch


def cluster(clock: clocks.Clock, rng: clocks.Rng, *, window: int = server.WINDOW) -> server.Api:
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
        """Ends every open watch of this client as a lost connection would."""
        self._breaks += 1
        self._broken.set()
        self._broken = asyncio.Event()

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        return await self._call(
            Verb.GET, kind, name, lambda: values.copied(self.api.get(self._served(kind), name, namespace=namespace))
        )

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        def read() -> Listing:
            served = self._served(kind)
            selector = selectors.parse(labels=labels, fields=fields, selectable=served.version.fields)
            page = self.api.list(served, namespace=namespace, selector=selector)
            return Listing(values.copied(page.items), page.version)

        return await self._call(Verb.LIST, kind, "", read)

    async def watch(
        self,
        kind: Kind,
        *,
        version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        timeout: float = 300.0,
    ) -> AsyncIterator[tuple[Change, Object]]:
        def begin() -> Watch:
            served = self._served(kind)
            selector = selectors.parse(labels=labels, fields=fields, selectable=served.version.fields)
            return self.api.watch(served, version, namespace=namespace, selector=selector)

        breaks, broken = self._breaks, self._broken
        watch = await self._call(Verb.WATCH, kind, "", begin)
        end = self._clock.monotonic() + timeout
        mark = self._clock.monotonic() + BOOKMARKS
        while True:
            try:
                news = watch.take()
            except status.ApiError as refused:
                raise translated(refused) from None
            for change, body in news:
                if self._breaks != breaks:
                    raise errors.UnavailableError(f"watch {kind.plural}: the connection was lost")
                yield change, values.copied(body)
            if self._breaks != breaks:
                raise errors.UnavailableError(f"watch {kind.plural}: the connection was lost")
            now = self._clock.monotonic()
            if now >= min(end, mark):
                yield Change.BOOKMARK, watch.bookmark()
                mark = now + BOOKMARKS
                if now >= end:
                    return
            if watch.version == self.api.store.version:
                await _either(self.api.store.changed(), broken, timeout=min(end, mark) - now)

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        name = str(values.at(body, ("metadata", "name"), ""))
        return await self._call(
            Verb.CREATE,
            kind,
            name,
            lambda: values.copied(self.api.create(self._served(kind), _typed(kind, body), namespace=namespace)),
        )

    async def replace(self, kind: Kind, body: Object, *, subresource: str = "") -> Object:
        meta = body.get("metadata") or {}
        name, namespace = str(meta.get("name", "")), str(meta.get("namespace", ""))
        if not meta.get("resourceVersion"):
            raise errors.InvalidError(
                f"replace {kind.plural} {name}: the body has no resourceVersion; read the object first"
            )

        def write() -> Object:
            sent = body if subresource == "scale" else _typed(kind, body)
            served = self._served(kind)
            changed = self.api.replace(served, name, sent, namespace=namespace, subresource=subresource)
            return values.copied(changed)  # type: ignore[no-any-return]

        return await self._call(Verb.REPLACE, kind, name, write)

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Object | Operations,
        *,
        namespace: str = "",
        how: Patch = Patch.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        def write() -> Object:
            changed = self.api.patch(
                self._served(kind),
                name,
                values.copied(body),
                how=how,
                namespace=namespace,
                subresource=subresource,
                options=server.Options(manager=field_manager),
            )
            return values.copied(changed)  # type: ignore[no-any-return]

        return await self._call(Verb.PATCH, kind, name, write)

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", version: str = "", foreground: bool = False
    ) -> None:
        propagation = Propagation.FOREGROUND if foreground else Propagation.BACKGROUND
        await self._call(
            Verb.DELETE,
            kind,
            name,
            lambda: self.api.delete(
                self._served(kind), name, namespace=namespace, uid=uid, version=version, propagation=propagation
            ),
        )

    async def evict(self, pod: str, *, namespace: str, uid: str = "", grace: int | None = None) -> None:
        """There is no kubelet: the pod is gone at once, whatever the grace."""
        await self._call(Verb.EVICT, kinds.POD, pod, lambda: self.api.evict(pod, namespace=namespace, uid=uid))

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token:
        def request() -> Token:
            return Token(*self.api.token(service_account, namespace=namespace, seconds=seconds))

        return await self._call(Verb.TOKEN, kinds.SERVICE_ACCOUNT, service_account, request)

    async def close(self) -> None:
        """Nothing to close."""

    def _served(self, kind: Kind) -> Served:
        return self.api.served(kind.group, kind.version, kind.plural)

    async def _call(self, verb: Verb, kind: Kind, name: str, act: Callable[[], T]) -> T:
        fate = Fate() if self._faults is None else await self._faults(verb, kind, name)
        if fate.before:
            await self._clock.sleep(fate.before)
        if fate.error is not None:
            raise fate.error
        answer, refused = None, None
        try:
            answer = act()
        except status.ApiError as error:
            refused = translated(error)
        if fate.after:
            await self._clock.sleep(fate.after)
        if fate.lost:
            what = f"{verb} {kind.plural} {name}: no answer came"
            raise errors.UnavailableError(what) if verb in READS else errors.UnknownOutcomeError(what)
        if refused is not None:
            raise refused
        return cast(T, answer)


def _typed(kind: Kind, body: Object) -> Object:
    copy: Object = values.copied(body)
    return {"apiVersion": kind.api_version, "kind": kind.name, **copy}


async def _either(changed: "asyncio.Future[None]", broken: asyncio.Event, *, timeout: float) -> None:
    breaking = asyncio.ensure_future(broken.wait())
    try:
        await asyncio.wait((changed, breaking), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        breaking.cancel()


def translated(refused: status.ApiError) -> errors.KubeError:
    """An answer of the server as the port's error."""
    if refused.code == 429:
        return errors.ThrottledError(_with_causes(refused), delay=float(refused.retry_after or 1))
    if refused.code == 409 and refused.reason == "AlreadyExists":
        return errors.AlreadyExistsError(refused.message)
    named = {
        404: errors.NotFoundError,
        409: errors.ConflictError,
        410: errors.ExpiredError,
        401: errors.ForbiddenError,
        403: errors.ForbiddenError,
    }
    if refused.code in named:
        return named[refused.code](refused.message)
    return errors.InvalidError(refused.message) if refused.code < 500 else errors.UnavailableError(refused.message)


def _with_causes(refused: status.ApiError) -> str:
    causes = [str(each.get("message")) for each in refused.details.get("causes", ())]
    return " ".join((refused.message, *causes))
