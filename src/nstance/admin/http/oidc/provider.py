"""The identity provider over HTTP: discovery, signing keys, and the exchange of a code for an ID token.

What the provider says about itself is kept for an hour. Keys are read again when a token names one that is not known,
so that a rotation needs no restart, but not more often than every few seconds.
"""

import asyncio
import base64
import hashlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from nstance.admin.http.oidc import id_token
from nstance.admin.http.oidc.id_token import Expected, InvalidTokenError, SigningKey, UnknownKeyError
from nstance.admin.http.oidc.settings import OidcSettings, check_url
from nstance.clock import Clock

TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 1 << 20
MAX_AGE_SECONDS = 3600.0
MIN_KEYS_AGE_SECONDS = 5.0
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class ProviderError(Exception):
    """The provider does not answer, or not as one."""


@dataclass(slots=True)
class _Known:
    endpoints: Mapping[str, str] = field(default_factory=dict)
    read_at: float = float("-inf")
    keys: Mapping[str, SigningKey] = field(default_factory=dict)
    keys_read_at: float = float("-inf")


class Provider:
    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """Raises OSError if its CA cannot be read."""
        self.settings = settings
        self._clock = clock
        self._known = _Known()
        self._lock = asyncio.Lock()
        self._tls = ssl.create_default_context(cafile=settings.ca_file)

    async def login_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where a browser goes to log in."""
        endpoints = await self._endpoints()
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_url,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        address = endpoints["authorization_endpoint"]
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    async def claims(self, code: str, *, nonce: str, verifier: str) -> dict[str, Any]:
        """Of the person who logged in. Raises ProviderError, InvalidTokenError."""
        endpoints = await self._endpoints()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_url,
            "client_id": self.settings.client_id,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        if self.settings.client_secret:
            pair = f"{quote(self.settings.client_id, safe='')}:{quote(self.settings.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await self._request("POST", endpoints["token_endpoint"], data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderError("the identity provider answered without an ID token; is openid among the scopes?")
        expected = Expected(
            issuer=self.settings.issuer, client_id=self.settings.client_id, nonce=nonce, now=self._clock.wall()
        )
        try:
            return id_token.verify(token, await self._keys(), expected)
        except UnknownKeyError:
            return id_token.verify(token, await self._keys(max_age=MIN_KEYS_AGE_SECONDS), expected)

    async def _endpoints(self) -> Mapping[str, str]:
        async with self._lock:
            if self._clock.monotonic() - self._known.read_at < MAX_AGE_SECONDS:
                return self._known.endpoints
            issuer = self.settings.issuer
            found = await self._request("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != issuer:
                raise ProviderError(
                    f"expected the issuer {issuer}, the provider says {str(found.get('issuer'))[:200]!r}; "
                    "write it in the file of --oidc-config exactly so"
                )
            methods = found.get("code_challenge_methods_supported")
            if isinstance(methods, list) and "S256" not in methods:
                raise ProviderError("the identity provider does not support PKCE with S256")
            try:
                for name in ENDPOINTS:
                    check_url(found.get(name), name)
            except ValueError as problem:
                raise ProviderError(f"the identity provider describes itself wrongly: {problem}") from problem
            self._known.endpoints = {name: found[name] for name in ENDPOINTS}
            self._known.read_at = self._clock.monotonic()
            return self._known.endpoints

    async def _keys(self, *, max_age: float = MAX_AGE_SECONDS) -> Mapping[str, SigningKey]:
        """While the provider does not answer, the keys that are known stay valid."""
        async with self._lock:
            known = self._known
            if self._clock.monotonic() - known.keys_read_at >= max_age:
                try:
                    known.keys = id_token.read_keys(await self._request("GET", known.endpoints["jwks_uri"]))
                    known.keys_read_at = self._clock.monotonic()
                except InvalidTokenError as problem:
                    raise ProviderError(f"failed to read the keys of the identity provider: {problem}") from problem
                except ProviderError:
                    if not known.keys:
                        raise
            return known.keys

    async def _request(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=self._tls)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
                session.request(method, address, allow_redirects=False, **more) as answer,
            ):
                body = await answer.content.read(MAX_ANSWER_BYTES + 1)
                while len(body) <= MAX_ANSWER_BYTES and (part := await answer.content.read(MAX_ANSWER_BYTES)):
                    body += part
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise ProviderError(f"the identity provider does not answer: {problem or 'timed out'}") from problem
        try:
            found = json.loads(body) if len(body) <= MAX_ANSWER_BYTES else None
        except (ValueError, RecursionError):
            found = None
        if status != 200 or not isinstance(found, dict):
            reason = found.get("error") if isinstance(found, dict) else None
            raise ProviderError(f"the identity provider answered {status}{f' ({str(reason)[:100]})' if reason else ''}")
        return found
