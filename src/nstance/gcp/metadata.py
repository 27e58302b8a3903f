"""The metadata server of the VM that this server runs on. It is never asked through a proxy."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from nstance.clouds.errors import NotSentError
from nstance.http_client import read_body

HOST = "169.254.169.254"
REQUEST_SECONDS = 5.0
MAX_BYTES = 64 * 1024


class MetadataError(NotSentError):
    """The server did not answer, or has no such value."""


@dataclass(frozen=True, slots=True)
class Metadata:
    session: Callable[[], aiohttp.ClientSession]
    environment: Mapping[str, str]

    async def get(self, path: str) -> str:
        """A value below `/computeMetadata/v1/`. Raises MetadataError."""
        host = self.environment.get("GCE_METADATA_HOST") or HOST
        url = f"http://{host}/computeMetadata/v1/{path}"
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self.session().get(url, headers={"Metadata-Flavor": "Google"}, allow_redirects=False) as reply,
            ):
                text = await read_body(reply.content, MAX_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise MetadataError(f"no answer from {url}: {str(problem) or 'timed out'}") from problem
        if reply.status != 200:
            raise MetadataError(f"{url} answered {reply.status}")
        return text.decode("utf-8", "replace").strip()

    async def project(self) -> str:
        return await self.get("project/project-id")

    async def instance_name(self) -> str:
        return await self.get("instance/name")

    async def zone(self) -> str:
        """Of this VM, without the project before it."""
        return (await self.get("instance/zone")).rpartition("/")[2]
