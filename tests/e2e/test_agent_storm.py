"""F58: 2,000 agents connect at once, over real TLS, and the leader keeps its lease."""

import asyncio

import pytest
from bench import fleet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GROUPS, SIZE = 20, 100


async def test_f58_two_thousand_agents_at_once_do_not_cost_the_leader_its_lease() -> None:
    """With a standby, which would claim after two seconds without a heartbeat."""
    async with fleet.serving(groups=GROUPS, size=SIZE, files=True) as server, server.standby():
        server.entering = asyncio.Semaphore(GROUPS * SIZE)
        before = await server.ask("usage")
        await server.connect_all()
        after = await server.ask("usage")
        assert after["agents"] == GROUPS * SIZE
        assert before["epoch"] == after["epoch"]
        assert server.creates == []
        assert server.deletes == {}
