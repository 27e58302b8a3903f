"""The validating webhook: rejects changes of pools, shard groups and templates that cannot take effect.

A static group's template, subnet pool and shards are set in the shards' configuration, so a pool cannot change them. A
pool's provider IDs and a shard group's spec are written by the operator, and a change by hand would be undone. Every
replica serves, with or without the lease, and answers from the request alone.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from nstance.kube import kinds
from nstance.kube.port import FIELD_MANAGER, Object
from nstance.model import ids
from nstance.operator.serving.webhook_certificate import WebhookCertificate
from nstance.wire import http_listener

log = logging.getLogger(__name__)

PATH = "/validate"
FIXED = ("template", "subnetPool", "shards")  # of a static pool
SHARD_GROUP_FIXED = (
    "an NstanceShardGroup is one shard's part of a pool, and the operator sets it: scale the MachinePool, or change the "
    "NstanceMachinePool"
)
MAX_VALUE_LENGTH = 100  # of a value in a message


def review(request: Object) -> Iterator[str]:
    """All problems of an admission request."""
    kind = (request.get("kind") or {}).get("kind")
    new, old = request.get("object") or {}, request.get("oldObject") or {}
    operation = request.get("operation")
    if operation not in ("CREATE", "UPDATE") or (new.get("metadata") or {}).get("deletionTimestamp"):
        return
    if operation == "UPDATE" and _is_of(request, kinds.NSTANCE_SHARD_GROUP):
        if not _is_operator(request) and old.get("spec") != new.get("spec"):
            yield SHARD_GROUP_FIXED
        return
    if kind == kinds.NSTANCE_MACHINE_POOL.name:
        yield from _review_pool(new.get("spec") or {})
        if operation == "UPDATE":
            yield from _review_pool_change(old, new.get("spec") or {})
            if not _is_operator(request) and _provider_ids(old) != _provider_ids(new):
                yield "spec.providerIDList cannot be changed: it is the operator's list of the pool's VMs"
    elif kind == kinds.NSTANCE_MACHINE_TEMPLATE.name:
        yield from _review_template(new.get("spec") or {})
        if operation == "UPDATE" and old.get("spec") != new.get("spec"):
            yield (
                "spec cannot be changed: existing machines were created from it; create a new NstanceMachineTemplate "
                "and refer to that one"
            )


def _is_of(request: Object, kind: kinds.Kind) -> bool:
    """Also for `kubectl scale`, whose object is a Scale."""
    return (request.get("resource") or {}).get("resource") == kind.plural


def _is_operator(request: Object) -> bool:
    return (request.get("options") or {}).get("fieldManager") == FIELD_MANAGER


def _provider_ids(item: Object) -> object:
    return (item.get("spec") or {}).get("providerIDList") or []


def _review_pool(spec: Object) -> Iterator[str]:
    group, shards = spec.get("group"), spec.get("shards")
    if not isinstance(group, str) or not ids.is_name(group):
        yield f"spec.group: expected the name of a group, found {_quote(group)}"
    if not isinstance(shards, list) or not shards:
        yield "spec.shards: expected at least one shard"
        return
    for shard in shards:
        if not isinstance(shard, str) or not ids.is_name(shard):
            yield f"spec.shards: expected names of shards, found {_quote(shard)}"
    if len({str(shard) for shard in shards}) != len(shards):
        yield "spec.shards: expected each shard once"


def _review_pool_change(old: Object, spec: Object) -> Iterator[str]:
    before = old.get("spec") or {}
    if before.get("group") != spec.get("group"):
        yield "spec.group cannot be changed: create another NstanceMachinePool for another group"
    if not (old.get("status") or {}).get("isStatic"):
        return
    for name in FIXED:
        if (before.get(name) or None) != (spec.get(name) or None):
            yield (
                f"spec.{name} cannot be changed from {_quote(before.get(name))} to {_quote(spec.get(name))}: the group "
                f"{before.get('group')} is static, it is defined in its shards' configuration; change it there. Size, "
                "instanceType and vars can be changed here"
            )


def _review_template(spec: Object) -> Iterator[str]:
    inner = (spec.get("template") or {}).get("spec")
    if not isinstance(inner, dict):
        yield "spec.template.spec: expected the spec of an NstanceMachine"
    elif not inner.get("group") and not inner.get("groupRef"):
        yield "spec.template.spec.group: expected the name of a group"


def _quote(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "…"


def answer(body: Any) -> Object:
    """The AdmissionReview that answers an AdmissionReview. Raises ValueError for anything else."""
    if not isinstance(body, dict) or body.get("kind") != "AdmissionReview":
        raise ValueError("expected an AdmissionReview")
    request = body.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise ValueError("expected an AdmissionReview with a request and its uid")
    try:
        problems = list(review(request))
    except (AttributeError, TypeError) as error:
        raise ValueError("the object in the request does not have the shape of its kind") from error
    response: Object = {"uid": request["uid"], "allowed": not problems}
    if problems:
        message = "; ".join(problems)
        response["status"] = {"code": 422, "reason": "Invalid", "message": message}
        log.info(
            "change rejected by webhook",
            extra={"object": f"{request.get('namespace')}/{request.get('name')}", "reason": message},
        )
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class WebhookServer:
    def __init__(self, certificate: WebhookCertificate) -> None:
        self.certificate = certificate
        self.listener = http_listener.HttpListener(self._answer, context=lambda: certificate.context)

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
