"""A store that ignores conditions is refused by name, and the probe tells that apart from one it cannot ask."""

import asyncio

import pytest

from nstance import clock
from nstance.objects import errors, memory, probe, wrapped
from nstance.objects.port import Key, Version
from nstance.sim.loop import Machine
from support.virtual_time import virtually

CHANCE = clock.SystemRng()
CLOCK = clock.SystemClock()
K = Key("k")


def make(*ignored: memory.Verb) -> memory.MemoryStore:
    return memory.MemoryStore(clock.SystemClock(), ignores=frozenset(ignored))


async def test_a_good_store_passes_and_is_left_clean() -> None:
    store = make()
    await probe.probe(store, "", clock=CLOCK, rng=CHANCE)
    await probe.probe(store, "shard/a", clock=CLOCK, rng=CHANCE)
    assert store.contents() == {}


@pytest.mark.parametrize(
    ("ignored", "named"), [(memory.Verb.CREATE, "create-if-absent"), (memory.Verb.REPLACE, "write-if-match")]
)
async def test_ignored_conditions_are_named(ignored: memory.Verb, named: str) -> None:
    store = make(ignored)
    with pytest.raises(probe.UnsuitableStoreError, match=named) as caught:
        await probe.probe(store, "shard/a/", clock=CLOCK, rng=CHANCE)
    assert "memory store" in str(caught.value)
    assert store.contents() == {}


async def test_the_name_says_where_in_the_store() -> None:
    store = wrapped.PrefixedStore(make(memory.Verb.CREATE), "clusters/x")
    with pytest.raises(probe.UnsuitableStoreError, match="memory store below clusters/x/"):
        await probe.probe(store, "", clock=CLOCK, rng=CHANCE)


@pytest.mark.parametrize(
    "problem",
    [errors.PermissionDeniedError("403"), errors.UnavailableError("refused"), errors.UnknownOutcomeError("500")],
)
@pytest.mark.parametrize("when", range(5))
async def test_what_could_not_be_asked_is_passed_on(problem: errors.StorageError, when: int) -> None:
    calls = 0

    async def faults(verb: memory.Verb, key: str) -> memory.Fate:
        nonlocal calls
        calls += 1
        return memory.Fate(error=problem) if calls == when + 1 else memory.Fate()

    store = memory.MemoryStore(clock.SystemClock(), faults=faults)
    with pytest.raises(type(problem)):
        await probe.probe(store, "shard/a/", clock=CLOCK, rng=CHANCE)
    assert store.contents() == {}


class RacyStore(memory.MemoryStore):
    """Checks its conditions, and writes a moment later: right for one writer at a time, as some S3 servers are."""

    def __init__(self, *, racy: memory.Verb) -> None:
        super().__init__(clock.SystemClock())
        self._racy = racy

    async def create(self, key: Key, body: bytes) -> Version:
        if self._racy is memory.Verb.CREATE and key not in self.contents():
            await asyncio.sleep(0)
            self.tamper(key, body)
            return (await self.get(key)).version
        return await super().create(key, body)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        if self._racy is memory.Verb.REPLACE and (await self.get(key)).version == seen:
            await asyncio.sleep(0)
            self.tamper(key, body)
            return (await self.get(key)).version
        return await super().replace(key, body, seen=seen)


@pytest.mark.parametrize(
    ("racy", "named"), [(memory.Verb.CREATE, "create-if-absent"), (memory.Verb.REPLACE, "write-if-match")]
)
async def test_several_winners_of_a_race_are_refused(racy: memory.Verb, named: str) -> None:
    store = RacyStore(racy=racy)
    first = await store.create(K, b"1")
    with pytest.raises(errors.ConflictError):
        await store.create(K, b"2")
    await store.replace(K, b"3", seen=first)
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"4", seen=first)
    await store.delete(K)
    with pytest.raises(probe.UnsuitableStoreError, match=named) as caught:
        await probe.probe(store, "shard/a/", clock=CLOCK, rng=CHANCE)
    assert "memory store" in str(caught.value)
    assert store.contents() == {}


class ContendingStore(memory.MemoryStore):
    """Turns writes away that meet another one, as Amazon S3 does (409)."""

    def __init__(self, *, lets_one_win: bool) -> None:
        super().__init__(clock.SystemClock())
        self._lets_one_win = lets_one_win
        self._busy: set[Key] = set()

    async def create(self, key: Key, body: bytes) -> Version:
        if key in self._busy or not self._lets_one_win:
            raise errors.ContendedError("409 ConditionalRequestConflict")
        self._busy.add(key)
        await asyncio.sleep(0)
        return await super().create(key, body)


async def test_contention_is_a_lost_race_and_no_fault_of_the_store() -> None:
    store = ContendingStore(lets_one_win=True)
    await probe.probe(store, "shard/a/", clock=CLOCK, rng=CHANCE)
    assert store.contents() == {}


async def test_a_race_that_only_met_contention_is_to_be_repeated() -> None:
    with pytest.raises(errors.ContendedError):
        await probe.probe(ContendingStore(lets_one_win=False), "shard/a/", clock=CLOCK, rng=CHANCE)


async def test_a_round_without_an_answer_does_not_hide_what_the_other_has_shown() -> None:
    keys: list[str] = []

    async def faults(verb: memory.Verb, key: str) -> memory.Fate:
        if key not in keys:
            keys.append(key)
        return memory.Fate(error=errors.UnavailableError("refused")) if key == keys[0] else memory.Fate()

    store = memory.MemoryStore(clock.SystemClock(), ignores=frozenset({memory.Verb.CREATE}), faults=faults)
    with pytest.raises(probe.UnsuitableStoreError):
        await probe.probe(store, "shard/a/", clock=CLOCK, rng=CHANCE)


@virtually
async def test_on_a_slow_store_it_takes_five_requests_in_a_row_and_a_deletion(machine: Machine) -> None:
    """The server waits for the probe before it may lead: with two seconds a request it must not take a minute."""

    async def slow(verb: memory.Verb, key: str) -> memory.Fate:
        return memory.Fate(before=1.0, after=1.0)

    start = machine.monotonic()
    await probe.probe(memory.MemoryStore(machine, faults=slow), "shard/a/", clock=machine, rng=CHANCE)
    assert machine.monotonic() - start <= 6 * 2.0 + 0.1
