"""A proxy in front of moto that answers some calls with errors that moto does not have."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web


@dataclass(frozen=True, slots=True)
class Fault:
    code: str
    message: str = ""
    status: int = 400
    after: bool = False  # the call is carried out, and then its answer is replaced by this one


@dataclass(slots=True)
class AwsFaults:
    """`always` and `once`: the fault of an action, for all its calls or for its next ones (None: none)."""

    moto: str
    url: str = ""
    always: dict[str, Fault] = field(default_factory=dict)
    once: dict[str, list[Fault | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def _next(self, action: str) -> Fault | None:
        if self.once.get(action):
            return self.once[action].pop(0)
        return self.always.get(action)

    async def handle(self, request: web.Request) -> web.Response:
        action = request.headers.get("x-amz-target", "").rpartition(".")[2]
        self.calls.append(action)
        fault = self._next(action)
        if fault is None or fault.after:
            body, status, kind = await self._forward(request)
        if fault is not None:
            answer = {"__type": fault.code, "message": fault.message or fault.code}
            return web.json_response(answer, status=fault.status)
        return web.Response(body=body, status=status, headers={"content-type": kind})

    async def _forward(self, request: web.Request) -> tuple[bytes, int, str]:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.moto + request.path_qs, data=await request.read(), headers=headers
            ) as r,
        ):
            return await r.read(), r.status, r.headers.get("content-type", "application/json")


@asynccontextmanager
async def serve_faults(moto: str) -> AsyncIterator[AwsFaults]:
    faults = AwsFaults(moto)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", faults.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    faults.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield faults
    finally:
        await runner.cleanup()
