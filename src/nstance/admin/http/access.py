"""Who may use the HTTP API and the dashboard, and who may change something.

On a loopback address every local user has access. Elsewhere a client needs a bearer token, a client certificate or an
account of an identity provider, and TLS; a browser gets a session for it. Each gives a role and a tenant. The trap is the
browser: a foreign page can send requests to a loopback address too. So the Host must be a loopback name there, requests
with a foreign Origin are rejected, and a browser's changes need the token of its session. A reverse proxy on this machine
sends the requests of other machines: they are not those of a local user.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware

from nstance.admin import errors
from nstance.admin.http import problems
from nstance.admin.http.sessions import COOKIE, CSRF_HEADER, Session, Sessions
from nstance.admin.tokens import Token, TokenFile
from nstance.config.addresses import Address
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from nstance.pki import names, peer
from nstance.wire.peer import cut

MIN_TOKEN_LENGTH, MAX_TOKEN_LENGTH = 16, 1024
V1 = "/v1/"
WATCH = "/v1/watch"
PAGES = "/dashboard/"
PUBLIC_PATHS = frozenset({"/", "/health", "/openapi.json"})  # reveal nothing about the shards
PUBLIC_V1_PATHS = frozenset({"/v1/openapi.json", "/v1/session", "/v1/login", "/v1/login/callback"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
STREAM_CHECK_SECONDS = 10.0
READ_ONLY = "this server is read-only: start it with `nstance-admin serve --allow-changes` to allow changes"
# What proxies add; also the version that nginx speaks, which adds nothing by default.
PROXY_HEADERS = ("Forwarded", "Via", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP")
PROXY_PREFIX = "x-forwarded-"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE_HEADERS = {
    **HEADERS,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, and what may be done for them."""

    person: str
    role: Role
    allows_changes: bool  # by this server, whatever the role
    tenant: TenantId | None = None  # None: that of this server
    token: str = ""  # the ID of the token, if it has one
    is_bearer: bool = False  # the request itself carries a token, which no browser sends on its own
    session: Session | None = None  # of a browser

    @property
    def can_change(self) -> bool:
        return self.allows_changes and self.role.allows(Role.OPERATOR)


