"""Routes of version 1, and the OpenAPI document that is generated from them."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from nstance.admin.http import access
from nstance.admin.http.problems import MEDIA, ProblemError
from nstance.admin.http.sessions import COOKIE
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import Fields
from nstance.admin.json_schema import TEXT, Schema, ref
from nstance.model.roles import Role

SHARD: Fields = {"shard": fields.field(fields.NAME, "Only this shard; default: all.")}
ONE_OR_ALL: Fields = {
    "shard": fields.field(fields.NAME, "The shard to change; or all_shards."),
    "all_shards": fields.field(fields.FLAG, "Change it in all shards."),
}
DRY_RUN: Fields = {"dry_run": fields.field(fields.FLAG, "Answer with the plan and change nothing.")}

PATH_FIELDS: Fields = {
    "group": fields.field(fields.NAME, "The group.", required=True),
    "instance": fields.field(fields.INSTANCE, "The instance.", required=True),
    "operator": fields.field(fields.INSTANCE, "The operator.", required=True),
    "forecast": fields.field(fields.NAME, "The forecast.", required=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request whose parameters were checked."""

    request: web.Request
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def caller(self) -> access.Caller:
        return self.request[access.CALLER]

    @property
    def is_dry_run(self) -> bool:
        return bool(self.query.get("dry_run", False))

    @property
    def expected_etag(self) -> str:
        """Of the group, from If-Match; empty: whichever it has."""
        found = self.request.headers.get("If-Match", "").strip().strip('"')
        return "" if found == "*" else found


Handler = Callable[[Call], Awaitable[web.StreamResponse]]
F = TypeVar("F", bound=Callable[..., Awaitable[web.StreamResponse]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    query: Fields | None = field(default_factory=dict)  # None: whatever it is, it is ignored
    body: Fields = field(default_factory=dict)
    reply: Schema
    media: Sequence[str] = ("application/json",)  # other than JSON is described as text
    tag: str
    is_change: bool = False  # rejected on a read-only server, unless it is a dry run
    role: Role = Role.VIEWER  # required, unless it is a dry run
    is_public: bool = False
    is_redirect: bool = False  # it sends the browser elsewhere

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def is_partial(self) -> bool:
        """Some shards may fail: 207, with `errors`."""
        reply = schemas.SCHEMAS[self.reply["$ref"].rpartition("/")[2]] if "$ref" in self.reply else self.reply
        return "errors" in reply.get("properties", {})

    def _check(self, caller: access.Caller | None) -> None:
        if caller is None or not caller.role.allows(self.role):
            raise ProblemError(403, access.missing_role(caller, self.role))
        if self.is_change and not caller.allows_changes:
            raise ProblemError(403, access.READ_ONLY)

    def __post_init__(self) -> None:
        if self.is_change and self.role is Role.VIEWER:
            raise ValueError(f"{self.method} {self.path} changes something: it needs a role above viewer")

    async def respond(self, request: web.Request) -> web.StreamResponse:
        for name in self.path_names:
            kind = PATH_FIELDS[name].kind
            if not kind.check(request.match_info[name]):
                raise ProblemError(404, f"{name}: expected {kind.expected}")
        if self.is_change and "group" not in self.path_names and "If-Match" in request.headers:
            raise ProblemError(400, "If-Match: expected only for a change of one group, whose `etag` it has")
        query = fields.read_query(request, self.query) if self.query is not None else {}
        caller = request.get(access.CALLER)
        if not self.is_public and not query.get("dry_run"):
            self._check(caller)
        body = await fields.read_body(request, self.body)
        return await self.handler(Call(request=request, path=request.match_info, query=query, body=body))


def route(method: str, path: str, summary: str, **options: Any) -> Callable[[F], F]:
    """Makes a method of a `RouteGroup` the handler of a route. `options`: fields of `Route`."""

    def mark(handler: F) -> F:
        marked = handler.__dict__.setdefault("routes", [])
        marked.insert(0, {"method": method, "path": path, "summary": summary, **options})
        return handler

    return mark


def changing(method: str, path: str, summary: str, **options: Any) -> Callable[[F], F]:
    """For a route that changes something, or shows the plan of it as a dry run."""
    usual = {
        "query": {**ONE_OR_ALL, **DRY_RUN},
        "reply": ref("Change"),
        "is_change": True,
        "role": Role.OPERATOR,
    }
    return route(method, path, summary, **{**usual, **options})


class RouteGroup:
    """Routes whose handlers share what they work with."""

    tag: str

    def routes(self) -> list[Route]:
        marked = [(name, each) for name, member in vars(type(self)).items() for each in getattr(member, "routes", ())]
        return [Route(handler=getattr(self, name), **{"tag": self.tag, **each}) for name, each in marked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What routes of one version have in common."""

    about: str
    schemas: Mapping[str, Schema]
    security: Mapping[str, Schema]
    failure: Callable[[Route], tuple[str, Schema]]  # the media type and schema of an answer that is an error


V1 = Contract(
    about="What `nstance-admin` can do, over HTTP. Failures are problem details (RFC 9457).",
    schemas=schemas.SCHEMAS,
    security={
        "bearer": {"type": "http", "scheme": "bearer"},
        "mtls": {"type": "mutualTLS"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    },
    failure=lambda route: (MEDIA, ref("Problem")),
)


def document(routes: Sequence[Route], *, version: str, contract: Contract = V1) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe(route, contract)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nstance admin API",
            "version": version,
            "description": contract.about,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": dict(contract.schemas), "securitySchemes": dict(contract.security)},
        "security": [{name: []} for name in contract.security],
    }


def _describe(route: Route, contract: Contract) -> dict[str, Any]:
    content = {media: {"schema": route.reply if media == "application/json" else TEXT} for media in route.media}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    if route.is_redirect:
        responses = {"302": {"description": "Go there.", "headers": {"Location": {"schema": TEXT}}}}
    elif route.method == "GET" and route.media[0] == "application/json":
        etag = {"description": "Of this answer, for If-None-Match.", "schema": TEXT}
        responses["200"]["headers"] = {"ETag": etag}
        responses["304"] = {"description": "The answer is still the one with the ETag of If-None-Match."}
    if route.is_partial:
        responses["207"] = {"description": "Some shards failed; `errors` has them.", "content": content}
    media, failure = contract.failure(route)
    responses["default"] = {"description": "The request failed.", "content": {media: {"schema": failure}}}
    described: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            *(_parameter(name, PATH_FIELDS[name], where="path") for name in route.path_names),
            *(_parameter(name, each, where="query") for name, each in (route.query or {}).items()),
        ],
        "responses": responses,
    }
    if route.is_public:
        described["security"] = []
    if route.body:
        described["requestBody"] = {
            "required": any(each.required for each in route.body.values()),
            "content": {"application/json": {"schema": fields.object_schema(route.body)}},
        }
    return described


def _operation_id(route: Route) -> str:
    words = [word.strip("{}") for word in re.split(r"[/.]", route.path.removeprefix("/v1/"))]
    return "-".join([route.method.lower(), *words])


def _parameter(name: str, each: fields.Field, *, where: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": each.required,
        "description": each.about,
        "schema": each.kind.schema,
    }
