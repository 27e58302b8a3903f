"""Somebody copies an instance's identity directory and runs a second agent with it."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import ShardWorld, settings, shard_world
from nstance.model.instance import State
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLONED = 'nstance_cloned_instances{group="web",tenant="default"}'
SECURITY = 'nstance_decisions_total{reason="security"}'


def config(world: ShardWorld, **identity: str) -> dict[str, Any]:
    made = settings(world, web={"template": "plain", "size": 2})
    made["shard"]["identity"] = identity
    return made


@contextmanager
def copy_of(world: ShardWorld, instance: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A second agent with the identity of this one, as if on another machine."""
    original = world.home_of(instance)
    shutil.copytree(original, home)
    record = json.loads((home / "instance.json").read_text())
    environment = {name: value.replace(str(original), str(home)) for name, value in record["env"].items()}
    with (home / "copy.log").open("wb") as log:
        process = subprocess.Popen(record["command"], env=environment, cwd=home, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    with shard_world(tmp_path) as made:
        yield made


def test_the_copy_is_noticed(world: ShardWorld, tmp_path: Path) -> None:
    world.configure(config(world))
    server = world.start("a")
    before = set(wait_for("two instances run", world.running(2)))
    wait_for("both are connected", lambda: server.metric("nstance_agents_connected") == 2)
    victim = min(before)
    assert server.metric(CLONED) == 0
    with copy_of(world, victim, tmp_path / "copy"):
        wait_for("the copy is noticed", lambda: server.metric(CLONED) == 1)
        wait_for("the event", lambda: (server.metric(SECURITY) or 0) >= 1)
    assert "two agents use its identity at the same time" in server.log.read_text()
    assert {id for id, record in world.records().items() if record.state is State.RUNNING} == before


def test_the_instance_is_replaced_if_that_is_wished(world: ShardWorld, tmp_path: Path) -> None:
    world.configure(config(world, on_clone="replace"))
    server = world.start("a")
    before = set(wait_for("two instances run", world.running(2)))
    wait_for("both are connected", lambda: server.metric("nstance_agents_connected") == 2)
    victim = min(before)
    with copy_of(world, victim, tmp_path / "copy"):

        def replaced() -> bool:
            records = world.records()
            running = {id for id, record in records.items() if record.state is State.RUNNING}
            return records[victim].state is State.DELETED and len(running) == 2 and victim not in running

        wait_for("another one took its place", replaced)
        after = {id for id, record in world.records().items() if record.state is State.RUNNING}
        assert after > before - {victim}
