"""Watches over HTTP: one JSON object per line, until the time is over, the client goes or the server ends."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

from aiohttp import HttpVersion11, web

from nstance import clock as clocks
from nstance.dev.k8s import tables
from nstance.dev.k8s.negotiation import Form
from nstance.kube.api import selectors, server, status
from nstance.kube.api.resources import Served
from nstance.kube.port import Change, Object

LONGEST = 1800.0  # seconds
BOOKMARKS = 10.0
_INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Question:
    served: Served
    namespace: str
    selector: selectors.Selector
    version: str  # empty or "0": all that is there first, as ADDED
    seconds: float
    bookmarks: bool
    initial: bool  # sendInitialEvents: what is there first, closed by a marked bookmark
    form: Form
    include: str


class Streams:
    def __init__(self, api: server.Api, clock: clocks.Clock) -> None:
        self._api = api
        self._clock = clock
        self._ending = asyncio.Event()

    def end(self) -> None:
        """All of them, soon."""
        self._ending.set()

    async def answer(self, request: web.BaseRequest, question: Question) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        if request.version >= HttpVersion11:  # older clients read until the end
            response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Stream(response, question, self._clock)
        with contextlib.suppress(ConnectionResetError):  # the client has gone: nobody is left to be told anything
            try:
                await self._follow(stream, question)
            except status.ApiError as refused:  # the stream has begun: the refusal is an event of it
                await stream.send("ERROR", refused.document())
            await response.write_eof()
        return response

    async def _follow(self, stream: "_Stream", question: Question) -> None:
        version = question.version
        if version in ("", "0") or question.initial:
            page = self._api.list(question.served, namespace=question.namespace, selector=question.selector)
            for each in page.items:
                await stream.send_object(Change.ADDED, each)
            version = page.version
        watch = self._api.watch(question.served, version, namespace=question.namespace, selector=question.selector)
        if question.initial:
            mark = watch.bookmark()
            mark["metadata"]["annotations"] = {_INITIAL_END: "true"}
            await stream.send(Change.BOOKMARK.value, mark)
        marked = self._clock.monotonic()
        end = marked + question.seconds
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            while not self._ending.is_set():
                for change, body in watch.take():
                    await stream.send_object(change, body)
                left = end - self._clock.monotonic()
                if left <= 0:
                    break
                # By the time, and not by how quiet it is: other kinds change all the while.
                due = marked + BOOKMARKS - self._clock.monotonic()
                if due <= 0:
                    marked = self._clock.monotonic()
                    if question.bookmarks:
                        await stream.send_object(Change.BOOKMARK, watch.bookmark())
                elif watch.version == self._api.store.version:
                    waits = (self._api.store.changed(), ending)
                    await asyncio.wait(waits, timeout=min(left, due), return_when=asyncio.FIRST_COMPLETED)
            if question.bookmarks:
                await stream.send_object(Change.BOOKMARK, watch.bookmark())
        finally:
            ending.cancel()


class _Stream:
    def __init__(self, response: web.StreamResponse, question: Question, clock: clocks.Clock) -> None:
        self._response = response
        self._question = question
        self._clock = clock
        self._headed = False

    async def send_object(self, change: Change, body: Object) -> None:
        await self.send(change.value, self._formed(body, bookmark=change is Change.BOOKMARK))

    async def send(self, kind: str, body: Object) -> None:
        line = json.dumps({"type": kind, "object": body}, separators=(",", ":"), ensure_ascii=False)
        await self._response.write(line.encode() + b"\n")

    def _formed(self, body: Object, *, bookmark: bool) -> Object:
        question = self._question
        if question.form is Form.METADATA:
            return tables.metadata(body)
        if question.form is Form.OBJECT:
            return body
        meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
        headed, self._headed = not self._headed, True
        return tables.table(
            question.served,
            [] if bookmark else [body],
            meta=meta,
            now=self._clock.wall(),
            include=question.include,
            headed=headed,
        )
