"""Which configuration is active: the newest one that is valid and could be read, for leaders and standbys."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.memory import Fate, MemoryStore, Verb
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import BEGIN_PAUSES, CHECK_SECONDS, ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.election.term import Term
from nstance.sim.loop import Machine
from support.virtual_time import virtually

SHARD = ShardId("a")
CONFIG, GROUPS = storage_keys.config(SHARD), storage_keys.groups(SHARD)


def text(size: int) -> bytes:
    settings = {
        "cluster": {"id": "c"},
        "shard": {"infra": {"provider": "memory"}},
        "templates": {"t": {"kind": "tst"}},
        "groups": {"g": {"template": "t", "size": size}},
    }
    return json.dumps(settings).encode()


class DoubtfulTerm:
    """Nothing may be done in it until it is sure."""

    def __init__(self) -> None:
        self.sure = asyncio.Event()

    async def ready(self) -> None:
        await self.sure.wait()


class World:
    """A bucket with a configuration of one group, and a server that has read it."""

    def __init__(self, clock: Machine, store: MemoryStore, booted: Configuration) -> None:
        self.store = store
        self.failures = 0  # so many requests are refused
        self.asked = 0
        self.activated: list[int] = []
        self.active_config = ActiveConfig(booted, store=store.view(self._fate), shard=SHARD, clock=clock)
        self.active_config.subscribe(lambda change: self.activated.append(size(change.after)))

    async def _fate(self, verb: Verb, key: str) -> Fate:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            return Fate(error=errors.UnavailableError("out"))
        return Fate()

    @property
    def size(self) -> int:
        return size(self.active_config.configuration)


def size(configuration: Configuration) -> int:
    return sum(resolved.group.size for resolved in configuration.groups.values())


@contextlib.asynccontextmanager
async def beside(work: Any) -> AsyncIterator[None]:
    running = asyncio.create_task(work)
    yield
    running.cancel()
    await asyncio.wait([running])


async def world(clock: Machine) -> World:
    store = MemoryStore(clock)
    store.tamper(CONFIG, text(1))
    return World(clock, store, await configurations.read(store, SHARD))


@virtually
async def test_a_newer_configuration_is_activated_once(clock: Machine) -> None:
    w = await world(clock)
    assert not await w.active_config.refresh()
    w.store.tamper(CONFIG, text(2))
    assert await w.active_config.refresh()
    assert not await w.active_config.refresh()
    assert (w.size, w.activated, size(w.active_config.booted)) == (2, [2], 1)


@virtually
async def test_what_is_not_valid_is_explained_until_it_is_repaired(clock: Machine) -> None:
    w = await world(clock)
    w.store.tamper(CONFIG, b'{"nonsense": 1}')
    assert not await w.active_config.refresh()
    assert "is not valid" in w.active_config.rejection
    assert "nonsense" in {problem.path for problem in w.active_config.problems}
    assert (w.size, w.activated, w.active_config.is_readable) == (1, [], True)
    w.store.tamper(CONFIG, text(3))
    assert await w.active_config.refresh()
    assert (w.size, w.active_config.rejection, w.active_config.problems) == (3, "", ())


@virtually
async def test_what_stays_invalid_is_an_error_once(clock: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """It is read again each minute, by each server."""
    caplog.clear()  # it runs once for each seed
    w = await world(clock)
    for found in (b'{"nonsense": 1}', b'{"nonsense": 1}', b'{"other": 1}', text(3), b'{"other": 1}'):
        w.store.tamper(CONFIG, found)
        await w.active_config.refresh()
    failed = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert [("nonsense" in each, "other" in each) for each in failed] == [(True, False), (False, True), (False, True)]


@virtually
async def test_the_groups_of_the_api_are_followed_under_settings_that_are_not_valid(clock: Machine) -> None:
    w = await world(clock)
    w.store.tamper(CONFIG, b"{ not valid")
    w.store.tamper(GROUPS, b'{"default": {"web": {"template": "t", "size": 4}}}')
    assert await w.active_config.refresh()
    assert (w.size, w.activated) == (5, [5])
    assert w.active_config.rejection


@virtually
async def test_what_cannot_be_read_changes_nothing(clock: Machine) -> None:
    w = await world(clock)
    w.store.tamper(CONFIG, text(2))
    w.failures = 2
    assert not await w.active_config.refresh()
    assert (w.size, w.activated, w.active_config.is_readable) == (1, [], False)
    w.failures = 0
    assert await w.active_config.refresh()
    assert w.active_config.is_readable


@virtually
async def test_a_term_begins_with_what_was_read_in_it(clock: Machine) -> None:
    """Invariant 5: and not at all, if that cannot be had."""
    w = await world(clock)
    w.store.tamper(CONFIG, text(2))
    w.failures = 2
    await w.active_config.begin_term()
    assert w.size == 2
    w.failures = 1000
    began = clock.monotonic()
    with pytest.raises(errors.UnavailableError):
        await w.active_config.begin_term()
    assert clock.monotonic() - began >= sum(BEGIN_PAUSES)


@virtually
async def test_the_leader_finds_a_newer_one_by_itself(clock: Machine) -> None:
    w, term = await world(clock), DoubtfulTerm()
    async with beside(w.active_config.watch(cast(Term, term))):
        w.store.tamper(GROUPS, b'{"default": {"web": {"template": "t", "size": 4}}}')
        await clock.sleep(CHECK_SECONDS + 1)
        assert w.asked == 0
        term.sure.set()
        await clock.sleep(1)
        assert w.activated == [5]
        asked = w.asked
        await clock.sleep(CHECK_SECONDS)
        assert w.asked == asked + 2  # a head each: nothing is read that is not new
        w.failures = 1
        w.store.tamper(CONFIG, text(2))
        await clock.sleep(2 * CHECK_SECONDS)  # the first look fails
        assert w.activated == [5, 6]


@virtually
async def test_a_standby_has_the_newest_at_hand_and_a_leader_is_left_to_its_term(clock: Machine) -> None:
    w = await world(clock)
    leads = True
    async with beside(w.active_config.follow(leading=lambda: leads)):
        w.store.tamper(CONFIG, text(2))
        await clock.sleep(3 * CHECK_SECONDS)
        assert (w.size, w.asked) == (1, 0)
        leads = False
        await clock.sleep(CHECK_SECONDS)
        assert w.size == 2
