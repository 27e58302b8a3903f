"""Who may use the API, and over what.

On a loopback address anybody on the machine may. Elsewhere a caller shows a bearer token or a client certificate, and
only over TLS. The trap is the browser: a foreign page can send requests to a loopback address too, so there the Host
must be a loopback name, and no foreign Origin may ask for anything.
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

from nstance.admin import failures
from nstance.config.addresses import Address

MIN_TOKEN, MAX_TOKEN = 16, 1024
OPEN = frozenset({"/", "/health", "/openapi.json"})  # say nothing about the shards
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
    def guarded(self) -> bool:
        return self.token is not None or self.client_ca is not None

    def check(self, bind: Address) -> None:
        """Raises Refused for what would be open to everybody, or readable on its way."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise failures.Refused("--tls-cert and --tls-key come together, found only one of them")
        if self.client_ca is not None and self.tls_cert is None:
            raise failures.Refused("--client-ca needs --tls-cert and --tls-key: client certificates exist only in TLS")
        if self.token is not None and not (
            MIN_TOKEN <= len(self.token) <= MAX_TOKEN and self.token.isascii() and self.token.isprintable()
        ):
            raise failures.Refused(f"expected a token of {MIN_TOKEN} to {MAX_TOKEN} printable ASCII characters")
        if is_loopback(bind.host):
            return
        missing = ["--tls-cert and --tls-key"] if self.tls_cert is None else []
        if not self.guarded:
            missing.append("a token (--token-file or NSTANCE_ADMIN_TOKEN) or --client-ca")
        if missing:
            raise failures.Refused(
                f"{bind} can be reached from other machines, which needs {', and '.join(missing)}; "
                f"or bind to this machine only, with --bind 127.0.0.1:{bind.port}"
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
            named = [path for path in (self.tls_cert, self.tls_key, self.client_ca) if path and not path.exists()]
            raise failures.Refused(f"there is no file {named[0] if named else self.tls_cert}") from None
        except (ssl.SSLError, ValueError) as problem:
            raise failures.Refused(f"the TLS certificate, key or CA cannot be used: {problem}") from problem
        return context

    def admits(self, request: web.Request) -> bool:
        if not self.guarded:
            return is_loopback(_host(request))
        if self.client_ca is not None and request.transport and request.transport.get_extra_info("peercert"):
            return True
        kind, _, shown = request.headers.get("Authorization", "").partition(" ")
        if self.token is None or kind.lower() != "bearer":
            return False
        return hmac.compare_digest(_digest(shown.strip()), _digest(self.token))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _no_password() -> str:
    """Without this, OpenSSL would ask on the terminal, and wait."""
    raise ValueError("the private key is encrypted; expected a plain PEM key")


def _host(request: web.Request) -> str:
    """Its name without the port."""
    host = request.host
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def gate(access: Access) -> Middleware:
    """The middleware that every request passes."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return refusal(403, "requests of other sites are refused")
        if not access.admits(request) and (request.path not in OPEN or not access.guarded):
            if access.guarded:
                return refusal(401, "expected a bearer token or a client certificate", **{"WWW-Authenticate": "Bearer"})
            return refusal(403, "without a token this is only for localhost: use that name")
        return await handler(request)

    return check


def refusal(code: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"error": message}, status=code, headers={**HEADERS, **headers})
