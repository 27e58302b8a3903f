"""Lists and watches of the HTTP client, against servers that misbehave on purpose."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from component.kube_http_world import POD, Handler, always, client, pod, raw, serving, status
from nstance.kube import errors
from nstance.kube.http import HttpKube
from nstance.kube.port import Change, Selection

# ---- lists


def pages(*answers: dict[str, Any] | web.Response) -> tuple[Handler, list[dict[str, str]]]:
    queries: list[dict[str, str]] = []
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        queries.append(dict(request.query))
        page = left.pop(0)
        return page if isinstance(page, web.Response) else web.json_response(page)

    return answer, queries


def page(*names: str, version: str = "9", more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"kind": "PodList", "metadata": metadata, "items": [pod(name) for name in names]}


async def test_pages_are_turned() -> None:
    handler, queries = pages(page("a", "b", more="x"), page("c", more="y"), page("d"))
    async with serving(handler) as url, client(url, page=2) as kube:
        listing = await kube.list(POD, namespace="here", labels="a in (b,c)", fields="spec.nodeName=n")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b", "c", "d"]
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "Pod")}
    assert listing.version == "9"
    selectors = {"labelSelector": "a in (b,c)", "fieldSelector": "spec.nodeName=n", "limit": "2"}
    assert queries == [selectors, {**selectors, "continue": "x"}, {**selectors, "continue": "y"}]


async def test_a_page_that_expired_starts_the_list_anew() -> None:
    """Whole this time, so that it cannot happen again."""
    handler, queries = pages(page("a", more="x"), status(410, "Expired"), page("a", "b", version="30"))
    async with serving(handler) as url, client(url) as kube:
        listing = await kube.list(POD)
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert listing.version == "30"
    assert queries[2] == {}


async def test_a_page_that_fails_fails_the_list() -> None:
    """Never a quiet half."""
    handler, _ = pages(page("a", more="x"), status(500, "InternalError"))
    async with serving(handler) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError):
            await kube.list(POD)


async def test_something_else_than_a_list_is_refused() -> None:
    async with serving(always(lambda: web.json_response(pod("a") | {"items": "x"}))) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError, match="expected a list"):
            await kube.list(POD)


# ---- watches


def event(change: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": change, "object": body}).encode() + b"\n"


def stream(*parts: bytes | float, then_hang: bool = False, tear: bool = False) -> Handler:
    """Sends the parts, waiting where a number stands."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            if isinstance(part, bytes):
                await response.write(part)
            else:
                await asyncio.sleep(part)
        if then_hang:
            await asyncio.Event().wait()
        if tear:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


async def watched(kube: HttpKube, timeout: float = 300.0, **selectors: str) -> list[tuple[Change, Any]]:
    return [
        (change, body["metadata"].get("name") or body["metadata"]["resourceVersion"])
        async for change, body in kube.watch(Selection(POD, **selectors), version="5", timeout=timeout)
    ]


async def last_seen(kube: HttpKube, into: list[Change]) -> None:
    async for change, _ in kube.watch(Selection(POD), version="5"):
        into.append(change)


OPENED = (Change.BOOKMARK, "5")


