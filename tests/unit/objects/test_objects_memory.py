"""The faults of the memory store do what they say: the simulator builds on them."""

import asyncio

import pytest

from nstance import clock
from nstance.objects import errors, memory
from nstance.objects.port import Key, Version

K = Key("shard/a/leader.json")


class StillClock(clock.SystemClock):
    """Moves only when somebody sleeps; a longer sleep takes more turns of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        for _ in range(1 + int(seconds * 10)):
            await asyncio.sleep(0)
        self.now += seconds


class Script:
    """Hands out the fates it was given, then only good ones."""

    def __init__(self, *fates: memory.Fate) -> None:
        self.fates = list(fates)
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, verb: memory.Verb, key: str) -> memory.Fate:
        self.asked.append((verb.value, key))
        return self.fates.pop(0) if self.fates else memory.Fate()


def scripted(*fates: memory.Fate, remember: float = 0.0) -> memory.MemoryStore:
    return memory.MemoryStore(StillClock(), faults=Script(*fates), remember=remember)


async def test_an_error_fate_applies_nothing_f28() -> None:
    store = scripted(memory.Fate(error=errors.Unavailable("503")))
    with pytest.raises(errors.Unavailable, match="503"):
        await store.create(K, b"1")
    assert store.contents() == {}


async def test_a_lost_answer_is_unknown_and_applied_f30() -> None:
    store = scripted(memory.Fate(lost=True), memory.Fate(), memory.Fate(lost=True))
    with pytest.raises(errors.Unknown):
        await store.create(K, b"1")
    assert (await store.get(K)).body == b"1"
    with pytest.raises(errors.Unavailable):
        await store.get(K)


async def test_a_late_write_lands_after_the_caller_has_gone_f31() -> None:
    store = scripted(memory.Fate(late=5.0))
    with pytest.raises(errors.Unknown):
        await store.create(K, b"1")
    for _ in range(100):
        await asyncio.sleep(0)
    assert (await store.get(K)).body == b"1"


async def test_a_late_write_never_overwrites_newer_f31() -> None:
    store = scripted(memory.Fate(), memory.Fate(late=5.0))
    first = await store.create(K, b"1")
    with pytest.raises(errors.Unknown):
        await store.replace(K, b"late", seen=first)
    other = store.view(None)
    await other.replace(K, b"2", seen=first)
    for _ in range(100):
        await asyncio.sleep(0)
    assert store.contents() == {K: b"2"}


async def test_delays_come_before_and_after_the_write() -> None:
    still = StillClock()
    store = memory.MemoryStore(still, faults=Script(memory.Fate(before=1.0, after=2.0)))
    await store.create(K, b"1")
    assert still.now == 103.0


async def test_stale_reads_and_listings_show_the_past_f33() -> None:
    stale = memory.Fate(stale=5.0)
    good = memory.Fate()
    store = scripted(good, memory.Fate(before=10.0), stale, stale, stale, stale, remember=60.0)
    first = await store.create(K, b"1")
    second = await store.replace(K, b"2", seen=first)
    assert (await store.get(K)).version == first
    assert [key async for key in store.list("shard/")] == [K]
    with pytest.raises(errors.Conflict):
        await store.replace(K, b"3", seen=first)
    assert (await store.head(K)).version == first
    assert (await store.get(K)).version == second


async def test_a_stale_listing_lacks_what_is_new_f33() -> None:
    store = scripted(memory.Fate(), memory.Fate(stale=1.0), remember=60.0)
    await store.create(K, b"1")
    assert [key async for key in store.list("")] == []
    assert [key async for key in store.list("")] == [K]


async def test_a_store_may_ignore_conditions_f36() -> None:
    store = memory.MemoryStore(StillClock(), ignores=frozenset({memory.Verb.CREATE, memory.Verb.REPLACE}))
    await store.create(K, b"1")
    await store.create(K, b"2")
    await store.replace(K, b"3", seen=Version("no such"))
    assert store.contents() == {K: b"3"}


async def test_views_share_objects_but_not_faults() -> None:
    store = memory.MemoryStore(StillClock())
    sick = store.view(Script(memory.Fate(error=errors.Denied("403"))))
    await store.create(K, b"1")
    with pytest.raises(errors.Denied):
        await sick.get(K)
    assert (await sick.get(K)).body == b"1"


async def test_tampering_changes_the_version_f34() -> None:
    store = memory.MemoryStore(StillClock())
    version = await store.create(K, b"1")
    store.tamper(K, b"x")
    with pytest.raises(errors.Conflict):
        await store.replace(K, b"2", seen=version)
    store.tamper(K, None)
    with pytest.raises(errors.Missing):
        await store.get(K)
