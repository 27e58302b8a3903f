"""Members of a load balancer behind an HTTP service.

`GET url` lists them; `POST url` with an action changes one of them, and may be repeated. Each call is signed with a secret
or carries it as a token. A service that throttles is only retried later: its limits say nothing about the cloud's.
"""

import hashlib
import hmac
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from nstance.clock import Clock
from nstance.http_client import read_body
from nstance.model.ids import ProviderId
from nstance.providers import errors
from nstance.providers.member_lists import entries
from nstance.providers.port import LoadBalancer, Webhook

MAX_CONNECTIONS = 8
SECRET_SECONDS = 300.0  # a secret is read again after this time, or when it was refused
_DENIED = (401, 403)
_MAX_MESSAGE = 200

ReadSecret = Callable[[str], Awaitable[bytes]]


class Webhooks:
    """`read_secret` raises ProviderError."""

    def __init__(self, read_secret: ReadSecret, clock: Clock) -> None:
        self._read_secret = read_secret
        self._clock = clock
        self._sessions: dict[str, aiohttp.ClientSession] = {}  # by CA file
        self._secrets: dict[str, tuple[float, bytes]] = {}

    async def read(self, webhook: Webhook) -> dict[ProviderId, dict[str, Any]]:
        return entries.parse(await self._send("GET", webhook, b""), webhook.url)

    async def change(self, balancer: LoadBalancer, webhook: Webhook, action: str, member: Mapping[str, object]) -> None:
        body = {"action": action, "load_balancer": balancer.name, "member": dict(member)}
        await self._send("POST", webhook, json.dumps(body, ensure_ascii=False).encode())

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _send(self, method: str, webhook: Webhook, body: bytes) -> bytes:
        what = f"{method} {webhook.url}"
        headers = await self._headers(method, webhook, body)
        try:
            async with self._session(webhook).request(
                method,
                webhook.url,
                data=body or None,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=webhook.timeout),
            ) as answer:
                text = await read_body(answer.content, entries.MAX_LIST_BYTES)
        except aiohttp.ClientConnectorError as problem:
            raise errors.UnavailableError(f"failed to connect to {webhook.url}: {problem}") from problem
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise errors.UnknownOutcomeError(f"no answer to {what}: {problem or 'timed out'}") from problem
        if len(text) > entries.MAX_LIST_BYTES:
            raise errors.UnavailableError(f"expected at most {entries.MAX_LIST_BYTES} bytes from {what}, found more")
        if 200 <= answer.status < 300:
            return text
        raise self._fault(answer.status, what, webhook, text)

    def _fault(self, status: int, what: str, webhook: Webhook, text: bytes) -> errors.ProviderError:
        answer_text = text[:_MAX_MESSAGE].decode(errors="replace").strip()
        message = f"{what} was answered by {status}{f': {answer_text}' if answer_text else ''}"
        if status in _DENIED:
            self._secrets.pop(webhook.secret, None)  # it may have been rotated
            return errors.PermanentError(f"{message}; check the secret {webhook.secret!r}", permission=webhook.url)
        if status in (408, 429) or status == 503:
            return errors.UnavailableError(message)
        if status >= 500:
            return errors.UnknownOutcomeError(message)
        return errors.PermanentError(message, parameter="url")

    async def _headers(self, method: str, webhook: Webhook, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json"} if body else {}
        if not webhook.secret:
            return headers
        secret = await self._secret(webhook.secret)
        if webhook.auth == "token":
            return {**headers, "Authorization": f"Bearer {secret.decode(errors='replace')}"}
        now = str(int(self._clock.wall()))
        return {
            **headers,
            "X-Nstance-Timestamp": now,
            "X-Nstance-Signature": sign(secret, method, webhook.url, now, body),
        }

    async def _secret(self, name: str) -> bytes:
        now = self._clock.monotonic()
        known = self._secrets.get(name)
        if known is None or now - known[0] > SECRET_SECONDS:
            known = self._secrets[name] = (now, (await self._read_secret(name)).strip())
        return known[1]

    def _session(self, webhook: Webhook) -> aiohttp.ClientSession:
        found = self._sessions.get(webhook.ca_file)
        if found is None:
            try:
                context = ssl.create_default_context(cafile=webhook.ca_file or None)
            except (OSError, ssl.SSLError) as problem:
                raise errors.PermanentError(
                    f"expected a CA in {webhook.ca_file}, found none: {problem}", parameter="ca_file"
                ) from problem
            found = self._sessions[webhook.ca_file] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ssl=context), trust_env=False
            )
        return found


def sign(secret: bytes, method: str, url: str, timestamp: str, body: bytes) -> str:
    """Over time, method and path too, so that a call cannot be replayed later or as another one."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    signed = f"{timestamp}.{method}.{path}.".encode() + body
    return f"sha256={hmac.new(secret, signed, hashlib.sha256).hexdigest()}"
