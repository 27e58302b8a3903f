"""2,000 agents connect at once, over real TLS, and the leader keeps its lease."""

import asyncio

import pytest
from bench import fleet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GROUPS, SIZE = 20, 100
WHOLE = (GROUPS * SIZE, 0, 0, 0)


async def test_two_thousand_agents_at_once_do_not_cost_the_leader_its_lease() -> None:
    """With a standby, which would claim after two seconds without a heartbeat. A machine that has other things to do may
    hold the leader up for so long once; agents that are let in all at once do so each time."""
    storms = []
    while len(storms) < 3 and WHOLE not in storms:
        storms.append(await storm())
    assert WHOLE in storms, storms


async def storm() -> tuple[int, int, int, int]:
    """How many agents are connected afterwards; how often the leader changed; what was created and deleted meanwhile."""
    async with fleet.serving(groups=GROUPS, size=SIZE, files=True) as server, server.standby():
        server.connecting = asyncio.Semaphore(GROUPS * SIZE)
        before = await server.ask("usage")
        await server.connect_all()
        after = await server.ask("usage")
        return after["agents"], after["epoch"] - before["epoch"], len(server.creates), len(server.deletes)
