"""Connects 2,000 agents at once to a leader with a standby, and prints as JSON what that did to the shard.

A process of its own: its agents take more than 1 GB, which only the end of a process gives back.
"""

import asyncio
import json
import sys

import uvloop

from bench import fleet

GROUPS, SIZE = 20, 100


async def storm() -> dict[str, int]:
    async with fleet.serving(fleet.Setup(groups=GROUPS, size=SIZE, files=True)) as server, server.standby():
        server.connecting = asyncio.Semaphore(GROUPS * SIZE)
        before = await server.ask("usage")
        await server.connect_all()
        after = await server.ask("usage")
        return {
            "connected": after["agents"],
            "leader_changes": after["epoch"] - before["epoch"],
            "creates": len(server.creates),
            "deletes": len(server.deletes),
        }


if __name__ == "__main__":
    json.dump(uvloop.run(storm()), sys.stdout)
