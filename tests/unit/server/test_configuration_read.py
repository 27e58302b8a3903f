"""A configuration is read from the bucket without holding anything up: a leader renews its lease meanwhile."""

import asyncio
import json
import threading

import pytest

from nstance import clock as clocks
from nstance.config import load, storage_keys
from nstance.config.model.settings import Settings
from nstance.model.ids import ShardId
from nstance.objects import memory
from nstance.server.config import configuration
from nstance.sim.loop import VirtualLoop

SHARD = ShardId("a")
SMALL = {
    "cluster": {"id": "c"},
    "shard": {"infra": {"provider": "memory"}},
    "templates": {"t": {"kind": "tst"}},
    "groups": {"g": {"template": "t", "size": 1}},
}
LARGE = {**SMALL, "templates": {"t": {"kind": "tst", "vars": {f"v{i}": "x" * 50 for i in range(2_000)}}}}


async def bucket(settings: object) -> memory.MemoryStore:
    store = memory.MemoryStore(clocks.SystemClock())
    await store.create(storage_keys.config(SHARD), json.dumps(settings).encode())
    return store


async def test_the_event_loop_turns_while_a_large_configuration_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = threading.Event()
    real = load.load

    def slow(*given: object, **named: object) -> Settings:
        assert turned.wait(10), "the event loop stood still"
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "load", slow)
    reading = asyncio.create_task(configuration.read(await bucket(LARGE), SHARD))
    asyncio.get_running_loop().call_later(0.01, turned.set)
    assert len((await reading).groups) == 1


async def test_problems_of_a_large_configuration_are_reported() -> None:
    with pytest.raises(configuration.NoConfigurationError) as raised:
        await configuration.read(await bucket({**LARGE, "nonsense": 1}), SHARD)
    assert [problem.path for problem in raised.value.problems] == ["nonsense"]


@pytest.mark.parametrize("settings", [SMALL, LARGE], ids=["small", "large"])
def test_in_virtual_time_no_thread_takes_part(settings: object) -> None:
    async def read() -> configuration.Configuration:
        return await configuration.read(await bucket(settings), SHARD)

    before = threading.enumerate()
    loop = VirtualLoop(seed=1)
    task = loop.create_task(read())
    loop.run_until_complete(task)
    assert len(task.result().groups) == 1
    assert threading.enumerate() == before
    loop.finish()
