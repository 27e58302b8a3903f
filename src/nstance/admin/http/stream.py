"""Events as they happen, for browsers: server-sent events.

Each carries as its ID how far every shard was read, so that a browser which reconnects misses nothing and gets nothing
twice. A reader that takes nothing is let go.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence

from aiohttp import web

from nstance.admin import failures
from nstance.admin.client import Client
from nstance.admin.http import access
from nstance.admin.shard import asking, history
from nstance.admin.shard.records import Record
from nstance.clock import Clock
from nstance.model import ids
from nstance.model.ids import ShardId

MAX_STREAMS = 64
BEAT_SECONDS = 10.0
WRITE_SECONDS = 20.0


class TooMany(Exception):
    """No more streams are served now."""


class Streams:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0

    async def serve(
        self, request: web.Request, clients: Sequence[Client], *, group: str, instance: str, limit: int
    ) -> web.StreamResponse:
        if self._open >= MAX_STREAMS:
            raise TooMany(f"more than {MAX_STREAMS} streams are open, try again later")
        self._open += 1
        response = web.StreamResponse(headers={**access.HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await self._send(request, response, clients, group=group, instance=instance, limit=limit)
        except (ConnectionError, TimeoutError):
            pass  # the reader is gone, or takes nothing
        finally:
            self._open -= 1
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        clients: Sequence[Client],
        *,
        group: str,
        instance: str,
        limit: int,
    ) -> None:
        seen = _parse(request.headers.get("Last-Event-ID", ""))
        told: deque[str] = deque(maxlen=100)
        for client in clients:
            if client.shard not in seen:
                seen |= await self._begin(client, response, told, group=group, instance=instance, limit=limit)
        begun = f"id: {_spell(seen)}\n\n" if seen else ""  # from here on, whatever comes next
        await _write(response, begun + "".join(told))
        told.clear()
        coming = history.follow(
            clients,
            after=dict(seen),
            begin=limit,
            group=group,
            instance=instance,
            tell=lambda shard, text: told.append(_message("shard", {"shard": shard, "message": text})),
            clock=self._clock,
        )
        async with contextlib.aclosing(coming):
            while True:
                waiting = asyncio.ensure_future(anext(coming))
                try:
                    while not waiting.done():
                        await asyncio.wait([waiting], timeout=BEAT_SECONDS)
                        beat = "" if waiting.done() else ": still here\n\n"
                        await _write(response, "".join(told) + beat)
                        told.clear()
                finally:
                    if not waiting.done():
                        waiting.cancel()
                        await asyncio.wait([waiting])
                id, record = waiting.result()
                seen[record["shard"]] = id
                await _write(response, _message(None, record, id=_spell(seen)))

    async def _begin(
        self, client: Client, response: web.StreamResponse, told: deque[str], *, group: str, instance: str, limit: int
    ) -> dict[ShardId, int]:
        """What has happened lately in a shard that this reader has not read before."""
        answers = await asking.each(
            [client], lambda each: history.latest(each, group=group, instance=instance, limit=max(1, limit))
        )
        for shard, problem in answers.bad:
            told.append(_message("shard", {"shard": shard, "message": failures.explain(problem)}))
        for record in history.merged(answers.good, limit=limit):
            await _write(response, _message(None, record))
        return {shard: events[-1].id if events else 0 for shard, events in answers.good}


async def _write(response: web.StreamResponse, text: str) -> None:
    if text:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(text.encode())


def _message(kind: str | None, record: Record, *, id: str | None = None) -> str:
    """JSON has no line ends of its own, so one data line is enough."""
    head = (f"event: {kind}\n" if kind else "") + (f"id: {id}\n" if id else "")
    return f"{head}data: {json.dumps(record, ensure_ascii=False)}\n\n"


def _spell(seen: Mapping[ShardId, int]) -> str:
    return ",".join(f"{shard}={id}" for shard, id in sorted(seen.items()))


def _parse(text: str) -> dict[ShardId, int]:
    """Whatever is not ours is as good as nothing."""
    found: dict[ShardId, int] = {}
    for part in text.split(","):
        shard, _, id = part.partition("=")
        if ids.is_name(shard) and id.isascii() and id.isdigit() and len(id) < 20 and int(id) < 1 << 63:
            found[ShardId(shard)] = int(id)
    return found
