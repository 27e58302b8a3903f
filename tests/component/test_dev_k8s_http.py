"""What clients other than kubectl see of dev-k8s: watches, forms of answers, refusals."""

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nstance.dev.k8s import streams
from nstance.kube import crds
from support.k8s_server import Server, serving

NODES = "/api/v1/nodes"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE = "application/merge-patch+json"


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "k8s", window=20) as found:
        yield found


async def make(server: Server, name: str, **labels: str) -> Any:
    return await server.call("POST", NODES, {"metadata": {"name": name, "labels": labels}}, code=201)


async def events(stream: Any, count: int) -> list[tuple[str, Any]]:
    lines = [json.loads(await stream.content.readline()) for _ in range(count)]
    return [(each["type"], each["object"]) for each in lines]


def named(found: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(kind, body["metadata"].get("name", "")) for kind, body in found]


async def test_a_watch_without_a_version_begins_with_what_is_there(server: Server) -> None:
    await make(server, "a")
    async with server.stream(f"{NODES}?watch=true") as stream:
        assert named(await events(stream, 1)) == [("ADDED", "a")]
        await make(server, "b")
        assert named(await events(stream, 1)) == [("ADDED", "b")]


async def test_initial_events_end_with_a_marked_bookmark(server: Server) -> None:
    await make(server, "a")
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    async with server.stream(f"{NODES}?{query}") as stream:
        found = await events(stream, 2)
    assert named(found) == [("ADDED", "a"), ("BOOKMARK", "")]
    assert found[1][1]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_ends_after_its_time_with_a_bookmark(server: Server) -> None:
    version = (await server.get(NODES))["metadata"]["resourceVersion"]
    await server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "x"}}, code=201)
    query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={version}"
    async with server.stream(f"{NODES}?{query}") as stream:
        text = await stream.text()
    [event] = map(json.loads, text.splitlines())
    assert event["type"] == "BOOKMARK"
    assert int(event["object"]["metadata"]["resourceVersion"]) == int(version) + 1


