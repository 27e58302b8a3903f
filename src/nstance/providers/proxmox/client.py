"""Requests to the API of Proxmox VE: one bounded connection pool, a deadline for every call, tasks followed to their end."""

import asyncio
import itertools
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from nstance.clock import Clock
from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.http_client import read_body
from nstance.providers import errors
from nstance.providers.proxmox import faults
from nstance.providers.proxmox.faults import PveError
from nstance.tasks.backoff import Backoff

CALL_TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5.0
TASK_TIMEOUT_SECONDS = 600.0  # a full clone of a large disk
MAX_CONNECTIONS = 16
_POLL = Backoff(0.1, 2.0, factor=1.5)
_BOUNDARY = "nstance-seed-5f1d9f0c7f0b"
_MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API is, and how it is trusted."""

    url: str
    token_id: str
    token_secret: str = field(default="", repr=False)
    read_token: Callable[[], Awaitable[bytes]] | None = None  # from the secret store, instead; raises ProviderError
    ca_file: Path | None = None
    fingerprint: bytes = b""  # SHA-256 of the server's certificate, instead of a CA
    verify_tls: bool = True


class ProxmoxClient:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._token = access.token_secret

    async def get(self, path: str, *, permission: str, **query: object) -> Any:
        with faults.translated(permission, changes=False):
            return await self._send("GET", path, query=query)

    async def change(self, method: str, path: str, *, permission: str, **data: object) -> Any:
        """A call that changes something. Without an answer its outcome is unknown."""
        with faults.translated(permission, changes=True):
            if method == "DELETE":
                return await self._send(method, path, query=data)
            return await self._send(method, path, data=data)

    async def upload_iso(self, node: str, storage: str, name: str, body: bytes) -> None:
        """Into a storage with content type iso. An older file of that name is replaced."""
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="content"\r\n\r\niso\r\n'
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="filename"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        # Built by hand, because not every server accepts the order of headers that aiohttp writes.
        content = head.encode() + body + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        permission = f"Datastore.AllocateTemplate on /storage/{storage}"
        with faults.translated(permission, changes=True):
            upid = await self._send("POST", f"/nodes/{node}/storage/{storage}/upload", content=content, headers=headers)
        await self.finish_task(str(upid), permission=permission)

    async def finish_task(self, upid: str, *, permission: str) -> None:
        """Waits until a task has ended. Raises what its exit status means; a failing poll never ends the wait."""
        node = upid.split(":")[1]
        deadline = self._clock.monotonic() + TASK_TIMEOUT_SECONDS
        for polls in itertools.count(1):
            try:
                status = await self._send("GET", f"/nodes/{node}/tasks/{upid}/status")
                if status.get("status") == "stopped":
                    break
            except (PveError, NotSentError, NoAnswerError) as problem:
                last = str(problem)
            else:
                last = "it still runs"
            if self._clock.monotonic() > deadline:
                raise errors.UnknownOutcomeError(
                    f"task {upid} did not end within {TASK_TIMEOUT_SECONDS:g} s: {last}; look at it on node {node}"
                )
            await self._clock.sleep(_POLL.delay(polls))
        exit_status = str(status.get("exitstatus", ""))
        if exit_status != "OK" and not exit_status.startswith("WARNINGS"):
            with faults.translated(permission, changes=True):
                raise PveError(500, exit_status or "the task failed without a word")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        data: Mapping[str, object] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Raises PveError, NotSentError, NoAnswerError. A token that was rotated in the secret store is replaced once: such a
        call was not carried out."""
        body: Any = content if content is not None else _form(data)
        token = await self._read_token()
        try:
            return await self._send_once(method, path, _form(query), body, {**(headers or {}), **self._login(token)})
        except PveError as problem:
            if problem.status != 401 or self._access.read_token is None:
                raise
            if self._token == token:
                self._token = ""
            other = await self._read_token()
            if other == token:
                raise
        return await self._send_once(method, path, _form(query), body, {**(headers or {}), **self._login(other)})

    async def _send_once(
        self, method: str, path: str, query: Mapping[str, str], body: Any, headers: Mapping[str, str]
    ) -> Any:
        try:
            async with self._opened().request(
                method, f"{self._access.url}/api2/json{path}", params=query, data=body, headers=headers
            ) as answer:
                text = await read_body(answer.content, _MAX_ANSWER_BYTES)
        except (aiohttp.ClientConnectorError, aiohttp.ServerFingerprintMismatch) as problem:
            raise NotSentError(f"failed to connect to {self._access.url}: {problem}") from problem
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as problem:
            raise NoAnswerError(f"no answer to {method} {path}: {problem or 'timed out'}") from problem
        return _parsed(answer.status, answer.reason or "", text)

    async def _read_token(self) -> str:
        if not self._token and self._access.read_token is not None:
            self._token = (await self._access.read_token()).decode(errors="replace").strip()
        return self._token

    def _login(self, token: str) -> Mapping[str, str]:
        return {"Authorization": f"PVEAPIToken={self._access.token_id}={token}"}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            access = self._access
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ssl=_trust(access)),
                timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_SECONDS, sock_connect=CONNECT_TIMEOUT_SECONDS),
                trust_env=False,
            )
        return self._session


def _trust(access: Access) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    if access.fingerprint:
        return aiohttp.Fingerprint(access.fingerprint)
    if not access.verify_tls:
        return False
    return ssl.create_default_context(cafile=str(access.ca_file)) if access.ca_file else True


def _form(values: Mapping[str, object] | None) -> dict[str, str]:
    """Booleans are 0 and 1. Names with a hyphen are written with an underscore."""
    out = {}
    for name, value in (values or {}).items():
        if value is not None:
            out[name.replace("_", "-")] = str(int(value)) if isinstance(value, bool) else str(value)
    return out


def _parsed(status: int, reason: str, text: bytes) -> Any:
    try:
        body = json.loads(text) if text else {}
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    if status == 200 and "data" in body:
        return body["data"]
    if status == 200:
        raise NoAnswerError("expected JSON with data from Proxmox, found something else: is this its API?")
    message = str(body.get("message") or reason).strip()
    found = body.get("errors")
    raise PveError(
        status, message, {str(k): str(v).strip() for k, v in found.items()} if isinstance(found, dict) else {}
    )
