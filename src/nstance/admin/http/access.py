"""Authentication of the HTTP API.

On a loopback address every local user has access. Elsewhere a client needs a bearer token or a client certificate, and
TLS. The trap is the browser: a foreign page can send requests to a loopback address too. So the Host must be a loopback
name there, and requests with a foreign Origin are rejected.
"""

import hashlib
import hmac
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from nstance.admin import errors
from nstance.config.addresses import Address

MIN_TOKEN_LENGTH, MAX_TOKEN_LENGTH = 16, 1024
PUBLIC_PATHS = frozenset({"/", "/health", "/openapi.json"})  # reveal nothing about the shards
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    token: str | None
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None

    def __repr__(self) -> str:
        return f"Access(token={'set' if self.token else None}, tls={self.tls_cert}, client_ca={self.client_ca})"

    @property
    def is_guarded(self) -> bool:
        return self.token is not None or self.client_ca is not None

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
            missing.append("a token (--token-file or NSTANCE_ADMIN_TOKEN) or --client-ca")
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
                context.verify_mode = ssl.CERT_OPTIONAL if self.token is not None else ssl.CERT_REQUIRED
        except FileNotFoundError:
            missing = [path for path in (self.tls_cert, self.tls_key, self.client_ca) if path and not path.exists()]
            raise errors.CommandError(f"there is no file {missing[0] if missing else self.tls_cert}") from None
        except (ssl.SSLError, ValueError) as problem:
            raise errors.CommandError(f"the TLS certificate, key or CA cannot be used: {problem}") from problem
        return context

    def admits(self, request: web.Request) -> bool:
        if not self.is_guarded:
            return is_loopback(_host(request))
        if self.client_ca is not None and request.transport and request.transport.get_extra_info("peercert"):
            return True
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if self.token is None or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(_digest(token.strip()), _digest(self.token))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


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


def access_middleware(access: Access) -> Middleware:

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return error_response(403, "requests from other sites are rejected")
        if not access.admits(request) and (request.path not in PUBLIC_PATHS or not access.is_guarded):
            if access.is_guarded:
                return error_response(
                    401, "expected a bearer token or a client certificate", **{"WWW-Authenticate": "Bearer"}
                )
            return error_response(403, "without a token only localhost has access: use that name")
        return await handler(request)

    return check


def error_response(code: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"error": message}, status=code, headers={**HEADERS, **headers})
