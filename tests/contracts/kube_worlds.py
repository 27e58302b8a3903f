"""Kubernetes API servers, each with a door to it and with what may happen behind its back."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bench import wires
from bench.wires import Wire

from nstance.clock import SystemClock, SystemRng
from nstance.dev.k8s import main as dev_k8s
from nstance.kube import errors, kinds, kubeconfig, memory
from nstance.kube.http import HttpKube, HttpLimits
from nstance.kube.kubeconfig import Access
from nstance.kube.port import Change, Kube, Object
from support.eventually import eventually

REAL = "NSTANCE_TEST_KUBECONFIG"  # names the kubeconfig of a real API server
WINDOW = 60  # changes that the imitations remember: few, so that a version can be made to expire
PAGE = 3  # objects per page: few, so that lists have several
DEADLINE = 60.0

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
            with contextlib.suppress(errors.AlreadyExistsError):
                await self.kube.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": name, "namespace": self.namespace}})
        with contextlib.suppress(errors.AlreadyExistsError):
            await self.kube.create(kinds.CUSTOM_RESOURCE_DEFINITION, _DEFINITION)

        async def served() -> bool:
            try:
                await self.kube.list(WIDGET, namespace=self.namespace)
            except errors.NotFoundError:
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
    kube = memory.MemoryKube(memory.cluster(clock, SystemRng(), window=WINDOW), clock)
    world = World(kube, kube.break_watches)
    await world.prepare()
    yield world


@contextlib.asynccontextmanager
async def dev_world(folder: Path) -> AsyncIterator[World]:
    async with (
        dev_k8s.serving(folder, port=0, window=WINDOW) as port,
        _through_a_wire(Access(server=f"http://127.0.0.1:{port}")) as (kube, wire),
    ):
        world = World(kube, wire.reset)
        await world.prepare()
        yield world


@contextlib.asynccontextmanager
async def real_world() -> AsyncIterator[World]:
    async with _through_a_wire(kubeconfig.load([Path(os.environ[REAL])])) as (kube, wire):
        world = World(kube, wire.reset, collects=False, forgets=False)
        await world.prepare()
        try:
            yield world
        finally:
            await kube.delete(kinds.NAMESPACE, world.namespace)


@contextlib.asynccontextmanager
async def _through_a_wire(access: Access) -> AsyncIterator[tuple[HttpKube, Wire]]:
    parts = urlsplit(access.server)
    host = parts.hostname or ""
    far = Wire(parts.port or (443 if parts.scheme == "https" else 80), host)
    async with wires.listening(far) as wire:
        near = replace(
            access,
            server=f"{parts.scheme}://{wire.address}{parts.path}",
            tls_server_name=access.tls_server_name or (host if parts.scheme == "https" else ""),
        )
        kube = HttpKube(near, SystemClock(), limits=HttpLimits(page=PAGE))
        try:
            yield kube, wire
        finally:
            await kube.close()


@pytest.fixture(params=["memory", "dev-k8s", *(["real"] if REAL in os.environ else [])])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = {
        "memory": memory_world,
        "dev-k8s": lambda: dev_world(tmp_path),
        "real": real_world,
    }[request.param]()
    async with opened as made:
        yield made


def names(items: list[Object]) -> list[str]:
    return sorted(item["metadata"]["name"] for item in items)


def summarize(found: list[tuple[Change, Object]]) -> list[tuple[str, str]]:
    return [(change.value, body["metadata"]["name"]) for change, body in found]
