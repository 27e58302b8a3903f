"""Kubernetes: kubeconfigs, admission reviews, what an API server answers, and requests to the development one."""

import asyncio
import functools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fuzz import http_wire
from fuzz.http_wire import StillClock
from fuzz.law import CLOSING, Broken, target
from nstance.dev.k8s import protobuf
from nstance.dev.k8s.files import Files
from nstance.dev.k8s.service import Service
from nstance.kube import errors, http, kinds, kubeconfig, response_errors
from nstance.operator.serving.webhooks import WebhookServer
from nstance.sim.rng import SeededRng


@target(
    "kubeconfig",
    kubeconfig.KubeconfigError,
    words=(
        b"clusters:\n",
        b"users:\n",
        b"current-context: ",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/name:os.system ",
        b"exec:\n",
        b"2001-01-01",
        b"server: http://[::1",
    ),
)
def kubeconfig_text(data: bytes) -> None:
    found = kubeconfig.parse(data)
    if found.plugin is not None or any(
        isinstance(part, Path) for part in (found.ca, found.certificate, found.key, found.token)
    ):
        raise Broken("a kubeconfig from a Secret names a program or a file")


@target(
    "kube-answer",
    errors.KubeError,
    words=(
        b'"type"',
        b'"object"',
        b'"ERROR"',
        b'"code"',
        b'"details"',
        b'"causes"',
        b'"retryAfterSeconds"',
        b'"reason"',
        b'"kind":"Status"',
    ),
)
def kube_answer(data: bytes) -> None:
    for code in (400, 409, 429, 503, 500):
        problem = response_errors.from_response(
            code, {"Retry-After": data[:20].decode("latin-1")}, data, call="GET /x", kind=kinds.SECRET, changes=True
        )
        if not str(problem):
            raise Broken("an error that says nothing")
    http._event(data, kinds.NODE, "GET /x")


@functools.cache
def _runner() -> asyncio.Runner:
    made = asyncio.Runner()
    CLOSING.append(made.close)
    CLOSING.append(_runner.cache_clear)
    return made


@target(
    "admission",
    words=(
        b'"request"',
        b'"uid"',
        b'"object"',
        b'"oldObject"',
        b'"operation":"UPDATE"',
        b'"spec"',
        b'"shards"',
        b'"group"',
        b'"NstanceMachinePool"',
        b'"status"',
    ),
)
def admission(data: bytes) -> None:
    """The whole webhook: every body gets an AdmissionReview, or 400."""
    webhook = WebhookServer(cast(Any, SimpleNamespace(context=None)))
    head = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(data)
    answer = _runner().run(http_wire.send(webhook._answer, head, data))
    if answer.startswith(b"HTTP/1.1 200"):
        review = json.loads(answer.partition(b"\r\n\r\n")[2])
        if review["kind"] != "AdmissionReview" or not isinstance(review["response"]["allowed"], bool):
            raise Broken("not an answer that Kubernetes understands")
    elif not answer.startswith(b"HTTP/1.1 400"):
        raise Broken(f"an unexpected answer: {answer[:200]!r}")


class _World:
    """A server with a few objects; made again before it holds too many."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.files = Files(Path(self.folder.name) / "objects", StillClock(), SeededRng("fuzz"))
        self.service = Service(self.files, StillClock())
        self.served = 0
        for name in ("secrets", "pods"):
            body = json.dumps({"metadata": {"name": "a", "labels": {"app": "x"}}}).encode()
            head = b"POST /api/v1/namespaces/default/%s HTTP/1.1\nHost: x" % name.encode()
            _runner().run(http_wire.send(self.service.handle, *http_wire.framed(head + b"\n\n" + body)))


_kept: list[_World] = []


def _close() -> None:
    while _kept:
        _kept.pop().folder.cleanup()


CLOSING.append(_close)
REQUESTS = (
    *(
        b"GET /api/v1/",
        b"POST /api/v1/namespaces/default/secrets",
        b"PATCH /api/v1/namespaces/default/secrets/a",
        b"?watch=1&timeoutSeconds=1",
    ),
    *(
        b"\nContent-Type: application/yaml",
        b"\nContent-Type: application/json-patch+json",
        b"\nContent-Type: application/merge-patch+json",
    ),
    *(
        b"\nContent-Type: application/strategic-merge-patch+json",
        b"\nContent-Type: application/apply-patch+yaml",
        b"?continue=",
        b"&limit=",
    ),
    *(
        b"\nAccept: application/json;as=Table;g=meta.k8s.io;v=v1",
        b"?labelSelector=",
        b"&fieldSelector=",
        b'{"op":"add","path":"/-","value":',
    ),
    *(
        b'"metadata"',
        b'"finalizers"',
        b'"$patch"',
        b'"ownerReferences"',
        b"/scale",
        b"/status",
        b"/eviction",
        b"/token",
        b"&a ",
        b"*a",
    ),
)


@target("k8s-request", words=REQUESTS)
def k8s_request(data: bytes) -> None:
    if not _kept or _kept[0].served >= 200:
        _close()
        _kept.append(_World())
    world = _kept[0]
    world.served += 1
    answer = _runner().run(http_wire.send(world.service.handle, *http_wire.framed(data)))
    if answer.startswith(b"HTTP/1.1 500"):
        raise Broken(f"a refusal that is our own fault: {answer[:300]!r}")
    outside = [path for path in Path(world.folder.name).iterdir() if path.name != "objects"]
    if outside:
        raise Broken(f"files outside of the folder: {outside}")


@target(
    "k8s-protobuf",
    protobuf.ProtobufError,
    UnicodeDecodeError,
    words=(b"k8s\0", b"\x0a", b"\x12", b"Secret", b"Deployment", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
)
def k8s_protobuf(data: bytes) -> None:
    json.dumps(protobuf.decode(data))
