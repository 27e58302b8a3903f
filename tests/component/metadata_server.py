"""The metadata services of AWS and Google, for tests: what a VM sees at 169.254.169.254, with faults to script."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class MetadataServer:
    """`faults` are statuses that the next questions meet, whatever they ask."""

    faults: deque[int] = field(default_factory=deque)
    asked: list[str] = field(default_factory=list)  # method and path
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def _meet(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self.faults:
            return web.Response(status=self.faults.popleft(), headers={"Metadata-Flavor": "Google"})
        return await self.answer(request)

    def count(self, end: str) -> int:
        return sum(line.endswith(end) for line in self.asked)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._meet)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


@dataclass
class AwsMetadata(MetadataServer):
    life_cycle: str | None = "spot"
    action: Any = None
    rebalance: Any = None
    tokens: list[str] = field(default_factory=list)  # the last one is valid

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/latest/api/token":
            if (
                request.method != "PUT"
                or not 1 <= int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
            ):
                return web.Response(status=400)
            self.tokens.append(f"token-{len(self.tokens)}==")
            return web.Response(text=self.tokens[-1])
        if not self.tokens or request.headers.get("X-aws-ec2-metadata-token") != self.tokens[-1]:
            return web.Response(status=401)
        values = {
            "instance-life-cycle": self.life_cycle,
            "spot/instance-action": self.action,
            "events/recommendations/rebalance": self.rebalance,
        }
        value = values.get(request.path.removeprefix("/latest/meta-data/"))
        if value is None:
            return web.Response(status=404, text="<html>404 - Not Found</html>")
        return web.Response(text=value) if isinstance(value, str) else web.json_response(value)


@dataclass
class GoogleMetadata(MetadataServer):
    preemptible: str | None = "TRUE"
    model: str | None = None
    waiting: int = 0  # questions that wait for a change
    refuse_waiting: bool = False
    preempt_after_answer: bool = False  # before anybody can ask again
    _preempted: bool = False
    _version: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def preempt(self) -> None:
        self._preempted = True
        self._version += 1
        self._changed.set()

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        flavor = {"Metadata-Flavor": "Google"}
        path = request.path.removeprefix("/computeMetadata/v1/instance/")
        value = {"scheduling/preemptible": self.preemptible, "scheduling/provisioning-model": self.model}.get(path)
        if path == "preempted" and self.refuse_waiting and "wait_for_change" in request.query:
            return web.Response(status=503, headers=flavor)
        if path == "preempted":
            await self._until_news(request)
            value = "TRUE" if self._preempted else "FALSE"
            flavor["ETag"] = f"{self._version:016x}"
            if self.preempt_after_answer and not self._preempted:
                self.preempt()
        if value is None:
            return web.Response(status=404, headers=flavor)
        return web.Response(text=value, headers=flavor)

    async def _until_news(self, request: web.Request) -> None:
        if request.query.get("wait_for_change") != "true":
            return
        if request.query.get("last_etag", f"{self._version:016x}") != f"{self._version:016x}":
            return
        self.waiting += 1
        self._changed.clear()
        try:
            async with asyncio.timeout(int(request.query["timeout_sec"])):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
