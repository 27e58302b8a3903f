"""Calls to Google's services: with a token, bounded in time, over one pool of connections.

Plain requests instead of Google's libraries, which cost more memory than this server. Nothing that may have been carried out
is repeated here: whether it may be is known to its caller only. An exception says what is certain: GoogleError (Google
refused), NotSentError (nothing was done), NoAnswerError (nobody knows).
"""

import asyncio
import base64
import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yarl

from nstance.clock import Clock
from nstance.clouds.credentials import FreshCredentials
from nstance.clouds.errors import CredentialsError, NoAnswerError, NotSentError
from nstance.gcp import jwt
from nstance.gcp.credentials import REFRESH_BEFORE_SECONDS, Chain
from nstance.gcp.endpoints import IAM_CREDENTIALS, Service, endpoint
from nstance.gcp.errors import GoogleError, parse_error
from nstance.gcp.metadata import Metadata, MetadataError
from nstance.gcp.signed_urls import signed_blob
from nstance.http_client import Proxies, read_body

CONNECTIONS = 64
CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
MAX_ANSWER_BYTES = 32 << 20

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `path` is below the service's endpoint, with its parts quoted."""

    service: Service
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    accept_encoding: str = "gzip"
    seconds: float = CALL_SECONDS
    limit: int = MAX_ANSWER_BYTES

    def __str__(self) -> str:
        return f"{self.service.name} {self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Reply:
    """`size`: of the whole body, which is not read if it is larger than the limit of the call."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    size: int


class GoogleClient:
    def __init__(
        self,
        *,
        clock: Clock,
        environment: Mapping[str, str] | None = None,
        is_anonymous: bool = False,
    ) -> None:
        """`is_anonymous`: without a token, for emulators."""
        self._is_anonymous = is_anonymous
        self._environment = os.environ if environment is None else environment
        self._proxies = Proxies(self._environment)
        self._chain = Chain(session=self._open, proxies=self._proxies, environment=self._environment, clock=clock)
        self.on_credentials_failure: Callable[[str], None] = lambda problem: None
        self._tokens = FreshCredentials(
            "the token for Google Cloud",
            self._chain.fetch,
            clock,
            refresh_before=REFRESH_BEFORE_SECONDS,
            on_failure=lambda problem: self.on_credentials_failure(problem),
        )
        self.metadata = Metadata(self._open, self._environment)
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, ttl_dns_cache=60)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    async def close(self) -> None:
        self._tokens.close()
        if self._session is not None:
            await self._session.close()

    def url(self, service: Service) -> str:
        return endpoint(service, environment=self._environment)

    async def project(self) -> str:
        """The project of the credentials, if nobody has configured one. Raises NotSentError."""
        for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
            if found := self._environment.get(name):
                return found
        _, file = self._chain.read_file()
        if file is not None and file.get("project_id"):
            return str(file["project_id"])
        try:
            return await self.metadata.project()
        except MetadataError as problem:
            raise CredentialsError(f"no project: set it, or GOOGLE_CLOUD_PROJECT ({problem})") from problem

    async def account(self) -> str:
        """The e-mail address of the service account. Raises NotSentError."""
        _, file = self._chain.read_file()
        if file is not None and file.get("client_email"):
            return str(file["client_email"])
        return await self.metadata.get("instance/service-accounts/default/email")

    async def sign(self, content: bytes) -> bytes:
        """With the key of the service account. Raises what calls raise."""
        path, file = self._chain.read_file()
        if file is not None and file.get("private_key"):
            try:
                return jwt.sign_bytes(content, str(file["private_key"]))
            except ValueError as problem:
                raise CredentialsError(f"{path}: the private key cannot be read: {problem}") from problem
        account = f"projects/-/serviceAccounts/{await self.account()}"
        body = {"payload": base64.b64encode(content).decode()}
        answer = await self.json(IAM_CREDENTIALS, "POST", f"{account}:signBlob", body=body)
        try:
            return signed_blob(answer)
        except ValueError as problem:
            raise NoAnswerError(f"signBlob answered without a signature: {problem}") from problem

    async def json(
        self,
        service: Service,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Answer:
        """A call that answers in JSON."""
        call = Call(
            service=service,
            method=method,
            path=f"{service.path}/{path}",
            query=query or {},
            body=None if body is None else json.dumps(body).encode(),
            seconds=seconds,
        )
        reply = await self.send(call)
        if reply.size > call.limit:
            raise NoAnswerError(f"{call}: the answer is larger than {call.limit >> 20} MiB")
        try:
            answer = json.loads(reply.body) if reply.body.strip() else {}
        except (ValueError, RecursionError) as problem:
            raise NoAnswerError(f"{call}: the answer cannot be read: {problem}") from problem
        if not isinstance(answer, dict):
            raise NoAnswerError(f"{call}: expected an object as the answer")
        return answer

    async def send(self, call: Call) -> Reply:
        """A successful reply. Raises GoogleError for any other. A token that Google no longer accepts is replaced once: such a
        call was not carried out."""
        headers = {"accept-encoding": call.accept_encoding}
        if call.body is not None:
            headers["content-type"] = call.content_type
        if self._is_anonymous:
            return await self._send(call, headers)
        token = await self._tokens.get()
        try:
            return await self._send(call, {**headers, "authorization": f"Bearer {token.text}"})
        except GoogleError as problem:
            if not problem.is_expired:
                raise
            self._tokens.reject(token)
            other = await self._tokens.get()
            if other.text == token.text:
                raise
        return await self._send(call, {**headers, "authorization": f"Bearer {other.text}"})

    async def _send(self, call: Call, headers: Mapping[str, str]) -> Reply:
        place = self.url(call.service)
        data = None if call.body is None else io.BytesIO(call.body)
        try:
            url = yarl.URL(place + call.path, encoded=True).with_query(dict(call.query))
            async with (
                asyncio.timeout(call.seconds),
                self._open().request(
                    call.method,
                    url,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxies.find(str(url)),
                ) as reply,
            ):
                success = reply.status < 300
                size = reply.content_length or 0
                limit = call.limit if success else MAX_ANSWER_BYTES
                body = b"" if size > limit else await read_body(reply.content, limit)
                if len(body) < size <= limit and "content-encoding" not in reply.headers:
                    raise NoAnswerError(f"{call}: the answer ended early")
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ClientConnectorDNSError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.ClientHttpProxyError,
        ) as problem:
            raise NotSentError(f"{call}: cannot connect: {problem}") from problem
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as problem:
            raise NotSentError(f"{call}: check the endpoint {place!r}: {problem}") from problem
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise NoAnswerError(f"{call}: {str(problem) or f'no answer within {call.seconds:g} s'}") from problem
        if not success:
            raise parse_error(reply.status, body)
        return Reply(reply.status, reply.headers, body, max(size, len(body)))
