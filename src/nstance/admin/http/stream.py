"""Events as they happen, for browsers: server-sent events.

The ID of each says how far every shard was read, so a browser that reconnects misses nothing and gets nothing twice. A
reader that does not read is disconnected.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence

from aiohttp import web

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.http import access
from nstance.admin.shard import fanout, history
from nstance.admin.shard.history import EventQuery
from nstance.admin.shard.records import Record
from nstance.clock import Clock
from nstance.model import ids
from nstance.model.ids import ShardId

MAX_STREAMS = 64
MAX_QUEUED = 100
HEARTBEAT_SECONDS = 10.0
WRITE_SECONDS = 20.0


class TooManyStreamsError(Exception):
    """No more streams are served now."""


class Streams:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0

    async def serve(self, request: web.Request, clients: Sequence[Client], query: EventQuery) -> web.StreamResponse:
        if self._open >= MAX_STREAMS:
            raise TooManyStreamsError(f"{MAX_STREAMS} streams are already open, try again later")
        self._open += 1
        response = web.StreamResponse(headers={**access.HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await self._send(request, response, clients, query)
        except (ConnectionError, TimeoutError):
            pass  # the reader is gone, or does not read
        finally:
            self._open -= 1
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, clients: Sequence[Client], query: EventQuery
    ) -> None:
        seen = _parse(request.headers.get("Last-Event-ID", ""))
        notices: deque[str] = deque(maxlen=MAX_QUEUED)  # about shards, to be sent with the next write
        for client in clients:
            if client.shard not in seen:
                seen |= await self._send_latest(client, response, notices, query)
        start = f"id: {_format(seen)}\n\n" if seen else ""  # a reconnect continues from here
        await _write(response, start + "".join(notices))
        notices.clear()
        events = history.follow(
            clients,
            query,
            after=dict(seen),
            on_status=lambda shard, text: notices.append(_message("shard", {"shard": shard, "message": text})),
            clock=self._clock,
        )
        async with contextlib.aclosing(events):
            while True:
                waiting = asyncio.ensure_future(anext(events))
                try:
                    while not waiting.done():
                        await asyncio.wait([waiting], timeout=HEARTBEAT_SECONDS)
                        heartbeat = "" if waiting.done() else ": still here\n\n"
                        await _write(response, "".join(notices) + heartbeat)
                        notices.clear()
                finally:
                    if not waiting.done():
                        waiting.cancel()
                        await asyncio.wait([waiting])
                id, record = waiting.result()
                seen[record["shard"]] = id
                await _write(response, _message(None, record, id=_format(seen)))

    async def _send_latest(
        self, client: Client, response: web.StreamResponse, notices: deque[str], query: EventQuery
    ) -> dict[ShardId, int]:
        """The latest events of a shard that this reader has not read before."""
        answers = await fanout.call_each([client], lambda each: history.latest(each, query))
        for shard, error in answers.failures:
            notices.append(_message("shard", {"shard": shard, "message": errors.explain(error)}))
        for record in history.merge_events(answers.results, limit=query.limit):
            await _write(response, _message(None, record))
        return {shard: events[-1].id if events else 0 for shard, events in answers.results}


async def _write(response: web.StreamResponse, text: str) -> None:
    if text:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(text.encode())


def _message(kind: str | None, record: Record, *, id: str | None = None) -> str:
    """JSON has no line ends, so one data line is enough."""
    head = (f"event: {kind}\n" if kind else "") + (f"id: {id}\n" if id else "")
    return f"{head}data: {json.dumps(record, ensure_ascii=False)}\n\n"


def _format(seen: Mapping[ShardId, int]) -> str:
    return ",".join(f"{shard}={id}" for shard, id in sorted(seen.items()))


def _parse(text: str) -> dict[ShardId, int]:
    """Ignores what is not ours."""
    found: dict[ShardId, int] = {}
    for part in text.split(","):
        shard, _, id = part.partition("=")
        if ids.is_name(shard) and id.isascii() and id.isdigit() and len(id) < 20 and int(id) < 1 << 63:
            found[ShardId(shard)] = int(id)
    return found
