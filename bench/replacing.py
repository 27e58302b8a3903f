"""Rows 1 and 2: the time from a signal that an instance ends to the create call, with 1,000 agents connected.

One signal at a time. Storage is in memory: a real store adds one write.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from bench import fleet
from bench.rows import Row, percentile, spread
from nstance.v1 import agent_pb2

GROUPS, SIZE = 50, 20
SIGNALS = 60  # of each kind


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=GROUPS, size=SIZE)) as server:
        await server.connect_all()
        await server.wait_idle()
        victims = iter([agent for place in range(SIZE) for agent in server.agents[place::SIZE]])

        async def spot(agent: fleet.LightAgent) -> float:
            return await agent.notice(agent_pb2.Notice.SPOT_TERMINATION)

        async def shutdown(agent: fleet.LightAgent) -> float:
            await server.ask("stop", id=agent.id)
            return await agent.notice(agent_pb2.Notice.SHUTDOWN)

        async def killed(agent: fleet.LightAgent) -> float:
            await server.ask("destroy", id=agent.id)
            return agent.die(reset=False)

        async def reset(agent: fleet.LightAgent) -> float:
            await server.ask("destroy", id=agent.id)
            return agent.die(reset=True)

        async def measure(signal: Callable[[fleet.LightAgent], Awaitable[float]]) -> list[float]:
            seconds = []
            for _ in range(SIGNALS):
                agent = next(victims)
                began = time.monotonic()
                sent = await signal(agent)
                seconds.append(await server.created(agent.group, began) - sent)
            return [1000 * each for each in seconds]

        kinds = {"spot notice": spot, "shutdown notice": shutdown, "VM gone": killed}
        for what, signal in kinds.items():
            took = await measure(signal)
            for share, goal in ((0.5, 5.0), (0.99, 25.0)):
                yield Row(
                    number="1",
                    what=f"{what} → create call, p{100 * share:.0f}, {len(server.agents):,} agents",
                    value=percentile(took, share),
                    unit="ms",
                    goal=goal,
                    detail=spread(took, "ms"),
                )
        took = await measure(reset)
        yield Row(
            number="2",
            what="connection reset and VM gone → create call, worst",
            value=max(took),
            unit="ms",
            goal=100.0,
            detail=spread(took, "ms"),
        )