CALLER = web.RequestKey("caller", Caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    token: str | None
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None
    allow_changes: bool = False
    tokens: TokenFile | None = None
    client_role: Role = Role.OPERATOR  # of client certificates that carry none
    has_logins: bool = False  # with an identity provider
    trusted_proxies: Sequence[Network] = ()  # whose X-Forwarded-For names the client

    def __repr__(self) -> str:
        return f"Access(token={'set' if self.token else None}, tls={self.tls_cert}, client_ca={self.client_ca})"

    @property
    def is_guarded(self) -> bool:
        return self.has_tokens or self.client_ca is not None or self.has_logins

    @property
    def has_tokens(self) -> bool:
        return self.token is not None or self.tokens is not None

    def check(self, bind: Address) -> None:
        """Raises CommandError for a setup that would be open to everybody, or readable on the network."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise errors.CommandError("expected both --tls-cert and --tls-key, found only one of them")
        if self.client_ca is not None and self.tls_cert is None:
            raise errors.CommandError("--client-ca needs --tls-cert and --tls-key: client certificates need TLS")
        if self.token is not None and not (
            MIN_TOKEN_LENGTH <= len(self.token) <= MAX_TOKEN_LENGTH
            and self.token.isascii()
            and self.token.isprintable()
        ):
            raise errors.CommandError(
                f"expected a token of {MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} printable ASCII characters"
            )
        if is_loopback(bind.host):
            return
        missing = ["--tls-cert and --tls-key"] if self.tls_cert is None else []
        if not self.is_guarded:
            missing.append("one of --tokens-file, --token-file (or NSTANCE_ADMIN_TOKEN), --client-ca and --oidc-config")
        if missing:
            raise errors.CommandError(
                f"{bind} can be reached from other machines, which requires {', and '.join(missing)}; "
                f"or listen only on this machine with --bind 127.0.0.1:{bind.port}"
            )

    def context(self) -> ssl.SSLContext | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL if self.has_tokens or self.has_logins else ssl.CERT_REQUIRED
        except FileNotFoundError:
            missing = [path for path in (self.tls_cert, self.tls_key, self.client_ca) if path and not path.exists()]
            raise errors.CommandError(f"there is no file {missing[0] if missing else self.tls_cert}") from None
        except (ssl.SSLError, ValueError) as problem:
            raise errors.CommandError(f"the TLS certificate, key or CA cannot be used: {problem}") from problem
        return context

    def identify(self, request: web.Request) -> Caller | None:
        """The caller by address, certificate or token; None for a stranger."""
        if not self.is_guarded:
            is_local = is_loopback(_host(request)) and not sign_of_proxy(request)
            return self.caller("local", Role.ADMIN) if is_local else None
        if self.client_ca is not None and request.transport:
            certificate = request.transport.get_extra_info("peercert")
            if certificate:
                return self._certified(certificate, request.transport.get_extra_info("ssl_object").getpeercert(True))
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        found = self.log_in(token.strip()) if kind.lower() == "bearer" else None
        return replace(found, is_bearer=True) if found is not None else None

    def log_in(self, token: str) -> Caller | None:
        if self.token is not None and hmac.compare_digest(_digest(token), _digest(self.token)):
            return self.caller("token", Role.ADMIN)
        found = self.tokens.find(token) if self.tokens is not None else None
        return self._with_token(found) if found is not None else None

    def resume(self, session: Session) -> Caller | None:
        """The caller of a session; None if its token was revoked or has expired."""
        if session.token:
            token = self.tokens.get(session.token) if self.tokens is not None else None
            return replace(self._with_token(token), session=session) if token is not None else None
        return replace(self.caller(session.person, session.role, tenant=session.tenant), session=session)

    def caller(self, person: str, role: Role, *, tenant: TenantId | None = None) -> Caller:
        """`Role.ADMIN` without a tenant: all that the identity of this server may do."""
        return Caller(person=person, role=role, tenant=tenant, allows_changes=self.allow_changes)

    def _with_token(self, token: Token) -> Caller:
        return replace(self.caller(token.person, token.role, tenant=token.tenant), token=token.id)

    def _certified(self, certificate: Any, der: bytes) -> Caller | None:
        """An operator's certificate of Nstance gives its role and tenant; that of an agent or a server gives nothing."""
        try:
            who = peer.identify(der)
        except names.IdentityError:
            return self.caller(_person(_common_name(certificate)) or "certificate", self.client_role)
        return self.caller(who.id, who.role, tenant=who.tenant) if isinstance(who, names.Operator) else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _common_name(certificate: Any) -> str:
    """Of a peer's certificate as `ssl` gives it."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""


def _person(name: str) -> str:
    """As the history can hold it."""
    return re.sub(r"[^A-Za-z0-9@._+:/-]", "-", name).lstrip("@._+:/-")[:96]


def _no_password() -> str:
    """Without this, OpenSSL would prompt on the terminal."""
    raise ValueError("the private key is encrypted; expected a plain PEM key")


def _host(request: web.Request) -> str:
    """Without the port."""
    host = request.host
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def forwarding_middleware(trusted: Sequence[Network]) -> Middleware:
    """Makes the address that a trusted proxy names that of the request: limits and the access log go by it."""

    @web.middleware
    async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
        client = _forwarded_client(request, trusted) if trusted else None
        return await handler(request.clone(remote=client) if client is not None else request)

    return forward


def _forwarded_client(request: web.Request, trusted: Sequence[Network]) -> str | None:
    """The last address that no trusted proxy has: a client can write anything before it. None: the peer itself."""
    path = ",".join(request.headers.getall("X-Forwarded-For", ())).split(",")
    client = None
    try:
        address = ipaddress.ip_address(request.remote or "")
        while path and any(address in network for network in trusted):
            address = ipaddress.ip_address(path.pop().strip())
            client = str(address)
    except ValueError:  # not an address, such as `unknown`
        pass
    return client


def access_middleware(access: Access, sessions: Sessions) -> Middleware:

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return rejected(request, 403, "requests from other sites are rejected")
        is_v1 = request.path.startswith(V1)

        def identify() -> Caller | None:
            caller = access.identify(request)
            session = sessions.read(request.cookies.get(COOKIE, "")) if is_v1 else None
            if session is None:
                return caller
            if caller is None and access.is_guarded:
                return access.resume(session)
            return replace(caller, session=session) if caller is not None else None

        caller = identify()
        if caller is None and (not _is_public(request.path) or not access.is_guarded):
            if access.is_guarded:
                message = "expected a bearer token or a client certificate"
                return rejected(request, 401, message, **{"WWW-Authenticate": "Bearer"})
            return rejected(request, 403, _why_not_local(request))
        if caller is not None:
            request[CALLER] = caller
            if is_v1 and _needs_csrf_token(request, caller) and not _has_csrf_token(request, caller, sessions):
                return rejected(request, 403, f"expected the token of GET /v1/session in the header {CSRF_HEADER}")
        is_stream = "text/event-stream" in request.headers.get("Accept", "") or request.path == WATCH
        if caller is None or not is_stream:
            return await handler(request)
        return await _while_admitted(request, handler, lambda: identify() is not None)

    return check


def sign_of_proxy(request: web.Request) -> str:
    """What shows that a proxy sent the request; empty: nothing does."""
    for name in request.headers:
        if name.lower().startswith(PROXY_PREFIX):
            return f"header {name}"
    found = next((f"header {name}" for name in PROXY_HEADERS if name in request.headers), "")
    return found or ("HTTP/1.0" if request.version < HttpVersion11 else "")


def is_encrypted(request: web.Request) -> bool:
    """Between the browser and this server, or a proxy before it. Anybody can send that header, so it may only restrict."""
    return request.secure or request.headers.get("X-Forwarded-Proto") == "https"


def _why_not_local(request: web.Request) -> str:
    if sign := sign_of_proxy(request):
        return (
            f"the request came through a proxy ({sign}), so it needs a token: start serve with --tokens-file or "
            "--oidc-config, see docs/access.md"
        )
    return "without a token only localhost has access: use that name"


async def _while_admitted(
    request: web.Request, handler: Handler, is_admitted: Callable[[], bool]
) -> web.StreamResponse:
    """A stream ends soon after the token or the session that it began with."""
    task = asyncio.ensure_future(handler(request))
    try:
        while not (await asyncio.wait({task}, timeout=STREAM_CHECK_SECONDS))[0]:
            if not is_admitted() and request.transport is not None:
                cut(request.transport)
        return await task
    finally:
        task.cancel()


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path in PUBLIC_V1_PATHS or path.startswith(PAGES)


def _needs_csrf_token(request: web.Request, caller: Caller) -> bool:
    """Of changes that a browser sends. A bearer token is not sent by a browser on its own."""
    if request.method in SAFE_METHODS or request.path in PUBLIC_V1_PATHS or caller.is_bearer:
        return False
    return any(header in request.headers for header in ("Origin", "Sec-Fetch-Site", "Cookie"))


def _has_csrf_token(request: web.Request, caller: Caller, sessions: Sessions) -> bool:
    return caller.session is not None and sessions.has_token(caller.session, request.headers.get(CSRF_HEADER, ""))


def rejected(request: web.Request, code: int, message: str, **headers: str) -> web.Response:
    """Under /v1 as problem details, elsewhere as `{"error": ...}`."""
    if request.path.startswith(V1):
        return problems.response(code, message, headers={**HEADERS, **headers})
    return error_response(code, message, **headers)


def missing_role(caller: Caller | None, required: Role) -> str:
    found = f"{caller.person} has the role {caller.role.value}" if caller is not None else "nobody is logged in"
    return f"this requires the role {required.value}: {found}"


def error_response(code: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"error": message}, status=code, headers={**HEADERS, **headers})
