"""The faults of the memory store do what they say: the simulator builds on them."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import pytest

from nstance import clock
from nstance.objects import errors, memory
from nstance.objects.port import Key, Version

K = Key("shard/a/leader.json")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer instead of waiting for it."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class LoopClock(clock.SystemClock):
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


P = ParamSpec("P")


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test in virtual time."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **named))

    return run


class Script:
    """Hands out the fates it was given, then only good ones."""

    def __init__(self, *fates: memory.Fate) -> None:
        self.fates = list(fates)
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, verb: memory.Verb, key: str) -> memory.Fate:
        self.asked.append((verb.value, key))
        return self.fates.pop(0) if self.fates else memory.Fate()


def scripted(*fates: memory.Fate, remember: float = 0.0) -> memory.MemoryStore:
    return memory.MemoryStore(LoopClock(), faults=Script(*fates), remember=remember)


@virtually
async def test_an_error_fate_applies_nothing() -> None:
    store = scripted(memory.Fate(error=errors.UnavailableError("503")))
    with pytest.raises(errors.UnavailableError, match="503"):
        await store.create(K, b"1")
    assert store.contents() == {}


@virtually
async def test_a_lost_answer_is_unknown_and_applied() -> None:
    store = scripted(memory.Fate(lost=True), memory.Fate(), memory.Fate(lost=True))
    with pytest.raises(errors.UnknownOutcomeError):
        await store.create(K, b"1")
    assert (await store.get(K)).body == b"1"
    with pytest.raises(errors.UnavailableError):
        await store.get(K)


@virtually
async def test_a_late_write_lands_after_the_caller_has_gone() -> None:
    store = scripted(memory.Fate(late=5.0))
    with pytest.raises(errors.UnknownOutcomeError):
        await store.create(K, b"1")
    assert store.contents() == {}
    await asyncio.sleep(6.0)
    assert (await store.get(K)).body == b"1"


@virtually
async def test_a_late_write_never_overwrites_newer() -> None:
    store = scripted(memory.Fate(), memory.Fate(late=5.0))
    first = await store.create(K, b"1")
    with pytest.raises(errors.UnknownOutcomeError):
        await store.replace(K, b"late", seen=first)
    other = store.view(None)
    await other.replace(K, b"2", seen=first)
    await asyncio.sleep(6.0)
    assert store.contents() == {K: b"2"}


@virtually
async def test_delays_come_before_and_after_the_write() -> None:
    store = scripted(memory.Fate(before=1.0, after=2.0))
    task = asyncio.ensure_future(store.create(K, b"1"))
    for seconds, applied, answered in ((0.5, False, False), (1.0, True, False), (2.0, True, True)):
        await asyncio.sleep(seconds)
        assert (bool(store.contents()), task.done()) == (applied, answered)


@virtually
async def test_a_cancelled_write_lands_all_the_same() -> None:
    store = scripted(memory.Fate(before=1.0))
    task = asyncio.ensure_future(store.create(K, b"1"))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.sleep(1.0)
    assert task.cancelled()
    assert store.contents() == {K: b"1"}


@virtually
async def test_stale_reads_and_listings_show_the_past() -> None:
    stale = memory.Fate(stale=5.0)
    good = memory.Fate()
    store = scripted(good, memory.Fate(before=10.0), stale, stale, stale, stale, remember=60.0)
    await asyncio.sleep(10.0)
    first = await store.create(K, b"1")
    second = await store.replace(K, b"2", seen=first)
    assert (await store.get(K)).version == first
    assert [key async for key in store.list("shard/")] == [K]
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"3", seen=first)
    assert (await store.head(K)).version == first
    assert (await store.get(K)).version == second


@virtually
async def test_a_stale_listing_lacks_what_is_new() -> None:
    store = scripted(memory.Fate(), memory.Fate(stale=1.0), remember=60.0)
    await store.create(K, b"1")
    assert [key async for key in store.list("")] == []
    assert [key async for key in store.list("")] == [K]


@virtually
async def test_a_store_may_ignore_conditions() -> None:
    store = memory.MemoryStore(LoopClock(), ignores=frozenset({memory.Verb.CREATE, memory.Verb.REPLACE}))
    await store.create(K, b"1")
    await store.create(K, b"2")
    await store.replace(K, b"3", seen=Version("no such"))
    assert store.contents() == {K: b"3"}


@virtually
async def test_views_share_objects_but_not_faults() -> None:
    store = memory.MemoryStore(LoopClock())
    sick = store.view(Script(memory.Fate(error=errors.PermissionDeniedError("403"))))
    await store.create(K, b"1")
    with pytest.raises(errors.PermissionDeniedError):
        await sick.get(K)
    assert (await sick.get(K)).body == b"1"


@virtually
async def test_tampering_changes_the_version() -> None:
    store = memory.MemoryStore(LoopClock())
    version = await store.create(K, b"1")
    store.tamper(K, b"x")
    with pytest.raises(errors.ConflictError):
        await store.replace(K, b"2", seen=version)
    store.tamper(K, None)
    with pytest.raises(errors.NotFoundError):
        await store.get(K)
