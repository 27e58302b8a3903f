"""Row 3: agents that become unresponsive while their VMs run, with the default timings in real time.

Three agents of three groups hang: their connections stay open and send nothing. One recovers after half of the time, and
its replacement is cancelled.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from bench import fleet
from bench.rows import Row

SUSPECT_AFTER, DEAD_AFTER = 10.0, 60.0
RECOVER_AFTER = 30.0
TOLERANCE_SECONDS = 0.25


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=10, size=5)) as server:
        await server.connect_all()
        began = time.monotonic()
        *lost, returning = (server.agents[5 * number] for number in range(3))
        hung_at = {agent.id: agent.hang() for agent in (*lost, returning)}

        async def recover() -> None:
            await asyncio.sleep(RECOVER_AFTER)
            returning.recover()
            await returning.connected.wait()

        recovering = asyncio.create_task(recover())
        replaced = [
            await server.created(agent.group, began, seconds=DEAD_AFTER) - hung_at[agent.id]
            for agent in (*lost, returning)
        ]
        yield _row(
            "agent unresponsive, VM running → replacement's create call, worst of 3", max(replaced), SUSPECT_AFTER
        )
        deleted = [await server.deleted(agent.id, seconds=DEAD_AFTER + 20) - hung_at[agent.id] for agent in lost]
        yield _row("agent unresponsive, VM running → its VM deleted, worst of 2", max(deleted), DEAD_AFTER)
        await recovering
        replacement = next(id for _, id, group in server.creates if group == returning.group)
        kept = returning.id not in server.deletes and replacement in server.deletes
        yield Row(
            number="3",
            what="agent returns after 30 s: it stays and its replacement goes",
            value=1.0 if kept else 0.0,
            unit="yes",
            goal=1.0,
            at_least=True,
            detail=f"{len(server.creates)} created, {len(server.deletes)} deleted in total",
        )


def _row(what: str, seconds: float, timing: float) -> Row:
    late = seconds - timing
    return Row(
        number="3",
        what=what,
        value=seconds,
        unit="s",
        goal=timing + TOLERANCE_SECONDS,
        detail=f"{1000 * late:+.0f} ms from {timing:.0f} s",
    )
