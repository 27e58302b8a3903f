"""The validating webhook: what must not be changed is refused when it is asked for, not found out later.

A static group's template, subnet pool and place are in the shards' configuration; a pool that said something else would
only be wrong. Every replica serves, whoever holds the lease, and answers from the request alone.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.model import ids
from nstance.operator.serving.webhook_certificate import WebhookCertificate
from nstance.wire import http_listener

log = logging.getLogger(__name__)

PATH = "/validate"
FIXED = ("template", "subnetPool", "shards")  # of a static pool


def review(request: Object) -> Iterator[str]:
    """Everything that is wrong with an admission request."""
    kind = (request.get("kind") or {}).get("kind")
    new, old = request.get("object") or {}, request.get("oldObject") or {}
    operation = request.get("operation")
    if operation not in ("CREATE", "UPDATE") or (new.get("metadata") or {}).get("deletionTimestamp"):
        return
    if kind == kinds.NSTANCE_MACHINE_POOL.name:
        yield from _pool(new.get("spec") or {})
        if operation == "UPDATE":
            yield from _pool_change(old, new.get("spec") or {})
    elif kind == kinds.NSTANCE_MACHINE_TEMPLATE.name:
        yield from _template(new.get("spec") or {})
        if operation == "UPDATE" and old.get("spec") != new.get("spec"):
            yield (
                "spec cannot be changed: machines that exist were made from it; make a new NstanceMachineTemplate and "
                "refer to that one"
            )


def _pool(spec: Object) -> Iterator[str]:
    group, shards = spec.get("group"), spec.get("shards")
    if not isinstance(group, str) or not ids.is_name(group):
        yield f"spec.group: expected the name of a group, found {_shown(group)}"
    if not isinstance(shards, list) or not shards:
        yield "spec.shards: expected at least one shard"
        return
    for shard in shards:
        if not isinstance(shard, str) or not ids.is_name(shard):
            yield f"spec.shards: expected names of shards, found {_shown(shard)}"
    if len({str(shard) for shard in shards}) != len(shards):
        yield "spec.shards: expected each shard once"


def _pool_change(old: Object, spec: Object) -> Iterator[str]:
    before = old.get("spec") or {}
    if before.get("group") != spec.get("group"):
        yield "spec.group cannot be changed: make another NstanceMachinePool for another group"
    if not (old.get("status") or {}).get("isStatic"):
        return
    for name in FIXED:
        if (before.get(name) or None) != (spec.get(name) or None):
            yield (
                f"spec.{name} cannot be changed from {_shown(before.get(name))} to {_shown(spec.get(name))}: the group "
                f"{before.get('group')} is static, it is written in its shards' configuration; change it there. Size, "
                "instanceType and vars can be changed here"
            )


def _template(spec: Object) -> Iterator[str]:
    inner = (spec.get("template") or {}).get("spec")
    if not isinstance(inner, dict):
        yield "spec.template.spec: expected the spec of an NstanceMachine"
    elif not inner.get("group") and not inner.get("groupRef"):
        yield "spec.template.spec.group: expected the name of a group"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 100 else text[:100] + "…"


def answer(body: Any) -> Object:
    """An AdmissionReview for an AdmissionReview. Raises ValueError for anything else."""
    if not isinstance(body, dict) or body.get("kind") != "AdmissionReview":
        raise ValueError("expected an AdmissionReview")
    request = body.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise ValueError("expected an AdmissionReview with a request and its uid")
    try:
        faults = list(review(request))
    except (AttributeError, TypeError) as problem:
        raise ValueError("the object in the request is not of the shape that its kind has") from problem
    response: Object = {"uid": request["uid"], "allowed": not faults}
    if faults:
        message = "; ".join(faults)
        response["status"] = {"code": 422, "reason": "Invalid", "message": message}
        log.info(
            "a change was refused",
            extra={"object": f"{request.get('namespace')}/{request.get('name')}", "why": message},
        )
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class WebhookServer:
    def __init__(self, serving: WebhookCertificate) -> None:
        self._serving = serving
        self.door = http_listener.HttpListener(self._answer, context=lambda: serving.context)

    async def run(self) -> None:
        """Keeps the serving certificate, until it is cancelled."""
        await self._serving.run()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != PATH:
            return http_listener.not_found()
        if request.method != "POST":
            return http_listener.not_allowed("POST")
        try:
            reviewed = answer(json.loads(await request.read()))
        except (ValueError, RecursionError) as problem:
            return web.Response(status=400, text=str(problem) or "not JSON")
        return web.json_response(reviewed)
