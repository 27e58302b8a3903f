"""One page of text from the web, for a server that stands inside a private network (B30).

Whoever writes a URL into a configuration must not make a server read what only that server can reach: cloud metadata,
its own ports, its neighbours. So every address is checked, after the name was resolved and before it is connected to,
which also stops a name that resolves differently the second time. The trap: an address in a URL is never resolved, and
has many spellings.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass

import aiohttp
from aiohttp import abc, hdrs
from yarl import URL

MAX_BODY = 1 << 20
MAX_REDIRECTS = 3
MAX_ETAG = 512
TIMEOUT = 10.0
_CHUNK = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class FetchError(Exception):
    """The message says why; it does not repeat the query of a URL, which may be a secret."""


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    etag: str


async def fetch(url: str, *, etag: str = "", private: Collection[str] = (), timeout: float = TIMEOUT) -> Page | None:
    """None: it is still what the ETag says. `private`: hosts whose addresses may be private. Raises CannotFetch."""
    try:
        async with asyncio.timeout(timeout):
            return await _follow(_parsed(url), etag, frozenset(host.lower() for host in private))
    except TimeoutError:
        raise FetchError(f"no answer within {timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise FetchError(_plain(problem)) from problem


def shown(url: str) -> str:
    """For people and logs: without what may be a secret."""
    try:
        return str(URL(url).with_query(None).with_user(None).with_fragment(None))
    except ValueError:
        return "an unreadable URL"


async def _follow(url: URL, etag: str, private: frozenset[str]) -> Page | None:
    first = url.host
    for _ in range(MAX_REDIRECTS + 1):
        # Only the host that was written down may be private: nobody else gets to choose one for us.
        trusted = url.host == first and str(url.host).lower() in private
        target = await _get(url, etag, trusted=trusted)
        if not isinstance(target, URL):
            return target
        if url.scheme == "https" and target.scheme != "https":
            raise FetchError("it redirects from https to http")
        url = target
    raise FetchError(f"more than {MAX_REDIRECTS} redirects")


async def _get(url: URL, etag: str, *, trusted: bool) -> Page | URL | None:
    _check_literal(str(url.host), trusted=trusted)
    connector = aiohttp.TCPConnector(resolver=_Resolver(trusted=trusted), use_dns_cache=False, force_close=True)
    headers = {hdrs.ACCEPT_ENCODING: "identity"} | ({hdrs.IF_NONE_MATCH: etag} if etag else {})
    async with (
        aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
        ) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        if response.status == 304 and etag:
            return None
        if response.status in _REDIRECTS:
            return _parsed(str(url.join(URL(response.headers.get(hdrs.LOCATION, "")))))
        if response.status != 200:
            raise FetchError(f"the answer was {response.status}")
        if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
            raise FetchError("the answer is compressed, which was not asked for")
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > MAX_BODY:
                raise FetchError(f"it has more than {MAX_BODY} bytes")
        tag = response.headers.get(hdrs.ETAG, "")
        return Page(bytes(body), tag if len(tag) <= MAX_ETAG and tag.isprintable() else "")


def _parsed(text: str) -> URL:
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError("only http and https addresses are fetched")
    if url.user is not None or url.password is not None:
        raise FetchError("an address with a user or a password is not fetched")
    return url


def _check_literal(host: str, *, trusted: bool) -> None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return  # a name: the resolver checks what it leads to
    _check(address, trusted=trusted)


def _check(address: Address, *, trusted: bool) -> None:
    inner = _inner(address)
    # Link-local is where clouds keep their metadata: no configuration opens that.
    never = inner.is_link_local or inner.is_multicast or inner.is_unspecified
    if never or not (trusted or inner.is_global):
        raise FetchError(
            f"the address {address} is not public; name the host in shard.userdata_hosts if it is meant"
            if not never
            else f"the address {address} is never fetched from"
        )


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is None and address.teredo is not None:
            embedded = address.teredo[1]
        return embedded or address
    return address


class _Resolver(abc.AbstractResolver):
    """Resolves once; what it returns is what is connected to."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
        results: list[abc.ResolveResult] = []
        for kind, _, protocol, _, place in found:
            address = str(place[0])
            _check(ipaddress.ip_address(address.partition("%")[0]), trusted=self._trusted)
            results.append(
                abc.ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=kind,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        return results

    async def close(self) -> None:
        return


def _plain(problem: Exception) -> str:
    """An error without the URL that it may repeat."""
    match problem:
        case aiohttp.InvalidURL() | ValueError():
            return "it is not a proper address"
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "its certificate is not trusted"
        case aiohttp.ClientConnectorError():
            return f"it cannot be connected to: {problem.os_error.strerror or 'refused'}"
        case _:
            return f"it cannot be read ({type(problem).__name__})"
