"""Row 6: a group grows from 0 to 1,000 while each call to the provider takes 50 ms."""

import asyncio
from collections.abc import AsyncIterator

from bench import fleet
from bench.rows import Row

SIZE = 1000
LATENCY_SECONDS = 0.05


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=1, size=0)) as server:
        await server.ask("latency", seconds=LATENCY_SECONDS)
        before = (await server.wait_idle())["cpu"]
        began = (await server.ask("sizes", sizes={"g0": SIZE}))["at"]
        async with asyncio.timeout(60):
            await server.count_created(SIZE)
        last = max(at for at, _, _ in server.creates)
        cpu = (await server.ask("usage"))["cpu"] - before
        yield Row(
            number="6",
            what="size 0 → 1,000, provider calls of 50 ms",
            value=SIZE / (last - began),
            unit="creates/s",
            goal=200.0,
            at_least=True,
            detail=f"{last - began:.1f} s from the new configuration to the last call, {cpu:.1f} s of processor time",
        )
