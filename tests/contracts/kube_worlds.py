"""Kubernetes API servers, each with a door to it and with what may happen behind its back."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from nstance.clock import SystemChance, SystemClock
from nstance.dev.k8s import main as dev_k8s
from nstance.kube import errors, kinds, kubeconfig, memory
from nstance.kube.http import HttpKube
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Change, Kube, Object

REAL = "NSTANCE_TEST_KUBECONFIG"  # names the kubeconfig of a real API server
WINDOW = 60  # changes that the imitations remember: few, so that a version can be made to expire
PAGE = 3  # objects per page: few, so that lists have several
DEADLINE = 20.0

WIDGET = kinds.Kind("contract.nstance.dev", "v1", "Widget", "widgets")
_SCHEMA: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "minimum": 0},
                "color": {"type": "string", "enum": ["red", "green"]},
                "names": {"type": "array", "items": {"type": "string"}},
                "replicas": {"type": "integer"},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
    },
}
_DEFINITION: Object = {
    "metadata": {"name": "widgets.contract.nstance.dev"},
    "spec": {
        "group": WIDGET.group,
        "names": {"kind": WIDGET.name, "plural": WIDGET.plural, "singular": "widget", "listKind": "WidgetList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": WIDGET.version,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": _SCHEMA},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
            }
        ],
    },
}


@dataclass
class World:
    kube: Kube
    break_streams: Callable[[], None]
    namespace: str = ""
    collects: bool = True  # somebody deletes what lost its owner
    forgets: bool = True  # enough changes make a version expire

    async def prepare(self) -> None:
        """A namespace of its own, with what pods need; and a custom kind."""
        self.namespace = f"contract-{secrets.token_hex(4)}"
        await self.kube.create(kinds.NAMESPACE, {"metadata": {"name": self.namespace}})
        for name in ("default", "robot"):
            with contextlib.suppress(errors.AlreadyExists):
                await self.kube.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": name, "namespace": self.namespace}})
        with contextlib.suppress(errors.AlreadyExists):
            await self.kube.create(kinds.CUSTOM_RESOURCE_DEFINITION, _DEFINITION)

        async def served() -> bool:
            try:
                await self.kube.list(WIDGET, namespace=self.namespace)
            except errors.NotFound:
                return False
            return True

        await eventually(served)

    async def ancient(self) -> str:
        """A version from which widgets cannot be watched any more."""
        if not self.forgets:
            return "1"  # before there was such a kind
        version = (await self.kube.list(WIDGET)).version
        await self.kube.create(WIDGET, self.widget("churn"))
        for number in range(WINDOW + 10):
            await self.kube.patch(WIDGET, "churn", {"spec": {"size": number}}, namespace=self.namespace)
        return version

    def config_map(self, name: str, labels: dict[str, str] | None = None, **data: str) -> Object:
        return {"metadata": {"name": name, "namespace": self.namespace, "labels": labels or {}}, "data": data}

    def widget(self, name: str, **spec: object) -> Object:
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}

    def pod(self, name: str, labels: dict[str, str] | None = None) -> Object:
        return {
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels or {}},
            "spec": {"containers": [{"name": "main", "image": "pause"}]},
        }


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


async def changes(watch: AsyncIterator[tuple[Change, Object]], count: int) -> list[tuple[Change, Object]]:
    """The next ones, without bookmarks."""
    found: list[tuple[Change, Object]] = []
    async with asyncio.timeout(DEADLINE):
        while len(found) < count:
            change, body = await anext(watch)
            if change is not Change.BOOKMARK:
                found.append((change, body))
    return found


@contextlib.asynccontextmanager
async def memory_world() -> AsyncIterator[World]:
    clock = SystemClock()
    kube = memory.MemoryKube(memory.cluster(clock, SystemChance(), window=WINDOW), clock)
    world = World(kube, kube.break_watches)
    await world.prepare()
    yield world


@contextlib.asynccontextmanager
async def dev_world(folder: Path) -> AsyncIterator[World]:
    async with (
        dev_k8s.serving(folder, port=0, window=WINDOW) as port,
        _through_a_proxy(Access(server=f"http://127.0.0.1:{port}")) as (kube, proxy),
    ):
        world = World(kube, proxy.cut)
        await world.prepare()
        yield world


@contextlib.asynccontextmanager
async def real_world() -> AsyncIterator[World]:
    async with _through_a_proxy(kubeconfig.load([Path(os.environ[REAL])])) as (kube, proxy):
        world = World(kube, proxy.cut, collects=False, forgets=False)
        await world.prepare()
        try:
            yield world
        finally:
            await kube.delete(kinds.NAMESPACE, world.namespace)


class Proxy:
    """Hands bytes on, and can cut all connections at once."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError):
                onward, back = await asyncio.open_connection(self._host, self._port)
                writers.add(back)
                self._writers.add(back)
                await asyncio.gather(_copy(reader, back), _copy(onward, writer))
        finally:
            self._writers -= writers
            for each in writers:
                each.transport.abort()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def _through_a_proxy(access: Access) -> AsyncIterator[tuple[HttpKube, Proxy]]:
    parts = urlsplit(access.server)
    host = parts.hostname or ""
    proxy = Proxy(host, parts.port or (443 if parts.scheme == "https" else 80))
    listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    near = replace(
        access,
        server=f"{parts.scheme}://127.0.0.1:{port}{parts.path}",
        tls_server_name=access.tls_server_name or (host if parts.scheme == "https" else ""),
    )
    kube = HttpKube(near, SystemClock(), page=PAGE)
    try:
        yield kube, proxy
    finally:
        await kube.close()
        listener.close()
        await proxy.close()
