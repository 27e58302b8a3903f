"""Row 37: the memory of an idle server with the provider gcp."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from bench import fleet
from bench.rows import Row

MB = 1e6


@contextlib.asynccontextmanager
async def empty_project() -> AsyncIterator[str]:
    """A Google Cloud without VMs; gives its URL."""
    listings: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/token"):
            return web.json_response({"access_token": "bench", "expires_in": 3599, "token_type": "Bearer"})
        listings.append(request.path)
        return web.json_response({"kind": "compute#instanceList", "items": []})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
    assert listings, "the server has not asked for its VMs"


async def run() -> AsyncIterator[Row]:
    async with empty_project() as url, fleet.serving(fleet.Setup(groups=1, size=0, google=url)) as server:
        rss = (await server.wait_idle())["rss"]
        yield Row(number="37", what="memory of an idle server with gcp", value=rss / MB, unit="MB", goal=110.0)
