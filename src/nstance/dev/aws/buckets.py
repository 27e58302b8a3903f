"""Buckets whose versioning is suspended, where moto fails.

moto takes such a bucket for one that never had versions: a call that deletes a delete marker ends in an internal error, and
Terraform repeats it for an hour. S3 still deletes version by version. So moto is not told of the suspension.
"""

import re

from aiohttp import web

from nstance.dev.aws import xml
from nstance.dev.aws.moto import Reply

_SUSPENDED = b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"
_BUCKET = re.compile(r"/([^/]+)/?")


class Buckets:
    def __init__(self) -> None:
        self._suspended: set[str] = set()

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