async def test_bookmarks_come_while_other_kinds_change(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lease that is renewed every two seconds must not keep quiet watches without a sign of life."""
    monkeypatch.setattr(streams, "BOOKMARK_SECONDS", 0.1)
    version = (await server.get(NODES))["metadata"]["resourceVersion"]
    done = asyncio.Event()

    async def change() -> None:
        number = 0
        while not done.is_set():
            number += 1
            await server.call("POST", "/api/v1/namespaces", {"metadata": {"name": f"n{number}"}}, code=201)

    changing = asyncio.create_task(change())
    async with server.stream(f"{NODES}?watch=1&allowWatchBookmarks=true&resourceVersion={version}") as stream:
        found = await events(stream, 3)
    done.set()
    await changing
    assert [kind for kind, _ in found] == ["BOOKMARK"] * 3


async def test_a_watch_from_too_long_ago_is_an_expired_event(server: Server) -> None:
    version = (await make(server, "a"))["metadata"]["resourceVersion"]
    for number in range(25):
        await server.call("PATCH", f"{NODES}/a", {"metadata": {"labels": {"n": str(number)}}}, Content_Type=MERGE)
    async with server.stream(f"{NODES}?watch=1&resourceVersion={version}") as stream:
        assert stream.status == 200
        [(kind, status)] = await events(stream, 1)
        assert await stream.content.readline() == b""
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


async def test_watches_in_tables_and_with_selectors(server: Server) -> None:
    version = (await server.get(NODES))["metadata"]["resourceVersion"]
    query = f"watch=1&resourceVersion={version}&labelSelector=x%3D1"
    async with server.stream(f"{NODES}?{query}", Accept=TABLE) as stream:
        await make(server, "a", x="1")
        await make(server, "b", x="2")
        await server.call("PATCH", f"{NODES}/a", {"metadata": {"labels": {"x": "2"}}}, Content_Type=MERGE)
        found = await events(stream, 2)
    assert [(kind, body["kind"], body["rows"][0]["cells"][0]) for kind, body in found] == [
        ("ADDED", "Table", "a"),
        ("DELETED", "Table", "a"),
    ]
    assert found[0][1]["columnDefinitions"]
    assert not found[1][1]["columnDefinitions"], "the head is sent once"


async def test_forms_of_answers(server: Server) -> None:
    await make(server, "a", x="1")
    table = await server.call("GET", f"{NODES}/a", Accept=TABLE)
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    plain = await server.call("GET", f"{NODES}/a", Accept="application/vnd.kubernetes.protobuf")
    assert plain["kind"] == "Node", "who asks for protobuf gets JSON"


async def test_discovery_of_both_ages(server: Server) -> None:
    assert (await server.get("/api"))["versions"] == ["v1"]
    groups = {each["name"]: each for each in (await server.get("/apis"))["groups"]}
    assert groups["cluster.x-k8s.io"]["preferredVersion"]["version"] == "v1beta2"
    assert (await server.get("/apis/policy"))["kind"] == "APIGroup"
    listed = {each["name"]: each for each in (await server.get("/apis/cluster.x-k8s.io/v1beta2"))["resources"]}
    assert listed["machinepools/scale"]["kind"] == "Scale"
    assert listed["machinepools"]["shortNames"] == ["mp"]
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    async with server.stream("/apis", Accept=accept) as response:
        assert "as=APIGroupDiscoveryList" in response.headers["Content-Type"]
        document = await response.json(content_type=None)
    names = [each["metadata"]["name"] for each in document["items"]]
    assert "infrastructure.cluster.x-k8s.io" in names
    for path in ("/apis/nothing", "/apis/policy/v9", "/api/v2", "/openapi/v3/apis/nothing/v1", "/elsewhere"):
        await server.call("GET", path, code=404)


async def test_paging(server: Server) -> None:
    for name in "abc":
        await make(server, name)
    first = await server.get(f"{NODES}?limit=2")
    assert first["metadata"]["remainingItemCount"] == 1
    rest = await server.get(f"{NODES}?limit=2&continue={first['metadata']['continue']}")
    assert [each["metadata"]["name"] for each in rest["items"]] == ["c"]
    assert "continue" not in rest["metadata"]


@pytest.mark.parametrize(
    ("method", "path", "body", "media", "refusal"),
    [
        ("POST", NODES, b"{", "application/json", (400, "unrecognized")),
        ("POST", NODES, b"", "application/json", (400, "unrecognized")),
        ("POST", NODES, b'{"a": NaN}', "application/json", (400, "NaN is not JSON")),
        ("POST", NODES, b"[" * 100_000, "application/json", (400, "unrecognized")),
        ("POST", NODES, b"a: [", "application/yaml", (400, "unrecognized")),
        ("POST", NODES, b"garbage", "application/vnd.kubernetes.protobuf", (415, "expected the prefix")),
        ("POST", NODES, b"x" * (4 * 1024 * 1024), "application/json", (413, "limit is")),
        ("PATCH", f"{NODES}/a", b"{}", "text/plain", (415, "accepted media types")),
        ("PATCH", f"{NODES}/a", b"[]", MERGE, (400, "is an object")),
        ("PUT", NODES, b"{}", "application/json", (405, "does not allow")),
        ("POST", f"{NODES}/a", b"{}", "application/json", (405, "does not allow")),
        ("POST", "/api/v1/namespaces/default/nodes", b"{}", "application/json", (404, "could not find")),
        ("POST", "/version", b"{}", "application/json", (405, "does not allow")),
        ("GET", f"{NODES}/a/log", None, "", (404, "could not find")),
        ("GET", f"{NODES}?limit=x", None, "", (400, "expected a number")),
        ("GET", f"{NODES}?labelSelector=%3D", None, "", (400, "unable to parse")),
        ("POST", f"{NODES}?dryRun=Some", b'{"metadata": {"name": "b"}}', "application/json", (400, "invalid dryRun")),
        (
            "DELETE",
            f"{NODES}/a",
            b'{"propagationPolicy": "Sideways"}',
            "application/json",
            (400, "invalid propagationPolicy"),
        ),
        ("DELETE", f"{NODES}/a", b'{"preconditions": {"uid": "x"}}', "application/json", (409, "Precondition failed")),
        ("GET", f"{NODES}/..%2f..%2fx", None, "", (404, "could not find")),
        ("GET", "/api/v1/namespaces/%2e%2e/configmaps/x", None, "", (404, "not found")),
    ],
)
async def test_bad_requests_are_refused_with_a_status(
    server: Server, method: str, path: str, body: bytes | None, media: str, refusal: tuple[int, str]
) -> None:
    code, message = refusal
    await make(server, "a")
    answer = await server.call(method, path, body, code=code, **({"Content_Type": media} if media else {}))
    assert answer["kind"] == "Status"
    assert answer["code"] == code
    assert message in answer["message"]
    assert len((await server.get(NODES))["items"]) == 1


async def test_names_cannot_leave_the_folder(server: Server) -> None:
    """A name with slashes or dots is refused before it becomes a path."""
    for name in ("../../x", "..", "a/b", ".", "x\u0000y"):
        await server.call("POST", NODES, {"metadata": {"name": name}}, code=422)
    spaces = {"metadata": {"name": "a", "namespace": "../../.."}}
    await server.call("POST", "/api/v1/configmaps", spaces, code=404)
    assert not list(server.folder.parent.glob("*.json"))


async def test_a_client_that_goes_is_no_fault(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path / "k8s") as server:
        for _ in range(3):
            async with server.stream(f"{NODES}?watch=1") as stream:
                await make(server, "a")
                assert named(await events(stream, 1)) == [("ADDED", "a")]
            await server.call("DELETE", f"{NODES}/a")
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


async def test_unknown_fields_are_dropped_with_a_warning(server: Server) -> None:
    for kind in crds.KINDS:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await server.call("POST", path, crds.definition(kind), code=201)
    pools = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/default/nstancemachinepools"
    body = {"metadata": {"name": "p"}, "spec": {"group": "web", "shards": ["a"], "sise": 3}}
    warning = '299 - "unknown field \\"spec.sise\\""'
    assert await server.warnings("POST", pools, body) == [warning]
    assert await server.warnings("PATCH", f"{pools}/p", {"spec": {"sise": 3}}, Content_Type=MERGE) == [warning]
    query = "?fieldValidation=Ignore"
    assert not await server.warnings("PATCH", f"{pools}/p{query}", {"spec": {"sise": 3}}, Content_Type=MERGE)
    assert "sise" not in (await server.get(f"{pools}/p"))["spec"]
    refused = await server.call("POST", f"{pools}?fieldValidation=Strict", body, code=400)
    assert "spec.sise" in refused["message"]
