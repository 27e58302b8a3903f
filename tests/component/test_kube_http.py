"""The HTTP client against servers that misbehave on purpose."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from component.kube_http_world import POD, always, client, pod, raw, serving, status
from nstance.kube import errors, kinds
from nstance.kube.http import HttpKube
from nstance.kube.port import Selection

# ---- what an answer means


@pytest.mark.parametrize(
    ("code", "reason", "method", "expected"),
    [
        (400, "BadRequest", "create", errors.InvalidError),
        (401, "Unauthorized", "create", errors.ForbiddenError),
        (403, "Forbidden", "get", errors.ForbiddenError),
        (404, "NotFound", "get", errors.NotFoundError),
        (405, "MethodNotAllowed", "create", errors.InvalidError),
        (409, "AlreadyExists", "create", errors.AlreadyExistsError),
        (409, "Conflict", "create", errors.ConflictError),
        (409, "", "patch", errors.ConflictError),
        (410, "Expired", "get", errors.ExpiredError),
        (413, "RequestEntityTooLarge", "create", errors.InvalidError),
        (415, "UnsupportedMediaType", "patch", errors.InvalidError),
        (422, "Invalid", "create", errors.InvalidError),
        (429, "TooManyRequests", "create", errors.ThrottledError),
        (500, "InternalError", "get", errors.UnavailableError),
        (500, "InternalError", "create", errors.UnknownOutcomeError),
        (502, "", "patch", errors.UnknownOutcomeError),
        (503, "ServiceUnavailable", "create", errors.UnavailableError),
        (504, "Timeout", "create", errors.UnknownOutcomeError),
        (504, "Timeout", "get", errors.UnavailableError),
    ],
)
async def test_every_refusal_has_its_name(code: int, reason: str, method: str, expected: type[Exception]) -> None:
    calls: dict[str, Callable[[HttpKube], Awaitable[object]]] = {
        "get": lambda kube: kube.get(POD, "a", namespace="here"),
        "create": lambda kube: kube.create(POD, pod("a")),
        "patch": lambda kube: kube.patch(POD, "a", {}, namespace="here"),
    }
    async with serving(always(lambda: status(code, reason))) as url, client(url) as kube:
        with pytest.raises(errors.KubeError, match="as told") as caught:
            await calls[method](kube)
        assert type(caught.value) is expected


async def test_every_request_is_counted_with_its_answer() -> None:
    counted: list[tuple[str, str]] = []

    def count(method: str, code: str) -> None:
        counted.append((method, code))

    async with (
        serving(always(lambda: status(404, "NotFound"))) as url,
        client(url, on_request=count) as kube,
    ):
        for call in (kube.get(POD, "a", namespace="here"), kube.patch(POD, "a", {}, namespace="here")):
            with pytest.raises(errors.NotFoundError):
                await call
        with pytest.raises(errors.NotFoundError):
            await anext(aiter(kube.watch(Selection(POD), version="1")))
    async with client(url, on_request=count) as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.get(POD, "a", namespace="here")
    assert counted == [("GET", "404"), ("PATCH", "404"), ("WATCH", "404"), ("GET", "UNREACHABLE")]


async def test_all_causes_are_in_the_message() -> None:
    causes = [
        {"field": "spec.size", "message": "must be positive"},
        {"field": "spec.shards", "message": "must not be empty"},
    ]
    async with (
        serving(always(lambda: status(422, "Invalid", "2 faults", causes=causes))) as url,
        client(url) as kube,
    ):
        with pytest.raises(errors.InvalidError) as caught:
            await kube.create(POD, pod("a"))
        for text in ("2 faults", "spec.size: must be positive", "spec.shards: must not be empty"):
            assert text in str(caught.value)


async def test_a_secret_is_never_quoted() -> None:
    """An API server quotes what it cannot read."""
    causes = [{"field": "data.password", "message": "hunter2 is not base64"}]
    async with (
        serving(always(lambda: status(422, "Invalid", "cannot read hunter2", causes=causes))) as url,
        client(url) as kube,
    ):
        with pytest.raises(errors.InvalidError) as caught:
            await kube.create(kinds.SECRET, pod("a"))
        assert "hunter2" not in str(caught.value)
        assert "data.password" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "header", "in_body", "delay"),
    [
        (429, "7", None, 7.0),
        (429, None, 10, 10.0),
        (503, "3", None, 3.0),
        (429, None, None, 1.0),
        (429, "soon", None, 1.0),
    ],
)
async def test_patience_is_asked_for_in_two_places(
    code: int, header: str | None, in_body: int | None, delay: float
) -> None:
    def answer() -> web.Response:
        document = status(code, "TooManyRequests", retryAfterSeconds=in_body)
        if header:
            document.headers["Retry-After"] = header
        return document

    async with serving(always(answer)) as url, client(url) as kube:
        with pytest.raises(errors.ThrottledError) as caught:
            await kube.evict("a", namespace="here")
        assert caught.value.delay == delay


async def test_redirects_are_refused() -> None:
    """A token must not follow them."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with serving(answer) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError, match="redirects are not followed"):
            await kube.get(POD, "a", namespace="here")
    assert seen == ["/api/v1/namespaces/here/pods/a"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"a":', b"\xff\xfe", b"[" * 200_000])
async def test_garbage_is_no_answer(body: bytes) -> None:
    async with serving(always(lambda: web.Response(body=body))) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.get(POD, "a", namespace="here")
        with pytest.raises(errors.UnavailableError):
            await kube.list(POD)
        with pytest.raises(errors.UnknownOutcomeError):
            await kube.create(POD, pod("a"))


# ---- what may have happened


async def test_a_refused_connection_changed_nothing() -> None:
    async with raw(lambda reader, writer: asyncio.sleep(0)) as url:
        pass
    async with client(url) as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.create(POD, pod("a"))
        with pytest.raises(errors.UnavailableError):
            await kube.get(POD, "a", namespace="here")


async def test_an_unknown_host_changed_nothing() -> None:
    async with client("http://no-such-host.invalid:6443") as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.create(POD, pod("a"))


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 201 Created\r\nContent-Len", b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{}"]
)
async def test_a_torn_answer_leaves_a_change_unknown(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()

    async with raw(answer) as url, client(url) as kube:
        for change in (kube.create(POD, pod("a")), kube.replace(POD, pod("a")), kube.delete(POD, "a", namespace="x")):
            with pytest.raises(errors.UnknownOutcomeError):
                await change
        with pytest.raises(errors.UnavailableError):
            await kube.get(POD, "a", namespace="here")


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"])
async def test_an_answer_that_never_comes_has_a_deadline(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await asyncio.Event().wait()

    async with raw(answer) as url, client(url, call_seconds=1.0) as kube:
        with pytest.raises(errors.UnknownOutcomeError, match=r"1\.?0? s"):
            await kube.patch(POD, "a", {}, namespace="here")
        with pytest.raises(errors.UnavailableError, match=r"1\.?0? s"):
            await kube.get(POD, "a", namespace="here")


async def test_a_server_that_never_accepts_changed_nothing() -> None:
    """A TLS handshake that never ends: the request was not sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw(answer) as url, client(url.replace("http:", "https:"), connect_seconds=0.2) as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.create(POD, pod("a"))


async def test_a_server_without_tls_is_unreachable() -> None:
    async with serving(always(web.Response)) as url, client(url.replace("http:", "https:")) as kube:
        with pytest.raises(errors.UnavailableError, match="could not be reached"):
            await kube.create(POD, pod("a"))


async def test_a_closed_client_says_so() -> None:
    async with client("http://127.0.0.1:1") as kube:
        pass
    with pytest.raises(errors.UnavailableError, match="closed"):
        await kube.get(POD, "a", namespace="here")


# ---- what is sent


class Recorder:
    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []

    async def __call__(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        path = request.raw_path.partition("?")[0]
        self.requests.append((request.method, path, dict(request.query), body, dict(request.headers)))
        return web.json_response(self.answers.pop(0) if self.answers else {})


async def test_requests_are_as_kubernetes_wants_them() -> None:
    record = Recorder()
    async with serving(record) as url, client(url + "/prefix", token="t0ken") as kube:
        await kube.create(kinds.MACHINE_POOL, {"metadata": {"name": "p", "namespace": "here"}})
        await kube.replace(POD, pod("a", 7))
        await kube.patch(POD, "a", {"status": {}}, namespace="here", subresource="status")
        await kube.patch(kinds.NODE, "n", {"spec": {}})
        await kube.delete(POD, "a", namespace="here", uid="u")
        await kube.evict("a", namespace="here", uid="u")
        await kube.get(kinds.NODE, "weird/name?")
    sent: list[Any] = [request[:4] for request in record.requests]
    base = "/prefix/api/v1/namespaces/here/pods/a"
    machine_pools = "/prefix/apis/cluster.x-k8s.io/v1beta2/namespaces/here/machinepools"
    about = {"apiVersion": "v1", "kind": "Pod", **pod("a", 7)}
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    expected: list[Any] = [
        (
            "POST",
            machine_pools,
            {},
            {
                "apiVersion": "cluster.x-k8s.io/v1beta2",
                "kind": "MachinePool",
                "metadata": {"name": "p", "namespace": "here"},
            },
        ),
        ("PUT", base, {}, about),
        ("PATCH", base + "/status", {"fieldManager": "nstance-operator"}, {"status": {}}),
        ("PATCH", "/prefix/api/v1/nodes/n", {"fieldManager": "nstance-operator"}, {"spec": {}}),
        ("DELETE", base, {}, {**options, "preconditions": {"uid": "u"}}),
        (
            "POST",
            base + "/eviction",
            {},
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "a", "namespace": "here"},
                "deleteOptions": {"preconditions": {"uid": "u"}},
            },
        ),
        ("GET", "/prefix/api/v1/nodes/weird%2Fname%3F", {}, None),
    ]
    assert sent == expected
    headers = [request[4] for request in record.requests]
    assert {head["User-Agent"].partition("/")[0] for head in headers} == {"nstance-operator"}
    assert {head["Authorization"] for head in headers} == {"Bearer t0ken"}
    assert {head["Accept"] for head in headers} == {"application/json"}
    assert [head.get("Content-Type") for head in headers] == [
        "application/json", "application/json", "application/merge-patch+json", "application/merge-patch+json",
        "application/json", "application/json", None,
    ]  # fmt: skip


async def test_nothing_is_sent_that_would_mean_something_else() -> None:
    """A DELETE without a name would delete all of them."""
    record = Recorder()
    async with serving(record) as url, client(url) as kube:
        for call in (
            kube.delete(POD, "", namespace="here"),
            kube.delete(POD, "..", namespace="here"),
            kube.delete(POD, "a"),
            kube.get(POD, "a", namespace=".."),
            kube.create(POD, {"metadata": {"name": "a"}}),
            kube.replace(POD, {"metadata": {"name": "a", "namespace": "here"}}),
        ):
            with pytest.raises(errors.InvalidError):
                await call
    assert record.requests == []


async def test_a_token_is_read() -> None:
    answer = {"status": {"token": "s3cret", "expirationTimestamp": "2030-01-01T00:00:00Z"}}
    record = Recorder(answer, {"status": {}})
    async with serving(record) as url, client(url) as kube:
        token = await kube.request_token("robot", namespace="here", seconds=3600)
        assert (token.value, token.expires) == ("s3cret", 1893456000.0)
        assert "s3cret" not in repr(token)
        with pytest.raises(errors.UnavailableError):
            await kube.request_token("robot", namespace="here", seconds=3600)
    assert record.requests[0][1] == "/api/v1/namespaces/here/serviceaccounts/robot/token"
    assert record.requests[0][3]["spec"] == {"expirationSeconds": 3600}


async def test_a_rotated_token_is_read_again_after_a_401(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response(pod("a")) if seen[-1] == "Bearer new" else status(401, "Unauthorized")

    async with serving(answer) as url, client(url, token=file) as kube:
        with pytest.raises(errors.ForbiddenError):
            await kube.get(POD, "a", namespace="here")
        assert seen == ["Bearer old"], "the same token is not sent twice"
        file.write_text("new\n")
        assert await kube.get(POD, "a", namespace="here") == pod("a")
    assert seen[-2:] == ["Bearer old", "Bearer new"]
