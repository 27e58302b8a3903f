"""Answers of version 1: JSON with an ETag, and what several shards answered as one.

The status is 200 if all shards answered, 207 if some did, and otherwise that of the first failure, as a problem.
"""

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web
from grpclib.const import Status

from nstance.admin import errors
from nstance.admin.client import Client, ShardError
from nstance.admin.http import access, problems
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.v1.routing import Call
from nstance.admin.shard import fanout
from nstance.model.ids import ShardId

MIN_COMPRESSED_BYTES = 1_024
COMPRESSION = 5

CODES = {
    Status.INVALID_ARGUMENT: 400,
    Status.NOT_FOUND: 404,
    Status.ALREADY_EXISTS: 409,
    Status.FAILED_PRECONDITION: 409,
    Status.ABORTED: 412,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.UNAVAILABLE: 503,
    Status.UNIMPLEMENTED: 501,
}


class Shards:
    """The shards that a call is about."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = {client.shard: client for client in clients}

    @property
    def names(self) -> list[ShardId]:
        return list(self._clients)

    def of(self, call: Call) -> list[Client]:
        """For reading: one, or all. The history of what is done names the caller."""
        chosen = [self.one(call.query["shard"])] if "shard" in call.query else list(self._clients.values())
        return [client.acting_for(call.caller.person, role=call.caller.role) for client in chosen]

    def to_change(self, call: Call) -> list[Client]:
        if bool(call.query.get("all_shards", False)) == ("shard" in call.query):
            raise ProblemError(400, "expected exactly one of ?shard=NAME and ?all_shards=true")
        return self.of(call)

    def one(self, name: str) -> Client:
        client = self._clients.get(ShardId(name))
        if client is None:
            raise ProblemError(404, f"there is no shard {name}; there are: {', '.join(self._clients)}")
        return client

    async def ask(self, call: Call, work: Callable[[Client], Awaitable[Any]]) -> fanout.Answers[Any]:
        return await fanout.call_each(self.of(call), work)

    async def change(self, call: Call, work: Callable[[Client], Awaitable[Any]]) -> fanout.Answers[Any]:
        return await fanout.call_each(self.to_change(call), work)


def answer(call: Call, body: Mapping[str, Any], answers: fanout.Answers[Any] | None = None) -> web.Response:
    """A problem if no shard answered."""
    failures = answers.failures if answers is not None else []
    if not failures:
        return json_response(call.request, body)
    failed = [{"shard": shard, "error": errors.explain(error)} for shard, error in failures]
    if answers is not None and answers.results:
        return json_response(call.request, {**body, "errors": failed}, status=207)
    first = failures[0][1]
    return problems.response(status_of(first), errors.explain(first), headers=access.HEADERS, errors=failed)


def status_of(failure: errors.CommandError) -> int:
    """If the shard rejects this program's own certificate, the client is not at fault: that is a bad gateway."""
    return CODES.get(failure.code, 502) if isinstance(failure, ShardError) else 502


def json_response(request: web.Request, body: Any, *, status: int = 200) -> web.Response:
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    headers = {**access.HEADERS, "Content-Type": "application/json; charset=utf-8"}
    if request.method in access.SAFE_METHODS and status == 200:
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        # A private cache may keep it, but must ask each time whether it is still right.
        headers |= {
            "ETag": etag,
            "Cache-Control": "private, no-cache",
            "Vary": "Accept-Encoding, Cookie, Authorization",
        }
        if _matches(request.headers.get("If-None-Match", ""), etag):
            return web.Response(status=304, headers={name: headers[name] for name in ("ETag", "Cache-Control", "Vary")})
    if len(content) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        content = gzip.compress(content, COMPRESSION, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=content, status=status, headers=headers)


def _matches(given: str, etag: str) -> bool:
    return given.strip() == "*" or etag in (each.strip().removeprefix("W/") for each in given.split(","))
