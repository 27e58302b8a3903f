"""Writes whose answers are lost, late or refused still end in a known state."""

import itertools

import pytest

from nstance import clock
from nstance.objects import errors, memory, settle
from nstance.objects.memory import Fate, Verb
from nstance.objects.port import Key, Stored, Version
from nstance.sim.loop import Machine
from support.virtual_time import virtually

KEY = Key("cluster/x")
LOST = Fate(lost=True)
NOT_APPLIED = Fate(error=errors.UnknownOutcomeError("no answer, and it was not applied"))
DOWN = Fate(error=errors.UnavailableError("down"))


class Script:
    """The fates of the writes, one after another; then everything goes well. Reads always do."""

    def __init__(self, *fates: Fate) -> None:
        self._fates = iter(fates)

    async def __call__(self, verb: Verb, key: str) -> Fate:
        return Fate() if verb in (Verb.GET, Verb.LIST) else next(self._fates, Fate())


def world(*fates: Fate) -> tuple[memory.MemoryStore, memory.MemoryStore]:
    truth = memory.MemoryStore(clock.SystemClock())
    return truth, truth.view(Script(*fates))


@pytest.mark.parametrize("fates", list(itertools.product([Fate(), LOST, NOT_APPLIED], repeat=3)))
async def test_create_settles(fates: tuple[Fate, ...]) -> None:
    truth, store = world(*fates)
    assert (await settle.create_or_adopt(store, KEY, b"mine")).body == b"mine"
    assert truth.contents() == {KEY: b"mine"}


@pytest.mark.parametrize("fates", list(itertools.product([Fate(), LOST, NOT_APPLIED], repeat=2)))
async def test_the_loser_adopts(fates: tuple[Fate, ...]) -> None:
    truth, store = world(*fates)
    await truth.create(KEY, b"theirs")
    assert (await settle.create_or_adopt(store, KEY, b"mine")).body == b"theirs"
    assert truth.contents() == {KEY: b"theirs"}


@pytest.mark.parametrize("fates", list(itertools.product([Fate(), LOST, NOT_APPLIED], repeat=3)))
async def test_replace_settles(fates: tuple[Fate, ...]) -> None:
    truth, store = world(*fates)
    await truth.create(KEY, b"old")
    await settle.replace(store, KEY, b"new", seen=await truth.get(KEY))
    assert truth.contents() == {KEY: b"new"}


@pytest.mark.parametrize("fate", [Fate(), LOST, NOT_APPLIED])
async def test_replace_never_overwrites_somebody_else(fate: Fate) -> None:
    truth, store = world(fate)
    version = await truth.create(KEY, b"old")
    await truth.replace(KEY, b"theirs", seen=version)
    with pytest.raises(errors.ConflictError):
        await settle.replace(store, KEY, b"new", seen=Stored(b"old", version))
    assert truth.contents() == {KEY: b"theirs"}


async def test_replace_of_what_is_gone_is_a_conflict() -> None:
    truth, store = world()
    with pytest.raises(errors.ConflictError):
        await settle.replace(store, KEY, b"new", seen=Stored(b"old", Version("v1")))
    assert truth.contents() == {}


@pytest.mark.parametrize("fates", list(itertools.product([Fate(), LOST, NOT_APPLIED], repeat=2)))
@pytest.mark.parametrize("before", [None, b"old"])
async def test_put_settles(before: bytes | None, fates: tuple[Fate, ...]) -> None:
    truth, store = world(*fates)
    if before is not None:
        await truth.create(KEY, before)
    await settle.put(store, KEY, b"new")
    assert truth.contents() == {KEY: b"new"}


async def test_a_create_that_lands_late_is_recognized_as_ours() -> None:
    truth, store = world(Fate(late=0.0), NOT_APPLIED)
    assert (await settle.create_or_adopt(store, KEY, b"mine")).body == b"mine"
    assert truth.contents() == {KEY: b"mine"}


async def test_unavailable_is_passed_on_and_nothing_is_written() -> None:
    truth, store = world(DOWN)
    with pytest.raises(errors.UnavailableError):
        await settle.create_or_adopt(store, KEY, b"mine")
    assert truth.contents() == {}


async def test_what_stays_unknown_is_reported() -> None:
    for call in (settle.create_or_adopt, settle.put):
        _, store = world(*[NOT_APPLIED] * 50)
        with pytest.raises(errors.UnknownOutcomeError):
            await call(store, KEY, b"mine")
    _, store = world(*[NOT_APPLIED] * 50)
    with pytest.raises(errors.UnknownOutcomeError):
        await settle.delete(store, KEY)


async def test_delete_settles() -> None:
    truth, store = world(LOST, NOT_APPLIED)
    await truth.create(KEY, b"x")
    await settle.delete(store, KEY)
    assert truth.contents() == {}


@virtually
async def test_a_store_that_never_answers(machine: Machine) -> None:
    async def silent(verb: Verb, key: str) -> Fate:
        return Fate(before=3600)

    store = memory.MemoryStore(machine, faults=silent)
    with pytest.raises(errors.UnavailableError, match="no answer"):
        await settle.read(store, KEY)
    with pytest.raises(errors.UnavailableError, match="no answer"):
        await settle.list_keys(store, "cluster/")
    with pytest.raises(errors.UnavailableError):
        await settle.create_or_adopt(store, KEY, b"x")
