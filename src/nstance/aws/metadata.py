"""The metadata service of the EC2 instance that this server runs on (IMDSv2)."""

import asyncio
import ipaddress
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from nstance.clouds.errors import NotSentError
from nstance.http_client import proxy_for, read_body

ENDPOINT = "http://169.254.169.254"
REQUEST_SECONDS = 5.0
MAX_BYTES = 64 * 1024
_IP6_SERVICES = ipaddress.ip_network("fd00:ec2::/32")
_TOKEN_LIFE = {"x-aws-ec2-metadata-token-ttl-seconds": "300"}


class MetadataError(NotSentError):
    """The service did not answer, or has no such value (`status` 404)."""

    def __init__(self, message: str, status: int = 0, answer: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Metadata:
    session: Callable[[], aiohttp.ClientSession]
    environment: Mapping[str, str]

    async def get(self, path: str) -> str:
        """A value below `/latest/meta-data/`. Raises MetadataError."""
        base = (self.environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT).rstrip("/")
        token = await request(self, "PUT", f"{base}/latest/api/token", _TOKEN_LIFE)
        return await request(self, "GET", f"{base}/latest/meta-data/{path}", {"x-aws-ec2-metadata-token": token})

    async def instance_id(self) -> str:
        return await self.get("instance-id")

    async def interface_id(self) -> str:
        """Of the primary network interface."""
        mac = await self.get("mac")
        return await self.get(f"network/interfaces/macs/{mac}/interface-id")


class Caller(Protocol):
    @property
    def session(self) -> Callable[[], aiohttp.ClientSession]: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """With the variables of HTTP proxies."""


async def request(caller: Caller, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
    """One small answer from a service near this machine. Raises MetadataError."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            proxy = None if _is_of_this_machine(url) else proxy_for(url, caller.environment)
            async with caller.session().request(
                method, url, headers=headers, data=body, allow_redirects=False, proxy=proxy
            ) as reply:
                text = await read_body(reply.content, MAX_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise MetadataError(f"no answer from {url}: {str(problem) or 'timed out'}") from problem
    if reply.status != 200:
        raise MetadataError(f"{url} answered {reply.status}", reply.status, text)
    return text.decode("utf-8", "replace").strip()


def _is_of_this_machine(url: str) -> bool:
    """A proxy would answer with the identity of its own machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_link_local or address.is_loopback or address in _IP6_SERVICES
