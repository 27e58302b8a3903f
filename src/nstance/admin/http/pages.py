"""The dashboard's files: static modules, styles and vendored libraries. They reveal nothing about the shards.

They are read once, when the program starts, so that a request names a file only by a key of a mapping.
"""

import gzip
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from aiohttp import web

from nstance.admin.http import access

FOLDER = "dashboard"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Pages:
    def __init__(self) -> None:
        self._files = {path: _File(entry) for path, entry in _walk(resources.files("nstance.admin") / FOLDER, "")}

    async def index(self, request: web.Request) -> web.Response:
        return self._files[INDEX].response(request)

    async def file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        if found is None:
            raise web.HTTPNotFound
        return found.response(request)


class _File:
    def __init__(self, entry: Traversable) -> None:
        content = entry.read_bytes()
        self._type = TYPES["." + entry.name.rpartition(".")[2]]
        self._content = content
        self._compressed = gzip.compress(content, 9, mtime=0)
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    def response(self, request: web.Request) -> web.Response:
        headers = {
            **access.PAGE_HEADERS,
            "Content-Type": self._type,
            "ETag": self._etag,
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("If-None-Match") == self._etag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=self._compressed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=self._content, headers=headers)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif "." + entry.name.rpartition(".")[2] in TYPES:
            found.append((prefix + entry.name, entry))
    return found
