"""MemoryKube: faults on demand, and the same every time."""

import asyncio
import contextlib

import pytest

from nstance import clock as clocks
from nstance.kube import errors, kinds, memory
from nstance.kube.port import Change, Selection
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock

NODE = {"metadata": {"name": "a"}}


def kube(faults: memory.Faults | None = None) -> memory.MemoryKube:
    clock = clocks.SystemClock()
    return memory.MemoryKube(memory.cluster(clock, SeededRng(1)), clock, faults=faults)


async def test_equal_chance_gives_equal_worlds() -> None:
    made = [
        await memory.MemoryKube(memory.cluster(HandClock(), SeededRng(7)), HandClock()).create(kinds.NODE, NODE)
        for _ in range(2)
    ]
    assert made[0] == made[1]


async def test_what_is_handed_out_is_a_copy() -> None:
    world = kube()
    made = await world.create(kinds.NODE, NODE)
    made["metadata"]["name"] = "changed"
    (await world.list(kinds.NODE)).items[0]["metadata"]["labels"] = {"x": "y"}
    assert (await world.get(kinds.NODE, "a"))["metadata"].get("labels") is None


async def test_a_lost_answer_leaves_the_write_done() -> None:
    async def lose(verb: memory.Verb, kind: kinds.Kind, name: str) -> memory.Fate:
        return memory.Fate(lost=verb is memory.Verb.CREATE)

    world = kube(lose)
    with pytest.raises(errors.UnknownOutcomeError):
        await world.create(kinds.NODE, NODE)
    assert (await world.get(kinds.NODE, "a"))["metadata"]["name"] == "a"


async def test_an_error_is_raised_and_nothing_done() -> None:
    async def fail(verb: memory.Verb, kind: kinds.Kind, name: str) -> memory.Fate:
        return memory.Fate(error=errors.UnavailableError("away") if verb is memory.Verb.CREATE else None)

    world = kube(fail)
    with pytest.raises(errors.UnavailableError, match="away"):
        await world.create(kinds.NODE, NODE)
    with pytest.raises(errors.NotFoundError):
        await world.get(kinds.NODE, "a")


async def test_a_broken_watch_is_unavailable_and_a_forgotten_one_expired() -> None:
    world = kube()
    version = (await world.list(kinds.NODE)).version
    async with contextlib.aclosing(world.watch(Selection(kinds.NODE), version=version)) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await world.create(kinds.NODE, NODE)
        async with asyncio.timeout(10):
            assert (await waiting)[0] is Change.ADDED
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        world.break_watches()
        with pytest.raises(errors.UnavailableError):
            async with asyncio.timeout(10):
                await waiting
    world.api.store.forget()
    with pytest.raises(errors.ExpiredError):
        await anext(world.watch(Selection(kinds.NODE), version=version))


async def test_a_watch_ends_with_a_bookmark() -> None:
    world = kube()
    version = (await world.list(kinds.NODE)).version
    await world.create(kinds.CONFIG_MAP, {"metadata": {"name": "other", "namespace": "default"}})
    seen = [each async for each in world.watch(Selection(kinds.NODE), version=version, timeout=0.05)]
    assert [change for change, _ in seen] == [Change.BOOKMARK]
    assert int(seen[0][1]["metadata"]["resourceVersion"]) == int(version) + 1
