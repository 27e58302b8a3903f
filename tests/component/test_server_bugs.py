"""What a server does about its own bugs."""

import asyncio
from pathlib import Path

import pytest

from component.whole_server import SECONDS, SHARD, World
from nstance.config import storage_keys
from nstance.objects import lease
from nstance.telemetry import loop_lag


async def test_a_part_that_dies_gives_the_lease_back_and_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor starts it anew, and a standby need not wait: nothing runs on half alive."""
    broken = asyncio.Event()

    async def dies(*_: object) -> None:
        await broken.wait()
        raise RuntimeError("a bug")

    monkeypatch.setattr(loop_lag, "measure", dies)
    async with World(tmp_path) as world:
        server = await world.start()
        broken.set()
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(server.task, SECONDS)
        assert lease.decode(world.store.contents()[storage_keys.lease(SHARD)]).free
