"""A port for plain HTTP requests: a client that leaves before the answer is not an error."""

import asyncio
import logging

import pytest
from aiohttp import web

from nstance.wire import http_listener

SECONDS = 60.0


async def ask(handler: http_listener.Handler, request: bytes = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    """Everything that comes back."""
    port = http_listener.HttpListener(handler)
    await port.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
            writer.write(request)
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.transport.abort()
    finally:
        await port.close()


async def test_answers_do_not_tell_versions() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="yes")

    for request, status in ((b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", b" 200 "), (b"nonsense\r\n\r\n", b" 400 ")):
        head = (await ask(answer, request)).partition(b"\r\n\r\n")[0]
        assert status in head
        assert b"\r\nServer: nstance\r\n" in head + b"\r\n"


async def test_a_peer_that_left_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Found by chaos: a busy server logged a traceback for each peer that had given up on it."""
    prepared = asyncio.Event()

    async def too_late(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        try:
            await web.StreamResponse().prepare(request)
        finally:
            prepared.set()
        raise AssertionError("expected a connection that is gone")

    with caplog.at_level(logging.DEBUG, logger="nstance"):
        assert await ask(too_late) == b""
    assert prepared.is_set()
    assert [record.message for record in caplog.records] == ["peer disconnected before the answer"]


async def test_a_failure_of_ours_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: web.BaseRequest) -> web.StreamResponse:
        raise ConnectionResetError("of somebody else's connection")

    assert b"500" in await ask(fail)
    assert [record.message for record in caplog.records] == ["failed to answer a request"]
