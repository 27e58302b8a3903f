"""Row 21: the cost of readiness: a report with check results, and the time from a passing check to ready."""

import asyncio
import time
from collections.abc import AsyncIterator

from bench import fleet
from bench.rows import Row, percentile, spread

AGENTS, GROUPS = 500, 10
CHECKS = 8
REPORTS = 40  # of each agent; every report waits for its answer
RECOVERIES = 200  # instances that become ready again


async def run() -> AsyncIterator[Row]:
    costs = {}
    for checks in (0, CHECKS):
        async with fleet.serving(fleet.Setup(groups=GROUPS, size=AGENTS // GROUPS, checks=checks)) as server:
            await server.connect_all()
            await server.wait_idle()
            await _report_all(server, 2)  # so that files and check results are known
            costs[checks] = await _measure_cost(server)
            if checks:
                took = await _measure_recoveries(server)
    plain, checked = costs[0], costs[CHECKS]
    yield Row(
        number="21",
        what=f"a report with {CHECKS} check results compared with one without",
        value=checked / plain,
        unit="×",
        goal=1.5,
        detail=f"{1e6 * plain:.0f} µs without, {1e6 * checked:.0f} µs with, of the server's processor time",
    )
    yield Row(
        number="21",
        what="a check passes → its instance is ready, p99",
        value=percentile(took, 0.99),
        unit="ms",
        goal=10.0,
        detail=f"from the report; {spread(took, 'ms')}",
    )


async def _report_all(server: fleet.Server, count: int) -> None:
    async def report(agent: fleet.LightAgent) -> None:
        for _ in range(count):
            await agent.report()

    async with asyncio.timeout(120):
        await asyncio.gather(*(report(agent) for agent in server.agents))


async def _measure_cost(server: fleet.Server) -> float:
    """Seconds of the server's processor time for one report and its answer."""
    before = (await server.wait_idle())["cpu"]
    await _report_all(server, REPORTS)
    used: float = (await server.ask("usage"))["cpu"] - before
    return used / (REPORTS * len(server.agents))


async def _measure_recoveries(server: fleet.Server) -> list[float]:
    await server.ask("note_readiness")
    sent = {}
    for agent in server.agents[:RECOVERIES]:
        agent.failing = True
        await agent.report()
        agent.failing = False
        sent[agent.id] = time.monotonic()
        await agent.report()
    moments = (await server.ask("ready_at"))["moments"]
    return [1000 * (moments[id] - at) for id, at in sent.items()]
