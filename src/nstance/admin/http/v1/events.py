"""Events: pages of the history, a download, and streams."""

import json
from typing import Any

from aiohttp import web

from nstance.admin.http import access
from nstance.admin.http.frames import format_positions, parse_positions
from nstance.admin.http.stream import Streams
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import SHARD, Call, RouteGroup, route
from nstance.admin.json_schema import TEXT, list_schema, ref
from nstance.admin.shard import fanout, history, records
from nstance.admin.shard.history import EventQuery

DEFAULT_LIMIT = 100
LINES = "application/x-ndjson"
STREAM = "text/event-stream"
FILTERS: Fields = {
    **SHARD,
    "group": field(fields.NAME, "Only of this group."),
    "instance": field(fields.INSTANCE, "Only of this instance."),
    "reason": field(fields.REASONS, "Only of these reasons, separated by commas."),
    "limit": field(fields.EVENT_LIMIT, "The newest so many; with a cursor the next so many of each shard."),
    "cursor": field(fields.POSITIONS, "The value of `next` of an answer: only later events."),
    "format": field(fields.choice("json", "ndjson"), "ndjson: a download with one event per line."),
}


class EventRoutes(RouteGroup):
    tag = "events"

    def __init__(self, shards: Shards, streams: Streams) -> None:
        self._shards = shards
        self._streams = streams

    @route(
        "GET",
        "/v1/events",
        "What happened and why, oldest first. As text/event-stream it continues with new events.",
        query=FILTERS,
        reply=schemas.with_errors({"events": list_schema(ref("Event")), "next": TEXT}),
        media=("application/json", STREAM, LINES),
    )
    async def events(self, call: Call) -> web.StreamResponse:
        query = EventQuery(
            group=call.query.get("group", ""),
            instance=call.query.get("instance", ""),
            limit=call.query.get("limit", DEFAULT_LIMIT),
            reasons=call.query["reason"].split(",") if "reason" in call.query else (),
            numbered=True,
        )
        request, clients = call.request, self._shards.of(call)
        if request.method != "HEAD" and STREAM in request.headers.get("Accept", ""):
            return await self._streams.serve(request, clients, query)
        positions = parse_positions(call.query.get("cursor", ""))

        async def read(client: Any) -> Any:
            if client.shard in positions:
                return (await history.after(client, query, positions[client.shard]))[: query.limit]
            return (await history.latest(client, query))[-query.limit :] if query.limit else []

        answers = await fanout.call_each(clients, read)
        found = history.merge_events(answers.results, limit=len(clients) * query.limit, shape=records.NUMBERED_EVENT)
        if not positions:
            found = found[max(0, len(found) - query.limit) :]
        for shard, events in answers.results:
            if events:
                positions[shard] = max(event.id for event in events)
        if call.query.get("format") == "ndjson" or LINES in request.headers.get("Accept", ""):
            if answers.failures:  # a file cannot say that a shard is missing in it
                return answer(call, {}, fanout.Answers[Any](failures=answers.failures))
            return _download(found)
        return answer(call, {"events": found, "next": format_positions(positions)}, answers)

    @route(
        "GET",
        "/v1/watch",
        "The whole fleet as server-sent events: `snapshot`, then `change`.",
        reply=TEXT,
        media=(STREAM,),
    )
    async def watch(self, call: Call) -> web.StreamResponse:
        return await self._streams.serve_fleet(call.request)


def _download(found: list[records.Record]) -> web.Response:
    headers = {**access.HEADERS, "Content-Disposition": 'attachment; filename="nstance-events.ndjson"'}
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in found)
    return web.Response(body=text.encode("utf-8", "replace"), headers={**headers, "Content-Type": LINES})
