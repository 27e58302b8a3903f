"""Rows 7, 8, 9, 11 and 17: a server with thousands of agents: memory, reports, a failover, an event, an edit."""

import asyncio
import time
from collections.abc import AsyncIterator

from bench import fleet
from bench.fleet_server import TIMEOUT_SECONDS, until
from bench.rows import Row, percentile, spread

MB = 1e6
SMALL = (50, 10)  # groups and their size
LARGE = (500, 10)
REPORTERS, REPORTS = 1000, 30  # agents, and reports of each; every report waits for its answer
EVENTS = 400
EDITS = 20


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=1, size=0, files=True)) as server:
        yield _memory("no agents", await server.ask("usage"), 80.0)
    async with fleet.serving(fleet.Setup(groups=1, size=LARGE[1], files=True)) as server:
        await server.connect_all()
        await server.wait_idle()
        single = await _event_costs(server)
    async with fleet.serving(fleet.Setup(groups=SMALL[0], size=SMALL[1], files=True)) as server:
        await server.connect_all()
        yield _memory("500 agents", await server.wait_idle(), 130.0)
    async with fleet.serving(fleet.Setup(groups=LARGE[0], size=LARGE[1], files=True)) as server:
        began, epoch = time.monotonic(), (await server.ask("usage"))["epoch"]
        await server.connect_all()
        entered = time.monotonic() - began
        yield Row(
            number="9",
            what="5,000 agents connect: changes of leadership",
            value=abs((await server.ask("usage"))["epoch"] - epoch),
            unit="terms",
            goal=0.0,
            detail=f"all were connected after {entered:.1f} s",
        )
        yield _memory("5,000 agents", await server.wait_idle(), 400.0, f"connected in {entered:.0f} s; ")
        yield await _reports(server)
        for row in _compare(single, await _event_costs(server)):
            yield row
        for row in await _edits(server):
            yield row
        for row in await _failover(server):
            yield row


def _memory(what: str, usage: dict[str, float], goal: float, prefix: str = "") -> Row:
    detail = f"{prefix}with its cloud in memory in the same process, {usage['agents']:,} connected"
    return Row(number="7", what=f"server memory, {what}", value=usage["rss"] / MB, unit="MB", goal=goal, detail=detail)


async def _reports(server: fleet.Server) -> Row:
    reporters = server.agents[:REPORTERS]

    async def report(agent: fleet.LightAgent) -> None:
        for _ in range(REPORTS):
            await agent.report()

    before, began = (await server.ask("usage"))["cpu"], time.monotonic()
    async with asyncio.timeout(120):
        await asyncio.gather(*(report(agent) for agent in reporters))
    seconds, cpu = time.monotonic() - began, (await server.ask("usage"))["cpu"] - before
    count = len(reporters) * REPORTS
    return Row(
        number="8",
        what="health reports per second of one core, each answered",
        value=count / cpu,
        unit="per s",
        goal=8000.0,
        at_least=True,
        detail=f"{count:,} in {seconds:.1f} s, {cpu:.1f} s of them the server's; {len(server.agents):,} agents connected",
    )


async def _event_costs(server: fleet.Server) -> dict[str, float]:
    """Microseconds to decide an event that changes no record, and one that is written to the journal."""
    return {
        what: 1e6 * (await server.ask("events", count=EVENTS, durable=durable))["seconds"]
        for what, durable in (("noted", False), ("durable", True))
    }


def _compare(single: dict[str, float], crowd: dict[str, float]) -> list[Row]:
    return [
        Row(
            number="11",
            what=f"one {what} event: 500 groups of 10 compared with one group of 10",
            value=crowd[what] / single[what],
            unit="×",
            goal=1.5,
            detail=f"{single[what]:.0f} µs with one group, {crowd[what]:.0f} µs among 5,000",
        )
        for what in single
    ]


async def _edits(server: fleet.Server) -> tuple[Row, Row]:
    """After each edit all agents of the group must have their new files, and no other agent must have been woken."""
    seconds, woken = [], []
    for number in range(EDITS):
        group = f"g{number}"
        waiting = {agent: agent.config_hash for agent in server.agents if agent.group == group}
        answer = await server.ask("edit", group=group, greeting=f"greeting {number}")
        seconds.append(1000 * answer["seconds"])
        woken.append(answer["woken"])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while any(agent.config_hash == before for agent, before in waiting.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return Row(
        number="17",
        what=f"edit of a group of {LARGE[1]} among {len(server.agents):,} agents: agents woken, most",
        value=max(woken),
        unit="agents",
        goal=float(LARGE[1]),
        detail=f"{EDITS} edits; all members got their new files",
    ), Row(
        number="17",
        what="the same: processor time until all parts have followed, median",
        value=percentile(seconds, 0.5),
        unit="ms",
        goal=5.0,
        detail=spread(seconds, "ms"),
    )


async def _failover(server: fleet.Server) -> tuple[Row, Row]:
    """Kill the process of the leader; the standby is a process of its own."""
    async with server.standby() as standby:
        at = server.kill()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await until(
                lambda: all(agent.refused or (agent.connected_at or 0.0) > at for agent in server.agents), every=0.1
            )
        times = [
            agent.connected_at - at
            for agent in server.agents
            if agent.connected_at is not None and agent.connected_at > at
        ]
        spread_seconds = server.agents[0].spread
        await standby.ask("lead")
        return Row(
            number="9",
            what="leader dies: all 5,000 agents are connected to its standby",
            value=max(times),
            unit="s",
            goal=15.0,
            detail=f"first after {min(times):.1f} s, half after {percentile(times, 0.5):.1f} s; "
            f"requested spread: {spread_seconds:.0f} s",
        ), Row(
            number="9",
            what="the same: instances replaced needlessly",
            value=len(standby.creates),
            unit="VMs",
            goal=0.0,
            detail=f"{sum(agent.refused for agent in server.agents)} agents connected too late",
        )
