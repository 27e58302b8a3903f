"""Calls to AWS's services: signed, bounded in time, over one pool of connections.

Plain requests instead of the SDK, because the SDK's description of EC2 alone costs more memory than this server. Nothing is
repeated here: whether a call may be repeated is known to its caller only. An exception says what is certain: AwsError (AWS
refused), NotSentError (nothing was done), NoAnswerError (nobody knows).
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import aiohttp

from nstance.aws import encoding
from nstance.aws.credentials import REFRESH_BEFORE_SECONDS, Chain
from nstance.aws.encoding import Answer, Params
from nstance.aws.endpoints import endpoint
from nstance.aws.errors import AwsError
from nstance.aws.metadata import Metadata
from nstance.aws.signing import Request, sign
from nstance.clock import Clock
from nstance.clouds.credentials import FreshCredentials
from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.http_client import Proxies

CONNECTIONS = 64
CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
MAX_ANSWER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Service:
    """One of AWS's services: its name in signatures and host names, and how it speaks."""

    name: str
    version: str  # of the API, in form parameters; for JSON the prefix of a target
    list_infix: str = ""
    content_type: str = "application/x-www-form-urlencoded; charset=utf-8"


EC2 = Service("ec2", "2016-11-15")
ELB = Service("elasticloadbalancing", "2015-12-01", ".member")
STS = Service("sts", "2011-06-15", ".member")
SSM = Service("ssm", "AmazonSSM", content_type="application/x-amz-json-1.1")
SECRETS = Service("secretsmanager", "secretsmanager", content_type="application/x-amz-json-1.1")
KMS = Service("kms", "TrentService", content_type="application/x-amz-json-1.1")


class AwsClient:
    def __init__(
        self,
        *,
        region: str,
        clock: Clock,
        endpoint_url: str = "",
        server: str = "",
        environment: Mapping[str, str] | None = None,
        role_arn: str = "",
    ) -> None:
        """`role_arn`: a role to assume with the credentials that are found."""
        self.region = region
        self._clock = clock
        self._endpoint_url = endpoint_url
        self._environment = os.environ if environment is None else environment
        chain = Chain(
            session=self._open,
            environment=self._environment,
            region=region,
            server=server,
            endpoint_url=endpoint_url,
        )
        fetch = chain.fetch if not role_arn else lambda: chain.assume(role_arn, now=clock.wall())
        self.on_credentials_failure: Callable[[str], None] = lambda problem: None
        self._credentials = FreshCredentials(
            "AWS credentials",
            fetch,
            clock,
            refresh_before=REFRESH_BEFORE_SECONDS,
            on_failure=lambda problem: self.on_credentials_failure(problem),
        )
        self.metadata = Metadata(self._open, self._environment)
        self._session: aiohttp.ClientSession | None = None
        self._proxies = Proxies(self._environment)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, ttl_dns_cache=60)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)
        return self._session

    async def close(self) -> None:
        self._credentials.close()
        if self._session is not None:
            await self._session.close()

    async def query(self, service: Service, action: str, params: Params) -> Answer:
        """A call of a service that answers in XML. The answer without its wrapping."""
        body = encoding.form(action, service.version, params, list_infix=service.list_infix)
        answer = await self._call(service, action, {}, body, f"{action}Response")
        result = answer.get(f"{action}Result")
        return result if isinstance(result, dict) else answer

    async def json(self, service: Service, action: str, params: Params) -> Answer:
        headers = {"x-amz-target": f"{service.version}.{action}"}
        return await self._call(service, action, headers, json.dumps(params).encode())

    async def _call(
        self, service: Service, action: str, headers: Mapping[str, str], body: bytes, root: str = ""
    ) -> Answer:
        """`root`: of an answer in XML."""
        credentials = await self._credentials.get()
        url = endpoint(service.name, self.region, configured=self._endpoint_url, environment=self._environment)
        request = Request(
            url=f"{url}/",
            headers={"content-type": service.content_type, **headers},
            body=body,
            service=service.name,
            region=self.region,
        )
        try:
            status, text = await self._post(request, sign(request, credentials, now=self._clock.wall()), action)
            return _answer(status, text, root) if status < 300 else _refused(status, text)
        except AwsError as problem:
            if problem.is_expired:
                self._credentials.reject(credentials)
            raise

    async def _post(self, request: Request, headers: Mapping[str, str], action: str) -> tuple[int, bytes]:
        what = f"{request.service} {action}"
        try:
            async with asyncio.timeout(CALL_SECONDS):
                async with self._open().post(
                    request.url,
                    data=request.body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxies.find(request.url),
                ) as reply:
                    text = await reply.content.read(MAX_ANSWER_BYTES + 1)
                    while not reply.content.at_eof() and len(text) <= MAX_ANSWER_BYTES:
                        text += await reply.content.read(MAX_ANSWER_BYTES + 1 - len(text))
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ClientConnectorDNSError,
            aiohttp.ConnectionTimeoutError,
        ) as problem:
            raise NotSentError(f"{what}: cannot connect: {problem}") from problem
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            reason = str(problem) or f"no answer within {CALL_SECONDS:.0f} s"
            raise NoAnswerError(f"{what}: {reason}") from problem
        if len(text) > MAX_ANSWER_BYTES:
            raise NoAnswerError(f"{what}: the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        return reply.status, text


def _answer(status: int, text: bytes, root: str) -> Answer:
    """Whatever answers in place of AWS, such as a proxy, must not be read as an empty list."""
    try:
        answer: Any = encoding.parse_xml(text, name=root) if root else json.loads(text)
    except ValueError as problem:
        raise NoAnswerError(f"this is no answer of AWS (HTTP {status}): {problem}") from problem
    if not isinstance(answer, dict):
        raise NoAnswerError(f"this is no answer of AWS (HTTP {status}): expected an object")
    return answer


def _refused(status: int, text: bytes) -> NoReturn:
    code, message, request_id = encoding.parse_error(text)
    if not code and status < 500 and status != 429:
        raise NoAnswerError(f"HTTP {status} without an error of AWS: does a proxy answer in its place?")
    raise AwsError(code or f"HTTP {status}", message or "no message", status=status, request_id=request_id)
