"""A store that ignores conditions is refused by name, and the probe tells that apart from one it cannot ask."""

import pytest

from nstance import clock
from nstance.objects import errors, memory, prefixed, probe

CHANCE = clock.SystemRng()


def make(*ignored: memory.Verb) -> memory.MemoryStore:
    return memory.MemoryStore(clock.SystemClock(), ignores=frozenset(ignored))


async def test_a_good_store_passes_and_is_left_clean() -> None:
    store = make()
    await probe.probe(store, "", CHANCE)
    await probe.probe(store, "shard/a", CHANCE)
    assert store.contents() == {}


@pytest.mark.parametrize(
    ("ignored", "named"), [(memory.Verb.CREATE, "create-if-absent"), (memory.Verb.REPLACE, "write-if-match")]
)
async def test_ignored_conditions_are_named(ignored: memory.Verb, named: str) -> None:
    store = make(ignored)
    with pytest.raises(probe.UnsuitableStoreError, match=named) as caught:
        await probe.probe(store, "shard/a/", CHANCE)
    assert "memory store" in str(caught.value)
    assert store.contents() == {}


async def test_the_name_says_where_in_the_store() -> None:
    store = prefixed.PrefixedStore(make(memory.Verb.CREATE), "clusters/x")
    with pytest.raises(probe.UnsuitableStoreError, match="memory store below clusters/x/"):
        await probe.probe(store, "", CHANCE)


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
        await probe.probe(store, "shard/a/", CHANCE)
    assert store.contents() == {}
