"""Rows 31 to 35: the AWS provider: from a notice to RunInstances, 1,000 launches, memory, leader address, fallback."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from bench import fleet
from bench.rows import Row, percentile, spread
from nstance.v1 import agent_pb2

GROUPS, SIZE = 50, 10
NOTICES = 60
LAUNCHES = 1000
FORGOTTEN_SECONDS = 0.05
CALL_SECONDS, BURST, REFILL = 0.1, 1000, 2.0
MB = 1e6


class Ec2:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def ask(self, path: str, **body: Any) -> Any:
        async with self._session.post(f"{self.url}/{path}", data=json.dumps(body)) as reply:
            return await reply.json()

    async def launched(self, group: str, since: float) -> float:
        """When the next instance of a group was asked for."""
        async with asyncio.timeout(30):
            while True:
                for at, _, name in reversed(await self.ask("launches")):
                    if name == group and at >= since:
                        return float(at)
                await asyncio.sleep(0.02)

    async def fell_back(self, before: int) -> float:
        """From the next refusal, after so many, until the same instance was asked for again."""
        async with asyncio.timeout(30):
            while True:
                for at, id in (await self.ask("refused"))[before:]:
                    for sent, name, _ in await self.ask("launches"):
                        if name == id and sent > at:
                            return float(sent - at)
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def ec2() -> AsyncIterator[Ec2]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.ec2_endpoint", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as session:
            yield Ec2(url, session)
    finally:
        process.stdin.close()
        await process.wait()


async def run() -> AsyncIterator[Row]:
    async with ec2() as cloud, fleet.serving(fleet.Setup(groups=1, size=0, ec2=cloud.url)) as server:
        yield _memory("no agents", (await server.wait_idle())["rss"], 120.0)
        yield await _launches(server, cloud)
    async with ec2() as cloud, fleet.serving(fleet.Setup(groups=GROUPS, size=SIZE, ec2=cloud.url)) as server:
        await server.connect_all()
        yield _memory(f"{GROUPS * SIZE} agents", (await server.wait_idle())["rss"], 180.0)
        yield await _notices(server, cloud)
    async with ec2() as cloud, _two_types(cloud) as server:
        await server.connect_all()
        await server.wait_idle()
        yield await _fallback(server, cloud)
    async with ec2() as cloud, fleet.serving(fleet.Setup(groups=1, size=1, files=True, ec2=cloud.url)) as server:
        yield await _address(server, cloud)


def _two_types(cloud: Ec2) -> contextlib.AbstractAsyncContextManager[fleet.Server]:
    """A refusal is forgotten after at most ten times 1 ms, or only the first instance would be refused."""
    types = ("m7g.large", "m6g.large")
    return fleet.serving(
        fleet.Setup(groups=GROUPS, size=SIZE, instance_types=types, capacity_retry="1ms", ec2=cloud.url)
    )


async def _fallback(server: fleet.Server, cloud: Ec2) -> Row:
    await cloud.ask("exhaust", type="m7g.large")
    took = []
    for agent in server.agents[:: len(server.agents) // NOTICES][:NOTICES]:
        await asyncio.sleep(FORGOTTEN_SECONDS)
        before = len(await cloud.ask("refused"))
        await agent.notice(agent_pb2.Notice.SPOT_TERMINATION)
        took.append(1000 * await cloud.fell_back(before))
    return Row(
        number="35",
        what=f"refusal of EC2 → RunInstances in the next offer arrives, p50, {len(server.agents)} agents",
        value=percentile(took, 0.5),
        unit="ms",
        goal=10.0,
        detail=spread(took, "ms"),
    )


def _memory(what: str, rss: int, goal: float) -> Row:
    return Row(number="33", what=f"memory of a server with AWS, {what}", value=rss / MB, unit="MB", goal=goal)


async def _notices(server: fleet.Server, cloud: Ec2) -> Row:
    took = []
    for agent in server.agents[:: len(server.agents) // NOTICES][:NOTICES]:
        began = time.monotonic()
        sent = await agent.notice(agent_pb2.Notice.SPOT_TERMINATION)
        took.append(1000 * (await cloud.launched(agent.group, began) - sent))
    return Row(
        number="31",
        what=f"spot notice → RunInstances arrives, p50, {len(server.agents)} agents",
        value=percentile(took, 0.5),
        unit="ms",
        goal=8.0,
        detail=spread(took, "ms"),
    )


async def _launches(server: fleet.Server, cloud: Ec2) -> Row:
    await cloud.ask("limits", seconds=CALL_SECONDS, burst=BURST, refill=REFILL)
    began = (await server.ask("sizes", sizes={"g0": LAUNCHES}))["at"]
    launches: list[Any] = []
    async with asyncio.timeout(120):
        while len(launches) < LAUNCHES:
            await asyncio.sleep(0.1)
            launches = await cloud.ask("launches")
    seconds = launches[-1][0] + CALL_SECONDS - began
    return Row(
        number="32",
        what=f"{LAUNCHES:,} instances on AWS, calls of 100 ms, a launch budget of {BURST:,}",
        value=seconds,
        unit="s",
        goal=12.0,
        detail=f"{len(launches)} calls of RunInstances",
    )


async def _address(server: fleet.Server, cloud: Ec2) -> Row:
    """The leader is killed; its standby moves the address."""
    async with server.standby() as standby:
        before = len(await cloud.ask("assigned"))
        server._process.kill()
        leads = (await standby.ask("lead"))["at"]
        moved: list[float] = []

        async def is_moved() -> None:
            nonlocal moved
            while len(moved) <= before:
                await asyncio.sleep(0.05)
                moved = await cloud.ask("assigned")

        await asyncio.wait_for(is_moved(), 60)
    return Row(
        number="34",
        what="takeover → leader address moved, one call",
        value=max(0.0, moved[before] - leads),
        unit="s",
        goal=2.0,
        detail="from the end of the new leader's first listing"
        if moved[before] > leads
        else "before its first listing",
    )
