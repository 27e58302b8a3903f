"""Fetches a text over HTTP without letting a URL reach into the server's private network.

The author of a URL in a configuration must not make a server read what only that server can reach: cloud metadata, its
own ports, its neighbors. So every address is checked after name resolution and before the connection, which also stops a
name that resolves differently the second time. The trap: a literal address in a URL is never resolved, and has many
spellings.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass

import aiohttp
from aiohttp import abc, hdrs
from yarl import URL

MAX_BODY_BYTES = 1 << 20
MAX_REDIRECTS = 3
MAX_ETAG_CHARACTERS = 512
TIMEOUT_SECONDS = 10.0
_CHUNK_BYTES = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class FetchError(Exception):
    """The message says why, without the query of the URL, which may be a secret."""


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    etag: str


async def fetch(
    url: str, *, etag: str = "", private_hosts: Collection[str] = (), timeout: float = TIMEOUT_SECONDS
) -> Page | None:
    """None if the content still has this ETag. `private_hosts`: hosts that may have private addresses. Raises
    FetchError."""
    try:
        async with asyncio.timeout(timeout):
            return await _follow(_parsed(url), etag, frozenset(host.lower() for host in private_hosts))
    except TimeoutError:
        raise FetchError(f"no answer within {timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise FetchError(_describe(problem)) from problem


def without_secrets(url: str) -> str:
    """The URL without query and user, for people and logs."""
    try:
        return str(URL(url).with_query(None).with_user(None).with_fragment(None))
    except ValueError:
        return "an unreadable URL"


async def _follow(url: URL, etag: str, private_hosts: frozenset[str]) -> Page | None:
    first = url.host
    for _ in range(MAX_REDIRECTS + 1):
        # Only the configured host may be private: a redirect must not choose one.
        trusted = url.host == first and str(url.host).lower() in private_hosts
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
            raise FetchError("the answer is compressed, which was not requested")
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchError(f"it has more than {MAX_BODY_BYTES} bytes")
        tag = response.headers.get(hdrs.ETAG, "")
        return Page(bytes(body), tag if len(tag) <= MAX_ETAG_CHARACTERS and tag.isprintable() else "")


def _parsed(text: str) -> URL:
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError("only http and https URLs are fetched")
    if url.user is not None or url.password is not None:
        raise FetchError("a URL with a user or a password is not fetched")
    return url


def _check_literal(host: str, *, trusted: bool) -> None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return  # a name: the resolver checks its addresses
    _check(address, trusted=trusted)


def _check(address: Address, *, trusted: bool) -> None:
    target = _embedded_ipv4(address)
    # Link-local addresses serve cloud metadata: no configuration allows them.
    if target.is_link_local or target.is_multicast or target.is_unspecified:
        raise FetchError(f"the address {address} is never fetched from")
    if not (trusted or target.is_global):
        raise FetchError(f"the address {address} is not public; to allow the host, add it to shard.userdata_hosts")


def _embedded_ipv4(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address, if there is one."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is None and address.teredo is not None:
            embedded = address.teredo[1]
        return embedded or address
    return address


class _Resolver(abc.AbstractResolver):
    """Resolves once and checks every address; the connection uses exactly these."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
        results: list[abc.ResolveResult] = []
        for kind, _, protocol, _, sockaddr in found:
            address = str(sockaddr[0])
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


def _describe(problem: Exception) -> str:
    """The error without the URL, which its text may repeat."""
    match problem:
        case aiohttp.InvalidURL() | ValueError():
            return "it is not a valid URL"
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "its certificate is not trusted"
        case aiohttp.ClientConnectorError():
            return f"failed to connect: {problem.os_error.strerror or 'refused'}"
        case _:
            return f"failed to read ({type(problem).__name__})"
