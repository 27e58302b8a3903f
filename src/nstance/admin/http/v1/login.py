"""Logging in with an identity provider: to it, and back with a code.

What belongs to a login is in a cookie of a few minutes, so nothing is stored here, and an answer to a login that another
browser began is worth nothing.
"""

import hmac

from aiohttp import web

from nstance.admin.http import access
from nstance.admin.http.oidc.id_token import InvalidTokenError
from nstance.admin.http.oidc.provider import Provider, ProviderError
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.sessions import Sessions
from nstance.admin.http.v1 import fields
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.routing import Call, RouteGroup, route
from nstance.admin.http.v1.session import set_cookie
from nstance.admin.json_schema import TEXT
from nstance.clock import Clock, Rng
from nstance.wire.call import PERSON

PATH = "/v1/login"
COOKIE = "nstance-login"
PURPOSE = "login"
LIFE_SECONDS = 600
RANDOM_BITS = 256
NO_PROVIDER = "this server has no identity provider: start it with --oidc-config"
ANSWER: Fields = {
    "code": field(fields.TEXT, "To be exchanged for an ID token."),
    "state": field(fields.TEXT, "As it was sent to the provider."),
    "error": field(fields.TEXT, "Why the provider rejected the login."),
    "iss": field(fields.TEXT, "The provider."),
    **{name: field(fields.TEXT, "Not used.") for name in ("error_description", "error_uri", "session_state", "scope")},
    **{name: field(fields.TEXT, "Not used.") for name in ("authuser", "hd", "prompt")},
}


class LoginRoutes(RouteGroup):
    tag = "session"

    def __init__(self, provider: Provider | None, sessions: Sessions, clock: Clock, rng: Rng) -> None:
        self._provider = provider
        self._sessions = sessions
        self._clock = clock
        self._rng = rng

    def _required(self) -> Provider:
        if self._provider is None:
            raise ProblemError(501, NO_PROVIDER)
        return self._provider

    @route("GET", PATH, "Go to the identity provider to log in.", reply=TEXT, is_redirect=True, is_public=True)
    async def start(self, call: Call) -> web.Response:
        state, nonce, verifier = (f"{self._rng.bits(RANDOM_BITS):064x}" for _ in range(3))
        try:
            address = await self._required().login_url(state=state, nonce=nonce, verifier=verifier)
        except ProviderError as problem:
            raise ProblemError(502, str(problem)) from problem
        response = _redirect(address)
        sealed = self._sessions.seal(PURPOSE, [state, nonce, verifier, self._clock.wall() + LIFE_SECONDS])
        # Lax: the browser returns from another site, with a GET.
        response.set_cookie(
            COOKIE,
            sealed,
            max_age=LIFE_SECONDS,
            path=PATH,
            httponly=True,
            samesite="Lax",
            secure=access.is_encrypted(call.request),
        )
        return response

    @route(
        "GET",
        f"{PATH}/callback",
        "Return from the identity provider, and get a session.",
        query=ANSWER,
        reply=TEXT,
        is_redirect=True,
        is_public=True,
    )
    async def finish(self, call: Call) -> web.Response:
        provider, query = self._required(), call.query
        begun = self._sessions.unseal(PURPOSE, call.request.cookies.get(COOKIE, ""))
        if begun is None or begun[3] <= self._clock.wall():
            raise ProblemError(400, f"this login was begun in another browser, or too long ago: begin again at {PATH}")
        state, nonce, verifier, _ = begun
        if not hmac.compare_digest(query.get("state", "").encode(), state.encode()):
            raise ProblemError(400, f"this is not the answer to the login of this browser: begin again at {PATH}")
        if "iss" in query and query["iss"] != provider.settings.issuer:
            raise ProblemError(400, "the answer comes from another identity provider")
        if "error" in query or not query.get("code"):
            reason = query.get("error", "no code")[:100]
            raise ProblemError(403, f"the identity provider rejected the login: {reason}")
        try:
            claims = await provider.claims(query["code"], nonce=nonce, verifier=verifier)
        except ProviderError as problem:
            raise ProblemError(502, str(problem)) from problem
        except InvalidTokenError as problem:
            raise ProblemError(
                403, f"the identity provider sent an ID token that is not accepted: {problem}"
            ) from problem
        settings = provider.settings
        person = claims.get(settings.person_claim)
        if not isinstance(person, str) or not PERSON.fullmatch(person):
            raise ProblemError(403, f"the claim {settings.person_claim} has no name that the history can hold")
        if settings.person_claim == "email" and claims.get("email_verified", True) is not True:
            raise ProblemError(403, "the identity provider has not verified this e-mail address")
        right = settings.right(claims.get(settings.groups_claim))
        if right is None:
            raise ProblemError(403, f"{person} is in none of the groups that have a role here")
        response = _redirect("/")
        response.del_cookie(COOKIE, path=PATH)
        session = self._sessions.create(person, right.role, tenant=right.tenant)
        set_cookie(call.request, response, self._sessions.cookie(session))
        return response


def _redirect(address: str) -> web.Response:
    return web.Response(status=302, headers={**access.HEADERS, "Location": address})
