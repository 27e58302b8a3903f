"""The routes without a version, as they were before version 1: each calls the selected shards in parallel.

The status is 200 if all shards answered, 207 if some did (`errors` has the others), and otherwise that of the first failure.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from aiohttp import web
from grpclib.const import Status

from nstance.admin import errors
from nstance.admin.client import Client, ShardError
from nstance.admin.http import access, openapi, stream
from nstance.admin.http.openapi import Operation, reply_schema
from nstance.admin.http.pages import Pages
from nstance.admin.shard import fanout, groups, history, instances, records
from nstance.admin.shard.history import EventQuery
from nstance.model import ids
from nstance.model.ids import ShardId
from nstance.model.roles import Role

MAX_SIZE = 2**31 - 1
MAX_EVENTS = 1000

SELECTION = ("shard", "all_shards")

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/"): Operation(handler="page", summary="The dashboard.", reply=openapi.TEXT, media="text/html"),
    ("GET", "/health"): Operation(
        handler="health", summary="Whether this program runs.", reply=openapi.record_schema({"status": openapi.TEXT})
    ),
    ("GET", "/metrics"): Operation(
        handler="metrics", summary="Metrics for Prometheus.", reply=openapi.TEXT, media="text/plain", names_shards=True
    ),
    ("GET", "/openapi.json"): Operation(handler="description", summary="This description.", reply={"type": "object"}),
    ("GET", "/config/status"): Operation(
        handler="config_status",
        summary="The active config.",
        query=SELECTION,
        reply=reply_schema("shards", "ConfigStatus"),
    ),
    ("POST", "/config/refresh"): Operation(
        handler="config_refresh",
        summary="Read the config from the bucket now.",
        role=Role.OPERATOR,
        query=SELECTION,
        reply=reply_schema("shards", "Refreshed"),
    ),
    ("POST", "/group/scale"): Operation(
        handler="group_scale",
        summary="Set the size of a group.",
        role=Role.OPERATOR,
        query=SELECTION,
        body="ScaleRequest",
        reply=reply_schema("results", "Scaled"),
    ),
    ("GET", "/group/history"): Operation(
        handler="group_history",
        summary="The revisions of a group, newest first.",
        query=(*SELECTION, "group"),
        reply=reply_schema("groups", "History"),
    ),
    ("POST", "/group/rollback"): Operation(
        handler="group_rollback",
        summary="Return a group to the last revision that was fully rolled out.",
        role=Role.OPERATOR,
        query=SELECTION,
        body="GroupName",
        reply=reply_schema("results", "Steered"),
    ),
    ("POST", "/group/resume-rollout"): Operation(
        handler="group_resume_rollout",
        summary="Continue a paused or halted rollout, or end a rollback.",
        role=Role.OPERATOR,
        query=SELECTION,
        body="GroupName",
        reply=reply_schema("results", "Steered"),
    ),
    ("GET", "/groups"): Operation(
        handler="groups", summary="Groups with their sizes.", query=SELECTION, reply=reply_schema("groups", "Group")
    ),
    ("GET", "/instances"): Operation(
        handler="instances",
        summary="Instances with their states.",
        query=(*SELECTION, "group", "deleted"),
        reply=reply_schema("instances", "Instance"),
    ),
    ("GET", "/events"): Operation(
        handler="events",
        summary="What happened and why, oldest first. As text/event-stream it continues with new events.",
        query=(*SELECTION, "group", "instance", "limit"),
        reply=reply_schema("events", "Event"),
        stream=True,
    ),
}

CODES = {
    Status.INVALID_ARGUMENT: 400,
    Status.NOT_FOUND: 404,
    Status.FAILED_PRECONDITION: 409,
    Status.ABORTED: 409,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.UNAVAILABLE: 503,
}


class BadRequestError(Exception):
    """The request is invalid; the message says what was expected."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


