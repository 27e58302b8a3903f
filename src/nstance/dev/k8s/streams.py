"""Watches over HTTP: one JSON object per line, until the timeout, a disconnect or the end of the server."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from nstance import clock as clocks
from nstance.dev.k8s import tables
from nstance.kube.api import selectors, server, status
from nstance.kube.api.resources import Served
from nstance.kube.port import Change, Object

MAX_WATCH_SECONDS = 1800.0
BOOKMARK_SECONDS = 10.0
_INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchRequest:
    served: Served
    namespace: str
    selector: selectors.Selector
    version: str  # empty or "0": existing objects come first, as ADDED
    seconds: float
    bookmarks: bool
    initial: bool  # sendInitialEvents: existing objects come first, followed by a marked bookmark
    table: bool  # changes as rows
    include: str


class Streams:
    def __init__(self, api: server.Api, clock: clocks.Clock) -> None:
        self._api = api
        self._clock = clock
        self._stopping = asyncio.Event()

    def end(self) -> None:
        """Ends all streams soon."""
        self._stopping.set()

    async def answer(self, request: web.BaseRequest, watch_request: WatchRequest) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        if request.version >= HttpVersion11:  # older clients read to the end
            response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Stream(response, watch_request, self._clock)
        with contextlib.suppress(ConnectionResetError):  # the client has disconnected
            try:
                await self._follow(stream, watch_request)
            except status.ApiError as error:  # the stream has started, so the error is an event
                await stream.send("ERROR", error.document())
            await response.write_eof()
        return response

    async def _follow(self, stream: "_Stream", watch_request: WatchRequest) -> None:
        version = watch_request.version
        if version in ("", "0") or watch_request.initial:
            page = self._api.list(
                watch_request.served, namespace=watch_request.namespace, selector=watch_request.selector
            )
            for each in page.items:
                await stream.send_object(Change.ADDED, each)
            version = page.version
        watch = self._api.watch(
            watch_request.served, version, namespace=watch_request.namespace, selector=watch_request.selector
        )
        if watch_request.initial:
            mark = watch.bookmark()
            mark["metadata"]["annotations"] = {_INITIAL_END: "true"}
            await stream.send(Change.BOOKMARK.value, mark)
        marked = self._clock.monotonic()
        end = marked + watch_request.seconds
        ending = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                for change, body in watch.take():
                    await stream.send_object(change, body)
                remaining = end - self._clock.monotonic()
                if remaining <= 0:
                    break
                # By time, because other kinds may change all the time.
                due = marked + BOOKMARK_SECONDS - self._clock.monotonic()
                if due <= 0:
                    marked = self._clock.monotonic()
                    if watch_request.bookmarks:
                        await stream.send_object(Change.BOOKMARK, watch.bookmark())
                elif watch.version == self._api.store.version:
                    waits = (self._api.store.changed(), ending)
                    await asyncio.wait(waits, timeout=min(remaining, due), return_when=asyncio.FIRST_COMPLETED)
            if watch_request.bookmarks:
                await stream.send_object(Change.BOOKMARK, watch.bookmark())
        finally:
            ending.cancel()


class _Stream:
    def __init__(self, response: web.StreamResponse, watch_request: WatchRequest, clock: clocks.Clock) -> None:
        self._response = response
        self._watch_request = watch_request
        self._clock = clock
        self._has_header = False

    async def send_object(self, change: Change, body: Object) -> None:
        await self.send(change.value, self._format(body, bookmark=change is Change.BOOKMARK))

    async def send(self, kind: str, body: Object) -> None:
        line = json.dumps({"type": kind, "object": body}, separators=(",", ":"), ensure_ascii=False)
        await self._response.write(line.encode() + b"\n")

    def _format(self, body: Object, *, bookmark: bool) -> Object:
        watch_request = self._watch_request
        if not watch_request.table:
            return body
        meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
        needs_header, self._has_header = not self._has_header, True
        return tables.table(
            watch_request.served,
            [] if bookmark else [body],
            meta=meta,
            now=self._clock.wall(),
            include=watch_request.include,
            with_header=needs_header,
        )
