"""Sessions of browsers: logging in with a token, and who one is."""

from importlib import metadata

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http import problems
from nstance.admin.http.access import CALLER, HEADERS, Access, Caller, is_encrypted
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.rate_limit import LOGINS, RateLimit
from nstance.admin.http.sessions import COOKIE, LIFE_SECONDS, Sessions
from nstance.admin.http.v1 import fields
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import answer
from nstance.admin.http.v1.routing import Call, RouteGroup, route
from nstance.admin.json_schema import ref
from nstance.clock import Clock
from nstance.model.roles import Role

TOKEN: Fields = {"token": field(fields.TEXT, "The bearer token.", required=True)}


class SessionRoutes(RouteGroup):
    tag = "session"

    def __init__(
        self, guard: Access, sessions: Sessions, client: Client, *, shards: list[str], has_storage: bool
    ) -> None:
        self._guard = guard
        self._sessions = sessions
        self._client = client
        self._shards = shards
        self._has_storage = has_storage
        self._logins: RateLimit | None = None

    def limit_logins(self, clock: Clock) -> "SessionRoutes":
        self._logins = RateLimit(LOGINS, clock)
        return self

    @route(
        "GET",
        "/v1/session",
        "Who one is, and what one may do. A browser gets a session.",
        reply=ref("Session"),
        is_public=True,
    )
    async def show(self, call: Call) -> web.Response:
        caller: Caller | None = call.request.get(CALLER)
        if caller is None:
            return self._log_in_first()
        return self._answer(call, caller)

    def _log_in_first(self) -> web.Response:
        """Says which ways to log in there are."""
        ways = {"token": "/v1/session"} if self._guard.has_tokens else {}
        ways |= {"provider": "/v1/login"} if self._guard.has_logins else {}
        detail = "log in first: POST the token to /v1/session" + (", or go to /v1/login" if "provider" in ways else "")
        headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
        return problems.response(401, detail, headers=headers, more={"login": ways})

    @route("POST", "/v1/session", "Exchange a token for a session.", reply=ref("Session"), is_public=True, body=TOKEN)
    async def log_in(self, call: Call) -> web.Response:
        assert self._logins is not None
        if delay := self._logins.delay(call.request.remote or ""):
            headers = {"Retry-After": str(int(delay) + 1)}
            raise ProblemError(429, "too many attempts to log in; try again later", headers=headers)
        caller = self._guard.log_in(call.body["token"])
        if caller is None:
            raise ProblemError(401, "this is not the token of this server")
        return self._answer(call, caller)

    @route("DELETE", "/v1/session", "End the session of this browser.", reply=ref("Session"), is_public=True)
    async def log_out(self, call: Call) -> web.Response:
        caller: Caller | None = call.request.get(CALLER)
        if caller is not None and caller.session is not None:
            self._sessions.end(caller.session)
        nobody = Caller(person="", role=Role.VIEWER, allows_changes=False)
        response = self._answer(call, nobody, has_session=False)
        response.del_cookie(COOKIE, path="/")
        return response

    def _answer(self, call: Call, caller: Caller, *, has_session: bool = True) -> web.Response:
        """With a new session, unless the caller has one or is no browser."""
        session, request = caller.session, call.request
        is_new = session is None and has_session and (request.method == "POST" or "Sec-Fetch-Site" in request.headers)
        if is_new:
            session = self._sessions.create(caller.person, caller.role, tenant=caller.tenant, token=caller.token)
        body = {
            "person": caller.person,
            "role": caller.role.value,
            "can_change": caller.can_change,
            "has_storage": self._has_storage,
            "version": metadata.version("nstance"),
            "cluster": self._client.identity.who.cluster,
            "tenant": caller.tenant or self._client.tenant,
            "shards": self._shards,
            "csrf_token": self._sessions.csrf_token(session) if session is not None else None,
        }
        response = answer(call, body)
        if is_new and session is not None:
            set_cookie(request, response, self._sessions.cookie(session))
        return response


def set_cookie(request: web.Request, response: web.Response, cookie: str) -> None:
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(LIFE_SECONDS),
        path="/",
        httponly=True,
        samesite="Strict",
        secure=is_encrypted(request),
    )