async def test_a_watch_tells_changes_in_order() -> None:
    seen: list[dict[str, str]] = []
    sent = stream(
        event("ADDED", pod("a", 6)) + event("MODIFIED", pod("a", 7))[:20],
        event("MODIFIED", pod("a", 7))[20:],
        b"\n" + event("BOOKMARK", {"metadata": {"resourceVersion": "8"}}),
        event("DELETED", pod("a", 9)),
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(dict(request.query))
        return await sent(request)

    async with serving(answer) as url, client(url) as kube:
        assert await watched(kube, namespace="here", labels="a=b", fields="c=d", timeout=77.0) == [
            OPENED,
            (Change.ADDED, "a"),
            (Change.MODIFIED, "a"),
            (Change.BOOKMARK, "8"),
            (Change.DELETED, "a"),
        ]
    assert seen == [
        {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "5",
            "timeoutSeconds": "77",
            "labelSelector": "a=b",
            "fieldSelector": "c=d",
        }
    ]


async def test_a_watch_reads_the_largest_objects() -> None:
    large = pod("large", 6, data="x" * 1_500_000)
    async with (
        serving(stream(event("ADDED", large) + event("ADDED", pod("small")), event("ADDED", large))) as url,
        client(url) as kube,
    ):
        assert [name for _, name in await watched(kube)] == ["5", "large", "small", "large"]


async def test_a_watch_whose_pieces_end_anywhere() -> None:
    """Also right before the end of a line."""
    whole = event("ADDED", pod("a")) + event("ADDED", pod("b"))
    for cut in (1, len(whole) // 2 - 1, len(whole) // 2, len(whole) - 1):
        async with serving(stream(whole[:cut], 0.05, whole[cut:])) as url, client(url) as kube:
            assert [name for _, name in await watched(kube)] == ["5", "a", "b"]


@pytest.mark.parametrize("tear", [True, False])
async def test_a_watch_torn_in_the_middle_of_an_event(tear: bool) -> None:
    got: list[Change] = []
    async with (
        serving(stream(event("ADDED", pod("a")), event("ADDED", pod("b"))[:-20], tear=tear)) as url,
        client(url) as kube,
    ):
        with pytest.raises(errors.UnavailableError, match="broke"):
            await last_seen(kube, got)
    assert got == [Change.BOOKMARK, Change.ADDED]


async def test_a_silent_watch_ends_without_a_failure() -> None:
    """The stream may be dead. Or nothing happened since the API server was restarted: then it sends no bookmarks."""
    async with serving(stream(then_hang=True)) as url, client(url, silence_seconds=0.2) as kube:
        assert await watched(kube) == [OPENED]


async def test_bookmarks_keep_a_watch_alive() -> None:
    mark = event("BOOKMARK", {"metadata": {"resourceVersion": "8"}})
    parts = [0.5, mark] * 7  # in all longer than the silence that ends a watch, each one much shorter
    async with serving(stream(*parts)) as url, client(url, silence_seconds=3.0) as kube:
        assert len(await watched(kube)) == 8


async def test_a_server_that_forgets_to_end_a_watch() -> None:
    async with serving(stream(then_hang=True)) as url, client(url, call_seconds=1.0) as kube:
        assert await watched(kube, timeout=0.1) == [OPENED]


async def test_a_version_that_is_too_old_is_reported_at_the_start() -> None:
    async with serving(always(lambda: status(410, "Expired", "too old"))) as url, client(url) as kube:
        with pytest.raises(errors.ExpiredError, match="too old"):
            await watched(kube)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}, errors.ExpiredError),
        ({"kind": "Status", "code": 410, "reason": "Gone"}, errors.ExpiredError),
        ({"kind": "Status", "code": 500, "reason": "InternalError"}, errors.UnavailableError),
        ({}, errors.UnavailableError),
        ("garbage", errors.UnavailableError),
        (None, errors.UnavailableError),
    ],
)
async def test_an_error_event_in_the_middle_of_a_watch(document: Any, expected: type[Exception]) -> None:
    got: list[Change] = []
    async with (
        serving(stream(event("ADDED", pod("a")), event("ERROR", document), then_hang=True)) as url,
        client(url) as kube,
    ):
        with pytest.raises(expected):
            await last_seen(kube, got)
    assert got == [Change.BOOKMARK, Change.ADDED]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"{}\n",
        b"null\n",
        b'{"type":"NEW","object":{"metadata":{}}}\n',
        b"\xff\n",
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
async def test_a_watch_of_garbage_breaks(line: bytes) -> None:
    async with serving(stream(line, then_hang=True)) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError, match="expected a watch event"):
            await watched(kube)


async def test_a_watch_without_an_end_of_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nstance.kube.http.MAX_LINE_BYTES", 1_000_000)
    async with serving(stream(*[b"x" * 100_000] * 20, then_hang=True)) as url, client(url) as kube:
        with pytest.raises(errors.UnavailableError, match="more than"):
            await watched(kube)


async def test_a_closed_watch_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()
        gone.set()

    async with raw(answer) as url, client(url) as kube:
        watch = kube.watch(Selection(POD), version="5")
        assert (await anext(watch))[0] is Change.BOOKMARK
        await watch.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            await gone.wait()


async def test_a_watch_whose_head_never_comes_has_a_deadline() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw(answer) as url, client(url, call_seconds=0.2) as kube:
        with pytest.raises(errors.UnavailableError):
            await watched(kube)