class Api:
    def __init__(
        self, clients: Sequence[Client], streams: stream.Streams, pages: Pages, metrics: access.Handler
    ) -> None:
        self._clients = {client.shard: client for client in clients}
        self._streams = streams
        self._pages = pages
        self.metrics = metrics

    async def page(self, request: web.Request) -> web.Response:
        return await self._pages.index(request)

    async def health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def description(self, request: web.Request) -> web.Response:
        return _json(openapi.document(OPERATIONS, version=metadata.version("nstance")))

    async def config_status(self, request: web.Request) -> web.Response:
        answers = await self._call(request, lambda client: client.call("GetConfigStatus"))
        found = [records.config(shard, status) for shard, status in answers.results]
        keys = ("shard", "etag", "last_modified", "size")
        return _reply("shards", [{key: record[key] for key in keys} for record in found], answers)

    async def config_refresh(self, request: web.Request) -> web.Response:
        answers = await self._call(request, lambda client: client.call("RefreshConfig"))
        rows = [{"shard": shard, "updated": each.updated, "etag": each.etag} for shard, each in answers.results]
        for shard, each in answers.results:
            if each.errors:
                message = f"the new config was rejected: {'; '.join(each.errors)}"
                answers.failures.append((shard, ShardError(message, Status.FAILED_PRECONDITION)))
        answers.results = [(shard, each) for shard, each in answers.results if not each.errors]
        return _reply("shards", rows, answers)

    async def group_scale(self, request: web.Request) -> web.Response:
        body = await _read_body(request, "group", "size")
        name, size = body["group"], body["size"]
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
            raise BadRequestError(f"size: expected a whole number from 0 to {MAX_SIZE}")
        change = groups.GroupChange(size=size, vars={})
        answers = await self._call(request, lambda client: groups.change(client, name, change.apply, dry_run=False))
        found = [{"shard": shard, "group": each.group.key, "size": each.group.size} for shard, each in answers.results]
        return _reply("results", found, answers)

    async def group_history(self, request: web.Request) -> web.Response:
        name = request.query.get("group", "")
        if not ids.is_name(name):
            raise BadRequestError("group: expected the name of a group")
        answers = await self._call(request, lambda client: groups.history(client, name))
        found = [
            {"shard": shard, "group": name, "revisions": [records.revision(each) for each in revisions]}
            for shard, revisions in answers.results
        ]
        return _reply("groups", found, answers)

    async def group_rollback(self, request: web.Request) -> web.Response:
        return await self._control_rollout(request, "RollbackGroup")

    async def group_resume_rollout(self, request: web.Request) -> web.Response:
        return await self._control_rollout(request, "ResumeRollout")

    async def _control_rollout(self, request: web.Request, rpc: str) -> web.Response:
        name = (await _read_body(request, "group"))["group"]
        answers = await self._call(request, lambda client: client.call(rpc, key=name))
        found = [
            {"shard": shard, "group": name, "rollout": records.group(shard, each.group)["rollout"]}
            for shard, each in answers.results
        ]
        return _reply("results", found, answers)

    async def groups(self, request: web.Request) -> web.Response:
        answers = await self._call(request, groups.list_groups)
        found = [records.group(shard, status) for shard, status in answers.flatten().results]
        return _reply("groups", found, answers)

    async def instances(self, request: web.Request) -> web.Response:
        group, deleted = request.query.get("group", ""), _flag(request, "deleted")
        answers = await self._call(
            request, lambda client: instances.list_instances(client, group=group, deleted=deleted)
        )
        answers.ignore_not_found()
        found = [records.instance(shard, status) for shard, status in answers.flatten().results]
        return _reply("instances", found, answers)

    async def events(self, request: web.Request) -> web.StreamResponse:
        clients = self._selected(request)
        group, instance = request.query.get("group", ""), request.query.get("instance", "")
        query = EventQuery(group=group, instance=instance, limit=_limit(request))
        if request.method != "HEAD" and "text/event-stream" in request.headers.get("Accept", ""):
            return await self._streams.serve(request, clients, query)
        answers = await fanout.call_each(clients, lambda client: history.latest(client, query))
        return _reply("events", history.merge_events(answers.results, limit=query.limit), answers)

    async def _call(self, request: web.Request, work: Callable[[Client], Awaitable[Any]]) -> fanout.Answers[Any]:
        return await fanout.call_each(self._selected(request), work)

    def _selected(self, request: web.Request) -> list[Client]:
        operation = OPERATIONS["GET" if request.method == "HEAD" else request.method, request.path]
        if repeated := sorted(name for name in set(request.query) if len(request.query.getall(name)) > 1):
            raise BadRequestError(f"expected {', '.join(repeated)} once, found it several times")
        if unknown := sorted(set(request.query) - set(operation.query)):
            raise BadRequestError(f"unknown query {', '.join(unknown)}; expected {', '.join(operation.query)}")
        shard = request.query.get("shard")
        if _flag(request, "all_shards") == (shard is not None):
            raise BadRequestError("expected exactly one of ?shard=NAME and ?all_shards=true")
        if shard is not None and shard not in self._clients:
            raise BadRequestError(f"there is no such shard; there are: {', '.join(self._clients)}", code=404)
        chosen = list(self._clients.values()) if shard is None else [self._clients[ShardId(shard)]]
        caller = request[access.CALLER]
        return [client.acting_for(caller.person, role=caller.role) for client in chosen]


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequestError(f"{name}: expected true or false")
    return value == "true"


def _limit(request: web.Request) -> int:
    value = request.query.get("limit", "100")
    if not value.isascii() or not value.isdigit() or len(value) > 4 or int(value) > MAX_EVENTS:
        raise BadRequestError(f"limit: expected a number from 0 to {MAX_EVENTS}")
    return int(value)


async def _read_body(request: web.Request, *names: str) -> dict[str, Any]:
    """A JSON object with exactly these fields, one of which is a group."""
    if request.content_type != "application/json":
        raise BadRequestError("expected Content-Type: application/json", code=415)
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise BadRequestError(f"expected a JSON object with {' and '.join(names)}") from None
    if not isinstance(body, dict) or body.keys() != set(names):
        raise BadRequestError(f"expected a JSON object with exactly {' and '.join(names)}")
    if not isinstance(body["group"], str) or not ids.is_name(body["group"]):
        raise BadRequestError("group: expected the name of a group")
    return body


def _reply(name: str, found: Sequence[Mapping[str, Any]], answers: fanout.Answers[Any]) -> web.Response:
    body: dict[str, Any] = {name: list(found)}
    if not answers.failures:
        return _json(body)
    body["errors"] = [{"shard": shard, "error": errors.explain(error)} for shard, error in answers.failures]
    if answers.results:
        return _json(body, code=207)
    first = answers.failures[0][1]
    # If the shard rejects this program's own certificate, the client is not at fault: that is a bad gateway.
    code = CODES.get(first.code, 502) if isinstance(first, ShardError) else 502
    return _json({**body, "error": errors.explain(first)}, code=code)


def _json(body: Mapping[str, Any], *, code: int = 200) -> web.Response:
    return web.json_response(body, status=code, headers=access.HEADERS)
