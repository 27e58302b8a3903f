"""The routes: each asks the shards that its query names, side by side, and answers with what they said.

All answered: 200. Some: 207, with the others under `errors`. None: the code that fits the failure.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from aiohttp import web
from grpclib.const import Status

from nstance.admin import failures, output
from nstance.admin.client import Client, Refusal
from nstance.admin.http import access, openapi, stream
from nstance.admin.http.openapi import Operation, answer, ref
from nstance.admin.shard import asking, groups, history, instances, records, rollouts
from nstance.clock import Clock
from nstance.model import ids
from nstance.model.ids import ShardId

MAX_BODY = 64 * 1024
MAX_SIZE = 2**31 - 1

WHICH = ("shard", "all_shards")

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/"): Operation(summary="A page that says where the API is.", reply=openapi.TEXT, media="text/html"),
    ("GET", "/health"): Operation(summary="Whether this program runs.", reply=openapi.thing(status=openapi.TEXT)),
    ("GET", "/openapi.json"): Operation(summary="This description.", reply={"type": "object"}),
    ("GET", "/config/status"): Operation(
        summary="The config that is in force.", query=WHICH, reply=answer("shards", ref("ConfigStatus"))
    ),
    ("POST", "/config/refresh"): Operation(
        summary="Read the config from the bucket now.", query=WHICH, reply=answer("shards", ref("Refreshed"))
    ),
    ("POST", "/group/scale"): Operation(
        summary="Set the size of a group.", query=WHICH, body="ScaleRequest", reply=answer("results", ref("Scaled"))
    ),
    ("GET", "/group/history"): Operation(
        summary="The revisions of a group, newest first.",
        query=(*WHICH, "group"),
        reply=answer("groups", ref("History")),
    ),
    ("POST", "/group/rollback"): Operation(
        summary="Return a group to the last revision that was fully rolled out.",
        query=WHICH,
        body="GroupName",
        reply=answer("results", ref("Steered")),
    ),
    ("POST", "/group/resume-rollout"): Operation(
        summary="Let a rollout go on that is paused or halted, or end a rollback.",
        query=WHICH,
        body="GroupName",
        reply=answer("results", ref("Steered")),
    ),
    ("GET", "/groups"): Operation(
        summary="Groups with their sizes.", query=WHICH, reply=answer("groups", ref("Group"))
    ),
    ("GET", "/instances"): Operation(
        summary="Instances with their states.",
        query=(*WHICH, "group", "deleted"),
        reply=answer("instances", ref("Instance")),
    ),
    ("GET", "/events"): Operation(
        summary="What happened and why, oldest first. As text/event-stream: these, then what happens.",
        query=(*WHICH, "group", "instance", "limit"),
        reply=answer("events", ref("Event")),
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

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Nstance</title></head>
<body><h1>Nstance</h1><p>The API is described in <a href="openapi.json">openapi.json</a>.</p></body></html>
"""


