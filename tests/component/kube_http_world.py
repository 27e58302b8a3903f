"""Kubernetes API servers that misbehave on purpose, and a client for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from nstance.clock import SystemClock
from nstance.kube import kinds
from nstance.kube.http import HttpKube, HttpLimits
from nstance.kube.kubeconfig import Access

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
POD = kinds.POD


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def raw(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that speaks bytes."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def client(server: str, *, token: str | Path | None = None, **options: Any) -> AsyncIterator[HttpKube]:
    on_request = options.pop("on_request", lambda method, code: None)
    access, limits = Access(server=server, token=token), HttpLimits(**options)
    kube = HttpKube(access, SystemClock(), limits=limits, on_request=on_request)
    try:
        yield kube
    finally:
        await kube.close()


def status(code: int, reason: str, message: str = "as told", **details: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response({**body, "message": message, "details": details}, status=code)


def always(response: Callable[[], web.Response]) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return response()

    return answer


def pod(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "here", "resourceVersion": str(version)}, **more}
