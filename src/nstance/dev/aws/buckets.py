"""Buckets as S3 has them: one of several writers wins, and versions can be deleted while versioning is suspended.

moto answers in threads, and two conditional writes at once may both succeed. So writes go to it one after the other.
It takes a bucket with suspended versioning for one that never had versions: a call that deletes a delete marker ends in an
internal error, and Terraform repeats it for an hour. So it is not told of the suspension.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from aiohttp import web

from nstance.dev.aws import xml
from nstance.dev.aws.moto import Reply

_SUSPENDED = b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"
_BUCKET = re.compile(r"/([^/]+)/?")


class Buckets:
    def __init__(self) -> None:
        self._suspended: set[str] = set()
        self._writing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self, request: web.Request) -> AsyncIterator[None]:
        """Reads go beside each other."""
        if request.method in ("GET", "HEAD"):
            yield
            return
        async with self._writing:
            yield

    def answer(self, request: web.Request, body: bytes) -> Reply | None:
        """None: moto answers."""
        found = _BUCKET.fullmatch(request.path)
        if found is None or "versioning" not in request.query:
            return None
        if request.method == "PUT":
            if any(status.text == "Suspended" for status in xml.find(xml.parse(body), "Status")):
                self._suspended.add(found[1])
                return b"", 200, {}
            self._suspended.discard(found[1])
        if request.method == "GET" and found[1] in self._suspended:
            return _SUSPENDED, 200, {"Content-Type": "application/xml"}
        return None
