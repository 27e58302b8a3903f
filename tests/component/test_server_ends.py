"""Servers that end: by a bug of their own, or in order but not in time."""

import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest

from component.whole_server import SECONDS, SHARD, World, config, states
from nstance.config import storage_keys
from nstance.objects import lease
from nstance.objects.memory import Fate, Verb
from nstance.server.errors import FatalError
from nstance.telemetry import loop_lag
from support.eventually import eventually


async def test_a_part_that_dies_gives_the_lease_back_and_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor restarts it, and a standby need not wait: nothing runs on half alive."""
    broken = asyncio.Event()

    async def dies(*_: object) -> None:
        await broken.wait()
        raise RuntimeError("a bug")

    monkeypatch.setattr(loop_lag, "measure", dies)
    async with World(tmp_path) as world:
        server = await world.start()
        broken.set()
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(server.task, SECONDS)
        assert lease.decode(world.store.contents()[storage_keys.lease(SHARD)]).free


async def test_one_that_cannot_run_can_be_stopped_while_it_waits_to_exit(tmp_path: Path) -> None:
    """The signal comes after `run` has failed: the pause before the exit ends at once."""
    async with World(tmp_path, config()) as world:
        with pytest.raises(FatalError, match="encryption key"):  # it is not set
            await world.start(insecure_dev=False)
        server = world.servers["a"].server
        server.stop()
        await asyncio.wait_for(server.pause(3600.0), SECONDS)


async def test_an_orderly_stop_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    """Storage takes no lease any more, so that it cannot be given back."""
    async with World(tmp_path, config(shutdown_timeout="1s")) as world:
        server = await world.start()

        def fate(verb: Verb, key: str) -> Fate:
            return Fate(before=3600.0) if key == storage_keys.lease(SHARD) else Fate()

        world.fate = fate
        server.server.stop()
        with pytest.raises(FatalError, match=r"took longer than 1 s \(shard.shutdown_timeout\)"):
            await asyncio.wait_for(server.task, SECONDS)


async def test_an_effect_that_cannot_be_started_ends_the_term_and_the_next_one_makes_the_vm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path, config(groups={"acme": {"web": {"template": "web", "size": 0}}})) as world:
        server = await world.start()

        def act(effect: object, instance: object, posted: object) -> None:
            raise RuntimeError("a bug")

        server.shard._hooks = dataclasses.replace(server.shard._hooks, start_effect=act)
        first = server.shard.term
        world.configure(config(groups={"acme": {"web": {"template": "web", "size": 1}}}))
        await server.active_config.refresh()
        await eventually(first.ended.is_set)
        assert "failed to start CreateVm" in first.why
        assert "a bug" in first.why
        assert any(r.levelno == logging.ERROR and r.exc_info for r in caplog.records)
        await eventually(lambda: server.lead is not None and server.lead.shard.term is not first)
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"])
        assert len(world.cloud.vms()) == 1
