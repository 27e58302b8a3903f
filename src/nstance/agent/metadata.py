"""Requests to the cloud's metadata service: minimal HTTP/1.1, because a client library costs megabytes.

One connection per request, bounded in size and time, no redirects and no proxy. The trap: an answer that broke off, or
that another service gave, must not be read as "there is no notice"; an incomplete answer is an error.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from nstance.agent.settings import Address

REQUEST_SECONDS = 2.0
MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024


class MetadataUnavailableError(Exception):
    """There is no usable answer; the message says why and contains nothing secret."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def text(self) -> str:
        return self.body.decode("utf-8", "replace").strip()


async def ask(
    method: str,
    address: Address,
    path: str,
    *,
    headers: Mapping[str, str],
    timeout: float = REQUEST_SECONDS,
) -> Answer:
    """Raises MetadataUnavailableError."""
    what = f"{method} {path.partition('?')[0]}"
    try:
        async with asyncio.timeout(timeout):
            return await _exchange(method, address, path, headers)
    except TimeoutError as error:
        raise MetadataUnavailableError(f"{what}: no answer from {address} in time") from error
    except (EOFError, asyncio.LimitOverrunError, ValueError) as error:
        raise MetadataUnavailableError(f"{what}: {address} gave no whole HTTP answer") from error
    except OSError as error:
        raise MetadataUnavailableError(
            f"{what}: cannot reach {address}: {error.strerror or 'no connection'}"
        ) from error


async def _exchange(method: str, address: Address, path: str, headers: Mapping[str, str]) -> Answer:
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=MAX_HEAD)
    try:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", "Connection: close", "Accept: */*"]
        if method == "PUT":
            lines.append("Content-Length: 0")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        await writer.drain()
        status, found = _head(await reader.readuntil(b"\r\n\r\n"))
        return Answer(status, found, await _body(reader, found))
    finally:
        writer.close()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    """Raises ValueError."""
    first, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    version, _, after = first.partition(" ")
    status = after[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (status.isascii() and status.isdigit() and len(status) == 3):
        raise ValueError("expected an HTTP status line")
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("expected a header")
        headers[name.lower()] = value.strip()
    return int(status), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Raises ValueError, EOFError."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(_size(headers["content-length"], 10))
    body = b""
    while more := await reader.read(MAX_BODY):
        body += more
        if len(body) > MAX_BODY:
            raise ValueError("expected a smaller body")
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = _size((await reader.readuntil(b"\r\n")).decode("latin-1").partition(";")[0].strip(), 16)
        if size == 0:
            return body  # what may follow says nothing about the body
        chunk = await reader.readexactly(size + 2)
        if chunk[size:] != b"\r\n" or len(body) + size > MAX_BODY:
            raise ValueError("expected a chunk of the size it promised")
        body += chunk[:size]


def _size(text: str, base: int) -> int:
    if not (text.isascii() and text.isalnum() and len(text) <= 8):
        raise ValueError("expected a size")
    size = int(text, base)
    if size > MAX_BODY:
        raise ValueError("expected a smaller body")
    return size
