"""Calls to an API server that the port does not have, because none of our programs makes them: other patches, replaced
statuses, and deletions with more conditions."""

from dataclasses import dataclass
from typing import Any

from nstance.kube import http
from nstance.kube.api import values
from nstance.kube.api.cascade import Propagation
from nstance.kube.api.patches import Patch
from nstance.kube.api.server import Options
from nstance.kube.kinds import Kind
from nstance.kube.memory import MemoryKube, Verb
from nstance.kube.port import Object


@dataclass(frozen=True)
class Target:
    """One object, or a subresource of it."""

    kind: Kind
    name: str
    namespace: str
    subresource: str = ""


async def patch(kube: Any, of: Target, body: Any, *, how: Patch, by: str = "tests") -> Object:
    """`by`: the field manager."""
    kind, name = of.kind, of.name
    typed = _with_type(kind, body) if how is Patch.APPLY else body
    if isinstance(kube, MemoryKube):
        target, options = kube._target(kind, name, of.namespace, of.subresource), Options(manager=by)
        return await kube._call(
            Verb.PATCH, kind, name, lambda: kube.api.patch(target, values.copy(typed), how=how, options=options)
        )
    query = {"fieldManager": by} | ({"force": "true"} if how is Patch.APPLY else {})
    path = http._path(kind, of.namespace, name, of.subresource)
    return await kube._call(http._Request("PATCH", path, kind, typed, how.value, query))


async def read_scale(kube: Any, kind: Kind, name: str, *, namespace: str) -> Object:
    if isinstance(kube, MemoryKube):
        target = kube._target(kind, name, namespace, "scale")
        return await kube._call(Verb.GET, kind, name, lambda: kube.api.get(target))
    return await kube._call(http._Request("GET", http._path(kind, namespace, name, "scale"), kind))


async def replace_status(kube: Any, kind: Kind, body: Object) -> Object:
    name, namespace, typed = body["metadata"]["name"], body["metadata"].get("namespace", ""), _with_type(kind, body)
    if isinstance(kube, MemoryKube):
        target = kube._target(kind, name, namespace, "status")
        return await kube._call(Verb.REPLACE, kind, name, lambda: kube.api.replace(target, typed))
    path = http._path(kind, namespace, name, "status")
    return await kube._call(http._Request("PUT", path, kind, typed))


async def delete(
    kube: Any, kind: Kind, name: str, *, namespace: str, version: str = "", foreground: bool = False
) -> None:
    how = Propagation.FOREGROUND if foreground else Propagation.BACKGROUND
    if isinstance(kube, MemoryKube):
        target = kube._target(kind, name, namespace)
        await kube._call(Verb.DELETE, kind, name, lambda: kube.api.delete(target, version=version, propagation=how))
        return
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": how.value}
    if version:
        options["preconditions"] = {"resourceVersion": version}
    await kube._call(http._Request("DELETE", http._path(kind, namespace, name), kind, options))


def _with_type(kind: Kind, body: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}
