"""Google Cloud on loopback: one server for all services, whose requests and replies are checked by Google's own description.

`violations` lists what the description forbids: requests that Google would refuse, and replies that Google would not send.
Faults are kept per method: lost requests, lost replies, and errors.
"""

import asyncio
import contextlib
import json
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.gcp.discovery import Api, Json, Route, unquoted

TOKEN = "token-of-the-stand-in"
PROJECT, REGION, ZONE = "proj-1", "europe-west1", "europe-west1-b"


class GoogleFault(Exception):
    """An error reply."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def reply(self) -> web.Response:
        error = {"domain": "global", "reason": self.reason, "message": self.message}
        body = {"error": {"code": self.status, "message": self.message, "errors": [error], "status": self.reason}}
        return web.json_response(body, status=self.status)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. Without a status the connection is closed."""

    status: int = 0
    reason: str = ""
    message: str = "injected"
    after_effect: bool = False  # the call is carried out before


LOST_REPLY = Fault(after_effect=True)
LOST_REQUEST = Fault()
OUTAGE = Fault(503, "backendError", "the service is not available")
INTERNAL = Fault(500, "internalError", "internal error")
INTERNAL_AFTER = Fault(500, "internalError", "internal error", after_effect=True)
THROTTLED = Fault(403, "rateLimitExceeded", "Quota exceeded for quota group 'Queries' per minute")
TOO_MANY = Fault(429, "rateLimitExceeded", "too many requests")


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request, as a service sees it."""

    id: str  # of the method
    params: Mapping[str, str]
    body: Json
    raw: bytes
    query: Mapping[str, list[str]]
    upload: bool


Handler = Callable[[Request], Awaitable[Any]]


@dataclass(slots=True)
class StandIn:
    url: str = ""
    token: str = TOKEN  # that the metadata server gives
    tokens: set[str] = field(default_factory=lambda: {TOKEN})  # that are accepted
    denied: set[str] = field(default_factory=set)  # permissions that the caller lacks
    once: dict[str, list[Fault | None]] = field(default_factory=dict)  # by method, for its next calls
    always: dict[str, Fault] = field(default_factory=dict)  # by method, or "*"
    delays: dict[str, float] = field(default_factory=dict)  # seconds before a method is carried out
    calls: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    exchanges: list[dict[str, str]] = field(default_factory=list)  # what the token service was asked
    _routes: list[tuple[Route, Handler]] = field(default_factory=list)
    _apis: dict[str, Api] = field(default_factory=dict)

    def add(self, api: str, handlers: Mapping[str, Handler]) -> None:
        """`handlers` by the ID of the method."""
        described = self._apis.setdefault(api, Api(api))
        for id, handler in handlers.items():
            self._routes += [(route, handler) for route in described.route(id)]

    def spoil(self, method: str, *faults: Fault | None) -> None:
        self.once.setdefault(method, []).extend(faults)

    def heal(self) -> None:
        self.once.clear()
        self.always.clear()
        self.delays.clear()

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a server on a VM of this cloud."""
        services = ("COMPUTE", "STORAGE", "SECRETMANAGER", "CLOUDKMS", "IAM", "CLOUDRESOURCEMANAGER", "IAMCREDENTIALS")
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": self.url for name in services}
        return {"GCE_METADATA_HOST": self.url.removeprefix("http://"), "HOME": "/nonexistent", **overrides, **more}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if path.startswith("/computeMetadata/v1/"):
            return self._metadata(request, path.removeprefix("/computeMetadata/v1/"))
        if path in ("/token", "/sts", "/impersonate"):
            return await self._exchange(request)
        try:
            return await self._dispatch(request, path)
        except GoogleFault as fault:
            return fault.reply()

    def _metadata(self, request: web.Request, path: str) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        if path == "instance/service-accounts/default/token":
            self.calls["token"] += 1
            return web.json_response({"access_token": self.token, "expires_in": 3599, "token_type": "Bearer"})
        found = self.metadata.get(path)
        return web.Response(status=404) if found is None else web.Response(text=found)

    async def _exchange(self, request: web.Request) -> web.Response:
        body = await request.text()
        asked = json.loads(body) if body.startswith("{") else dict(urllib.parse.parse_qsl(body))
        self.exchanges.append({**asked, "authorization": request.headers.get("authorization", ""), "to": request.path})
        if request.path == "/impersonate":
            return web.json_response({"accessToken": TOKEN, "expireTime": "2100-01-01T00:00:00Z"})
        return web.json_response({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})

    async def _dispatch(self, request: web.Request, path: str) -> web.StreamResponse:
        matches = ((route.pattern.fullmatch(path), route, handler) for route, handler in self._routes)
        found = next((each for each in matches if each[0] is not None and each[1].verb == request.method), None)
        if found is None:
            self.violations.append(f"{request.method} {path}: the stand-in has no such method")
            return web.Response(status=404, text="Not Found")
        match, route, handler = found
        assert match is not None
        raw = await request.read()
        self.calls[route.id] += 1
        fault = self._next(route.id)
        if fault is not None and not fault.after_effect:
            return self._spoiled(request, fault)
        if delay := self.delays.get(route.id):
            await asyncio.sleep(delay)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise GoogleFault(401, "authError", "Invalid Credentials")
        answer = await self._carry_out(request, route, handler, unquoted(match), raw)
        return answer if fault is None else self._spoiled(request, fault)

    async def _carry_out(
        self, request: web.Request, route: Route, handler: Handler, params: dict[str, str], raw: bytes
    ) -> web.StreamResponse:
        query: dict[str, list[str]] = {}
        for name, value in request.query.items():
            query.setdefault(name, []).append(value)
        body = json.loads(raw) if raw and not route.is_upload else None
        faults = [*route.query_faults(query), *route.body_faults(body)]
        if faults:
            self.violations += faults
            raise GoogleFault(400, "badRequest", faults[0])
        flat = {**params, **{name: values[0] for name, values in query.items()}}
        answer = await handler(Request(route.id, flat, body, raw, query, route.is_upload))
        if isinstance(answer, web.StreamResponse):
            return answer
        self.violations += route.reply_faults(answer)
        return web.json_response(answer) if answer is not None else web.Response(status=204)

    def _next(self, id: str) -> Fault | None:
        if self.once.get(id):
            return self.once[id].pop(0)
        return self.always.get(id) or self.always.get("*")

    def _spoiled(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.status:
            return GoogleFault(fault.status, fault.reason, fault.message).reply()
        assert request.transport is not None
        request.transport.abort()
        return web.Response(status=500)

    def check(self, permission: str, message: str = "") -> None:
        """Raises GoogleFault if the caller lacks a permission."""
        if permission in self.denied:
            raise GoogleFault(403, "forbidden", message or f"Required '{permission}' permission for the resource")


@contextlib.asynccontextmanager
async def serving(stand_in: StandIn) -> AsyncIterator[StandIn]:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{rest:.*}", stand_in.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stand_in
    finally:
        await runner.cleanup()
