"""Row 26: the time from a refusal for lack of capacity to the create call in the next offer, with 1,000 agents connected.

One instance at a time. Storage is in memory: a real store adds one write, because the next attempt is in the journal first.
"""

import asyncio
import time
from collections.abc import AsyncIterator

from bench import fleet
from bench.rows import Row, percentile, spread
from nstance.v1 import agent_pb2

GROUPS, SIZE = 50, 20
SIGNALS = 60
FORGOTTEN_SECONDS = 0.05


async def run() -> AsyncIterator[Row]:
    # A refusal is forgotten after at most ten times 1 ms, or only the first instance would be refused.
    async with fleet.serving(
        fleet.Setup(groups=GROUPS, size=SIZE, instance_types=("small", "large"), capacity_retry="1ms")
    ) as server:
        await server.connect_all()
        await server.wait_idle()
        await server.ask("offers", limits={"*/small/*": 0})
        took = []
        for agent in [agent for place in range(SIZE) for agent in server.agents[place::SIZE]][:SIGNALS]:
            await asyncio.sleep(FORGOTTEN_SECONDS)
            began = time.monotonic()
            await agent.notice(agent_pb2.Notice.SPOT_TERMINATION)
            took.append(1000 * await server.fell_back(agent.group, began))
        for share, goal in ((0.5, 10.0), (0.99, 10.0)):
            yield Row(
                number="26",
                what=f"no capacity → create call in the next offer, p{100 * share:.0f}, {len(server.agents):,} agents",
                value=percentile(took, share),
                unit="ms",
                goal=goal,
                detail=spread(took, "ms"),
            )