class Wrong(Exception):
    """What the caller said makes no sense; the message says what was expected."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def application(clients: Sequence[Client], guard: access.Access, clock: Clock) -> web.Application:
    app = web.Application(middlewares=[access.gate(guard), _answered], client_max_size=MAX_BODY)
    api = Api(clients, clock)
    handlers: Mapping[tuple[str, str], access.Handler] = {
        ("GET", "/"): api.page,
        ("GET", "/health"): api.health,
        ("GET", "/openapi.json"): api.description,
        ("GET", "/config/status"): api.config_status,
        ("POST", "/config/refresh"): api.config_refresh,
        ("POST", "/group/scale"): api.group_scale,
        ("GET", "/group/history"): api.group_history,
        ("POST", "/group/rollback"): api.group_rollback,
        ("POST", "/group/resume-rollout"): api.group_resume_rollout,
        ("GET", "/groups"): api.groups,
        ("GET", "/instances"): api.instances,
        ("GET", "/events"): api.events,
    }
    assert handlers.keys() == OPERATIONS.keys()
    for (method, path), handler in handlers.items():
        if method == "GET":
            app.router.add_get(path, handler)  # HEAD too
        else:
            app.router.add_route(method, path, handler)
    return app


@web.middleware
async def _answered(request: web.Request, handler: access.Handler) -> web.StreamResponse:
    """Whatever goes wrong is said in JSON."""
    try:
        return await handler(request)
    except Wrong as problem:
        return access.refusal(problem.code, str(problem))
    except stream.TooMany as problem:
        return access.refusal(503, str(problem))
    except web.HTTPException as problem:
        if problem.status < 400:
            raise
        extra = {"Allow": problem.headers["Allow"]} if "Allow" in problem.headers else {}
        return access.refusal(problem.status, problem.reason.lower(), **extra)
    except Exception as bug:
        output.note(f"{request.method} {request.path} failed: unexpected {type(bug).__name__}: {bug}")
        return access.refusal(500, "this is a bug; the log of nstance-admin serve says more")


class Api:
    def __init__(self, clients: Sequence[Client], clock: Clock) -> None:
        self._clients = {client.shard: client for client in clients}
        self._clock = clock
        self._streams = stream.Streams(clock)

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html", headers=access.HEADERS)

    async def health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def description(self, request: web.Request) -> web.Response:
        return _json(openapi.document(OPERATIONS, version=metadata.version("nstance")))

    async def config_status(self, request: web.Request) -> web.Response:
        answers = await self._ask(request, lambda client: client.call("GetConfigStatus"))
        wanted = ("shard", "etag", "last_modified", "size")
        found = [records.config(shard, status) for shard, status in answers.good]
        return _reply("shards", [{name: record[name] for name in wanted} for record in found], answers)

    async def config_refresh(self, request: web.Request) -> web.Response:
        answers = await self._ask(request, lambda client: client.call("RefreshConfig"))
        rows = [{"shard": shard, "updated": told.updated, "etag": told.etag} for shard, told in answers.good]
        refused = [(shard, told) for shard, told in answers.good if told.errors]
        answers.good = [(shard, told) for shard, told in answers.good if not told.errors]
        for shard, told in refused:
            message = f"the new config was refused: {'; '.join(told.errors)}"
            answers.bad.append((shard, Refusal(message, Status.FAILED_PRECONDITION)))
        return _reply("shards", rows, answers)

    async def group_scale(self, request: web.Request) -> web.Response:
        name, size = await _scale_request(request)
        desired = groups.Wish(size=size, vars={})
        answers = await self._ask(request, lambda client: groups.change(client, name, desired.apply, dry_run=False))
        found = [{"shard": shard, "group": told.group.key, "size": told.group.size} for shard, told in answers.good]
        return _reply("results", found, answers)

    async def group_history(self, request: web.Request) -> web.Response:
        name = request.query.get("group", "")
        if not ids.is_name(name):
            raise Wrong("group: expected the name of a group")
        answers = await self._ask(request, lambda client: rollouts.history(client, name))
        found = [
            {"shard": shard, "group": name, "revisions": [records.revision(each) for each in told]}
            for shard, told in answers.good
        ]
        return _reply("groups", found, answers)

    async def group_rollback(self, request: web.Request) -> web.Response:
        name = await _group_request(request)
        return await self._steered(request, name, lambda client: client.call("RollbackGroup", key=name))

    async def group_resume_rollout(self, request: web.Request) -> web.Response:
        name = await _group_request(request)
        return await self._steered(request, name, lambda client: client.call("ResumeRollout", key=name))

    async def _steered(self, request: web.Request, name: str, act: Callable[[Client], Awaitable[Any]]) -> web.Response:
        answers = await self._ask(request, act)
        found = [
            {"shard": shard, "group": name, "rollout": records.group(shard, told.group)["rollout"]}
            for shard, told in answers.good
        ]
        return _reply("results", found, answers)

    async def groups(self, request: web.Request) -> web.Response:
        answers = await self._ask(request, groups.everything)
        found = [records.group(shard, status) for shard, some in answers.good for status in some]
        return _reply("groups", found, answers)

    async def instances(self, request: web.Request) -> web.Response:
        group, deleted = request.query.get("group", ""), _flag(request, "deleted")
        answers = await self._ask(request, lambda client: instances.everything(client, group=group, deleted=deleted))
        answers.forgive_absence()
        found = [records.instance(shard, status) for shard, told in answers.good for status in told]
        return _reply("instances", found, answers)

    async def events(self, request: web.Request) -> web.StreamResponse:
        chosen = self._chosen(request)
        group, instance, limit = request.query.get("group", ""), request.query.get("instance", ""), _limit(request)
        if request.method != "HEAD" and "text/event-stream" in request.headers.get("Accept", ""):
            return await self._streams.serve(request, chosen, group=group, instance=instance, limit=limit)
        answers = await asking.each(
            chosen, lambda client: history.latest(client, group=group, instance=instance, limit=max(1, limit))
        )
        return _reply("events", history.merged(answers.good, limit=limit), answers)

    async def _ask(self, request: web.Request, work: Callable[[Client], Awaitable[Any]]) -> asking.Answers[Any]:
        return await asking.each(self._chosen(request), work)

    def _chosen(self, request: web.Request) -> list[Client]:
        operation = OPERATIONS["GET" if request.method == "HEAD" else request.method, request.path]
        if twice := sorted(name for name in set(request.query) if len(request.query.getall(name)) > 1):
            raise Wrong(f"expected {', '.join(twice)} once, found it several times")
        if unknown := sorted(set(request.query) - set(operation.query)):
            raise Wrong(f"unknown query {', '.join(unknown)}; expected {', '.join(operation.query)}")
        shard = request.query.get("shard")
        if _flag(request, "all_shards") == (shard is not None):
            raise Wrong("expected exactly one of ?shard=NAME and ?all_shards=true")
        if shard is None:
            return list(self._clients.values())
        if shard not in self._clients:
            raise Wrong(f"there is no shard of this name; there are: {', '.join(self._clients)}", code=404)
        return [self._clients[ShardId(shard)]]


def _flag(request: web.Request, name: str) -> bool:
    given = request.query.get(name, "false")
    if given not in ("true", "false"):
        raise Wrong(f"{name}: expected true or false")
    return given == "true"


def _limit(request: web.Request) -> int:
    given = request.query.get("limit", "100")
    if not given.isascii() or not given.isdigit() or len(given) > 4 or int(given) > 1000:
        raise Wrong("limit: expected a number from 0 to 1000")
    return int(given)


async def _said(request: web.Request, *names: str) -> dict[str, Any]:
    """The request's body: an object with these names, one of them a group."""
    if request.content_type != "application/json":
        raise Wrong("expected Content-Type: application/json", code=415)
    try:
        said = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise Wrong(f"expected a JSON object with {' and '.join(names)}") from None
    if not isinstance(said, dict) or said.keys() != set(names):
        raise Wrong(f"expected a JSON object with exactly {' and '.join(names)}")
    if not isinstance(said["group"], str) or not ids.is_name(said["group"]):
        raise Wrong("group: expected the name of a group")
    return said


async def _group_request(request: web.Request) -> str:
    name: str = (await _said(request, "group"))["group"]
    return name


async def _scale_request(request: web.Request) -> tuple[str, int]:
    said = await _said(request, "group", "size")
    group, size = said["group"], said["size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
        raise Wrong(f"size: expected a whole number from 0 to {MAX_SIZE}")
    return group, size


def _reply(name: str, found: Sequence[Mapping[str, Any]], answers: asking.Answers[Any]) -> web.Response:
    body: dict[str, Any] = {name: list(found)}
    if not answers.bad:
        return _json(body)
    body["errors"] = [{"shard": shard, "error": failures.explain(problem)} for shard, problem in answers.bad]
    if answers.good:
        return _json(body, code=207)
    first = answers.bad[0][1]
    return _json({**body, "error": failures.explain(first)}, code=_code(first))


def _code(problem: failures.Refused) -> int:
    """What the shard thinks of *our* certificate is not the caller's fault: that is a bad gateway."""
    return CODES.get(problem.code, 502) if isinstance(problem, Refusal) else 502


def _json(body: Mapping[str, Any], *, code: int = 200) -> web.Response:
    return web.json_response(body, status=code, headers=access.HEADERS)
