"""The routes without a version, as they were before version 1: each calls the selected shards in parallel.

The status is 200 if all shards answered, 207 if some did (`errors` has the others), and otherwise that of the first failure.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from aiohttp import web
from grpclib.const import Status

from nstance.admin import errors
from nstance.admin.client import ShardError
from nstance.admin.http import openapi, stream
from nstance.admin.http.access import Handler
from nstance.admin.http.openapi import reply_schema
from nstance.admin.http.pages import Pages
from nstance.admin.http.v1 import fields, routing
from nstance.admin.http.v1.events import DEFAULT_LIMIT
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import Shards, json_response, status_of
from nstance.admin.http.v1.routing import Call, Route, RouteGroup, route
from nstance.admin.json_schema import TEXT, Schema, record_schema, ref
from nstance.admin.shard import fanout, groups, history, instances, records
from nstance.admin.shard.history import EventQuery
from nstance.model.roles import Role

SELECTION: Fields = {
    "shard": field(fields.NAME, "The shard to call; or all_shards."),
    "all_shards": field(fields.FLAG, "Call all shards."),
}
FILTERS: Fields = {**SELECTION, "group": field(fields.TEXT, "Only of this group.")}
HEALTH = record_schema({"status": TEXT})
GROUP: Fields = {"group": field(fields.NAME, "The group.", required=True)}


def _failure(route: Route) -> tuple[str, Schema]:
    """Rejected before any shard was called, or by all shards."""
    return "application/json", {"anyOf": [ref("Error"), route.reply]} if route.query else ref("Error")


CONTRACT = routing.Contract(
    about="The routes without a version. Failures are objects with `error`.",
    schemas=openapi.SCHEMAS,
    security={"bearer": {"type": "http", "scheme": "bearer"}, "mtls": {"type": "mutualTLS"}},
    failure=_failure,
)


class UnversionedRoutes(RouteGroup):
    tag = "unversioned"

    def __init__(self, shards: Shards, streams: stream.Streams, pages: Pages, metrics: Handler) -> None:
        self._shards = shards
        self._streams = streams
        self._pages = pages
        self._metrics = metrics

    @route("GET", "/", "The dashboard.", query=None, reply=TEXT, media=("text/html",), is_public=True)
    async def page(self, call: Call) -> web.Response:
        return await self._pages.index(call.request)

    @route("GET", "/health", "Whether this program runs.", query=None, reply=HEALTH, is_public=True)
    async def health(self, call: Call) -> web.Response:
        return json_response(call.request, {"status": "ok"})

    @route("GET", "/metrics", "Metrics for Prometheus.", query=None, reply=TEXT, media=("text/plain",))
    async def metrics(self, call: Call) -> web.StreamResponse:
        return await self._metrics(call.request)

    @route("GET", "/openapi.json", "This description.", query=None, reply={"type": "object"}, is_public=True)
    async def description(self, call: Call) -> web.Response:
        version = metadata.version("nstance")
        return json_response(call.request, routing.document(self.routes(), version=version, contract=CONTRACT))

    @route("GET", "/config/status", "The active config.", query=SELECTION, reply=reply_schema("shards", "ConfigStatus"))
    async def config_status(self, call: Call) -> web.Response:
        answers = await self._shards.change(call, lambda client: client.call("GetConfigStatus"))
        found = [records.config(shard, status) for shard, status in answers.results]
        keys = ("shard", "etag", "last_modified", "size")
        return _reply(call, "shards", [{key: record[key] for key in keys} for record in found], answers)

    @route(
        "POST",
        "/config/refresh",
        "Read the config from the bucket now.",
        role=Role.OPERATOR,
        query=SELECTION,
        reply=reply_schema("shards", "Refreshed"),
    )
    async def config_refresh(self, call: Call) -> web.Response:
        answers = await self._shards.change(call, lambda client: client.call("RefreshConfig"))
        rows = [{"shard": shard, "updated": each.updated, "etag": each.etag} for shard, each in answers.results]
        for shard, each in answers.results:
            if each.errors:
                message = f"the new config was rejected: {'; '.join(each.errors)}"
                answers.failures.append((shard, ShardError(message, Status.FAILED_PRECONDITION)))
        answers.results = [(shard, each) for shard, each in answers.results if not each.errors]
        return _reply(call, "shards", rows, answers)

    @route(
        "POST",
        "/group/scale",
        "Set the size of a group.",
        role=Role.OPERATOR,
        query=SELECTION,
        body={**GROUP, "size": field(fields.COUNT, "Number of instances.", required=True)},
        reply=reply_schema("results", "Scaled"),
    )
    async def group_scale(self, call: Call) -> web.Response:
        name, size = call.body["group"], call.body["size"]
        change = groups.GroupChange(size=size, vars={})
        answers = await self._shards.change(
            call, lambda client: groups.change(client, name, change.apply, dry_run=False)
        )
        found = [{"shard": shard, "group": each.group.key, "size": each.group.size} for shard, each in answers.results]
        return _reply(call, "results", found, answers)

    @route(
        "GET",
        "/group/history",
        "The revisions of a group, newest first.",
        query={**SELECTION, **GROUP},
        reply=reply_schema("groups", "History"),
    )
    async def group_history(self, call: Call) -> web.Response:
        name = call.query["group"]
        answers = await self._shards.change(call, lambda client: groups.history(client, name))
        found = [
            {"shard": shard, "group": name, "revisions": [records.REVISION.fill(each) for each in revisions]}
            for shard, revisions in answers.results
        ]
        return _reply(call, "groups", found, answers)

    @route(
        "POST",
        "/group/rollback",
        "Return a group to the last revision that was fully rolled out.",
        role=Role.OPERATOR,
        query=SELECTION,
        body=GROUP,
        reply=reply_schema("results", "Steered"),
    )
    async def group_rollback(self, call: Call) -> web.Response:
        return await self._control_rollout(call, "RollbackGroup")

    @route(
        "POST",
        "/group/resume-rollout",
        "Continue a paused or halted rollout, or end a rollback.",
        role=Role.OPERATOR,
        query=SELECTION,
        body=GROUP,
        reply=reply_schema("results", "Steered"),
    )
    async def group_resume_rollout(self, call: Call) -> web.Response:
        return await self._control_rollout(call, "ResumeRollout")

    async def _control_rollout(self, call: Call, rpc: str) -> web.Response:
        name = call.body["group"]
        answers = await self._shards.change(call, lambda client: client.call(rpc, key=name))
        found = [
            {"shard": shard, "group": name, "rollout": records.group(shard, each.group)["rollout"]}
            for shard, each in answers.results
        ]
        return _reply(call, "results", found, answers)

    @route("GET", "/groups", "Groups with their sizes.", query=SELECTION, reply=reply_schema("groups", "Group"))
    async def groups(self, call: Call) -> web.Response:
        answers = await self._shards.change(call, groups.list_groups)
        found = [records.group(shard, status) for shard, status in answers.flatten().results]
        return _reply(call, "groups", found, answers)

    @route(
        "GET",
        "/instances",
        "Instances with their states.",
        query={**FILTERS, "deleted": field(fields.FLAG, "Include recently deleted or failed ones.")},
        reply=reply_schema("instances", "Instance"),
    )
    async def instances(self, call: Call) -> web.Response:
        group, deleted = call.query.get("group", ""), call.query.get("deleted", False)
        answers = await self._shards.change(
            call, lambda client: instances.list_instances(client, group=group, deleted=deleted)
        )
        answers.ignore_not_found()
        found = [records.instance(shard, status) for shard, status in answers.flatten().results]
        return _reply(call, "instances", found, answers)

    @route(
        "GET",
        "/events",
        "What happened and why, oldest first. As text/event-stream it continues with new events.",
        query={
            **FILTERS,
            "instance": field(fields.TEXT, "Only of this instance."),
            "limit": field(fields.EVENT_LIMIT, "The newest so many."),
        },
        reply=reply_schema("events", "Event"),
        media=("application/json", "text/event-stream"),
    )
    async def events(self, call: Call) -> web.StreamResponse:
        request, clients = call.request, self._shards.to_change(call)
        group, instance = call.query.get("group", ""), call.query.get("instance", "")
        query = EventQuery(group=group, instance=instance, limit=call.query.get("limit", DEFAULT_LIMIT))
        if request.method != "HEAD" and "text/event-stream" in request.headers.get("Accept", ""):
            return await self._streams.serve(request, clients, query)
        answers = await fanout.call_each(clients, lambda client: history.latest(client, query))
        return _reply(call, "events", history.merge_events(answers.results, limit=query.limit), answers)


def _reply(call: Call, name: str, found: Sequence[Mapping[str, Any]], answers: fanout.Answers[Any]) -> web.Response:
    body: dict[str, Any] = {name: list(found)}
    if not answers.failures:
        return json_response(call.request, body)
    body["errors"] = [{"shard": shard, "error": errors.explain(error)} for shard, error in answers.failures]
    if answers.results:
        return json_response(call.request, body, status=207)
    first = answers.failures[0][1]
    is_conflict = isinstance(first, ShardError) and first.code is Status.ABORTED  # version 1 says 412
    body["error"] = errors.explain(first)
    return json_response(call.request, body, status=409 if is_conflict else status_of(first))
