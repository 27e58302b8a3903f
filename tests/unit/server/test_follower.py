"""A standby that reads along: what heartbeats make it do, and how often."""

import asyncio

import pytest

from nstance.objects import journal, memory
from nstance.objects.port import MAX_READ, Key, Stored
from nstance.server.state.follower import Follower
from support.hand_clock import HandClock


class CountingStore(memory.MemoryStore):
    reads = 0

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        self.reads += 1
        return await super().get(key, limit=limit)


async def test_a_damaged_journal_is_not_read_again_with_every_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    """Five heartbeats a second name a slot that cannot be reached, and a look reads the whole journal."""
    clock = HandClock()
    store = CountingStore(clock)
    books = journal.Journal(store, journal_prefix="j/", snapshot_prefix="s/", clock=clock)
    await store.create(books.slot_key(1), b"{}")
    follower = Follower(books, clock)
    running = asyncio.create_task(follower.run(leading=lambda: False))
    for _ in range(50):  # ten seconds
        follower.hint(7)
        await clock.advance(0.2)
    running.cancel()
    alarms = [record for record in caplog.records if "failed to read the journal" in record.message]
    assert 1 <= len(alarms) <= 3
    assert store.reads <= 2 * len(alarms)
