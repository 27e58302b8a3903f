"""What the clients of clouds share: the proxy for a request, and bodies of bounded size.

The proxy comes from the usual variables: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`, in either case. aiohttp can read them itself,
but does so in a thread for every single request. On a busy machine that costs milliseconds.
"""

import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Protocol


class Proxies:
    """Remembers the answer for each host: a client calls a few."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._known: dict[tuple[str, str], str | None] = {}

    def find(self, url: str) -> str | None:
        parts = urllib.parse.urlsplit(url)
        place = parts.scheme, parts.netloc
        if place not in self._known:
            self._known[place] = proxy_for(url, self._environment)
        return self._known[place]


class Content(Protocol):
    """`aiohttp.StreamReader`."""

    async def read(self, n: int, /) -> bytes: ...


async def read_body(content: Content, limit: int) -> bytes:
    """At most one byte more than the limit. One `read` gives what has arrived so far, which may be a part."""
    body = bytearray()
    while len(body) <= limit and (part := await content.read(limit + 1 - len(body))):
        body += part
    return bytes(body)


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    given = {
        name.lower().removesuffix("_proxy"): value for name, value in environment.items() if _is_proxy(name, value)
    }
    parts = urllib.parse.urlsplit(url)
    proxy = given.get(parts.scheme)
    if proxy is None or urllib.request.proxy_bypass_environment(parts.netloc, given):  # type: ignore[attr-defined]
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_proxy(name: str, value: str) -> bool:
    return bool(value) and name.lower().endswith("_proxy")
