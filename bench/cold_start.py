"""Row 10: reading the state of a shard with 5,000 instances from storage that takes 50 ms per request."""

import time
from collections.abc import AsyncIterator

from bench.rows import Row
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import GroupName, IdMaker, Kind, TenantId
from nstance.model.instance import Instance, Nonce, Put, State
from nstance.objects import journal, journal_writer, slots
from nstance.objects.memory import Fate, MemoryStore, Verb

INSTANCES = 5000
LATENCY_SECONDS = 0.05


def record(ids: IdMaker, number: int) -> Instance:
    id = ids.make(Kind("knc"))
    return Instance(
        id=id,
        tenant=TenantId("default"),
        group=GroupName(f"workers-{number % 20}"),
        state=State.RUNNING,
        created=1.7e9,
        template="worker",
        instance_type="t4g.small",
        subnet="subnet-0123456789abcdef0",
        infra_hash="sha256:" + "a" * 64,
        request_hash="sha256:" + "b" * 64,
        nonce=Nonce(jti="c" * 32, issued=1_700_000_000, expires=1_700_000_300),
        provider_id=None,
        seen=True,
        ip4="10.0.0.1",
        hostname=id,
        registered=1.7e9 + 30,
        public_key="k" * 44,
        certificate_serial="d" * 32,
        certificate_expires=1.7e9 + 30 * 86400,
    )


async def slow(verb: Verb, key: str) -> Fate:
    return Fate(before=LATENCY_SECONDS / 2, after=LATENCY_SECONDS / 2)


async def run() -> AsyncIterator[Row]:
    clock, rng = SystemClock(), SystemRng()
    ids = IdMaker(wall=clock.wall, bits=rng.bits)
    store = MemoryStore(clock)
    journals = journal.Journal(store, journal_prefix="j/", snapshot_prefix="s/", clock=clock)
    state, _ = await journals.load()

    async def no_guard() -> None:
        return None

    writer = journal_writer.Writer(journals, state, epoch=1, guard=no_guard, rng=rng)
    records = [record(ids, number) for number in range(INSTANCES)]
    state.instances.update({r.id: r for r in records})
    await writer.fence()
    await writer.snapshot()
    # As many slots after its snapshot as a journal ever has.
    for number in range(journals.limits.snapshot_slots - 1):
        entry = slots.Entry(id=str(number), changes=(Put(records[number % INSTANCES]),))
        await writer._append([entry])
    reader = journal.Journal(store.view(slow), journal_prefix="j/", snapshot_prefix="s/", clock=clock)
    began = time.perf_counter()
    loaded, _ = await reader.load()
    seconds = time.perf_counter() - began
    assert len(loaded.instances) == INSTANCES
    yield Row(
        number="10",
        what="cold start: 5,000 instances to state, 50 ms storage",
        value=seconds,
        unit="s",
        goal=1.0,
        detail=f"snapshot and {loaded.tail - loaded.snapshot} slots",
    )
