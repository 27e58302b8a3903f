"""Row 36: the memory of an idle server with the provider proxmox, after it has listed a cluster of 500 VMs a few times."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from bench.fleet_server import resident, until
from bench.pair import Pair, put_config
from bench.rows import Row

VMS = 500  # of other people: they are in every list
LISTINGS = 5
MB = 1e6
GOAL_MB = 110.0


class Cluster:
    """The part of the API that an idle server asks."""

    def __init__(self) -> None:
        self.listings = 0
        self.url = ""

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/api2/json")
        if path == "/access/permissions":
            return web.json_response({"data": {"/": {"VM.Audit": 1}}})
        if path == "/cluster/resources" and request.query.get("type") == "vm":
            self.listings += 1
            return web.json_response({"data": [_vm(number) for number in range(VMS)]})
        return web.json_response({"data": []})


def _vm(number: int) -> dict[str, object]:
    return {
        "type": "qemu",
        "vmid": 100 + number,
        "name": f"vm-{number}",
        "node": f"pve{number % 3}",
        "status": "running",
        "maxmem": 2**31,
        "maxcpu": 2,
        "tags": "prod;web",
    }


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made._answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


class ProxmoxServer(Pair):
    def __init__(self, dir: Path, url: str) -> None:
        super().__init__(dir, ("--storage=file", f"--bucket={dir / 'bucket'}"))
        self._url = url

    def config(self) -> str:
        settings = json.loads(super().config())
        settings["shard"]["infra"] = {"provider": "proxmox", "options": {"api_url": self._url}}
        settings["shard"]["garbage_collection"] = {"interval": "1s"}
        return json.dumps(settings)


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        async with cluster() as asked:
            server = ProxmoxServer(Path(folder), asked.url)
            put_config(Path(folder, "bucket"), server)
            try:
                await server.start("a", {"PROXMOX_TOKEN_ID": "a@pve!b", "PROXMOX_TOKEN_SECRET": "x"})
                async with asyncio.timeout(120):
                    await until(lambda: asked.listings >= LISTINGS)
                rss = resident(server.pid("a"))
            finally:
                await server.close()
    yield Row(
        number="36",
        what="memory of an idle server with Proxmox",
        value=rss / MB,
        unit="MB",
        goal=GOAL_MB,
        detail=f"after {LISTINGS} lists of {VMS} VMs",
    )
