"""Backup and restore with real servers and agents: what is newer than the backup survives its restore."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.processes import ShardWorld, settings, shard_world
from e2e.test_admin_walk import Terminal, open_terminal
from nstance.providers import processes
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATIENCE = "4m"  # it ends a hang, it measures nothing


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    with shard_world(tmp_path) as made:
        made.configure(settings(made, idle={"template": "plain", "size": 0}))
        yield made


def alive(world: ShardWorld) -> dict[str, int]:
    """The agents that run, by instance."""
    found = {home.name: world.agent(home.name) for home in world.instances_dir.iterdir()}
    return {id: process.pid for id, process in found.items() if process is not None and processes.is_running(process)}


def unknown(terminal: Terminal) -> set[str]:
    return {vm["instance_id"] for vm in terminal.json("instance", "list", "--unknown")}


def members(terminal: Terminal) -> set[str]:
    return {each["instance_id"] for each in terminal.json("instance", "list", "--group", "web")}


def page() -> list[list[list[str]]]:
    """The commands of docs/backup.md, block by block, as words."""
    text = (Path(__file__).parents[2] / "docs" / "backup.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [[shlex.split(line.removeprefix("$ nstance-admin ")) for line in block.splitlines()] for block in blocks]


def test_three_backup_seven_restore(world: ShardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story of the issue, with the commands of the page."""
    backing_up, restoring, deciding = page()
    monkeypatch.chdir(world.home)
    server = world.start("one")
    wait_for("a leader", world.leader)
    terminal = open_terminal(world, server)
    terminal.ok("group", "create", "web", "--template", "plain", "--size", "3")
    terminal.ok("wait", "web", "--within", PATIENCE)
    old = set(alive(world))
    backup = world.home / "nstance.backup"
    for words in backing_up:
        assert terminal.json(*words)["objects"] > 5
    assert backup.stat().st_mode & 0o777 == 0o600

    terminal.ok("group", "scale", "web", "7")
    terminal.ok("wait", "web", "--within", PATIENCE)
    every = alive(world)
    assert len(every) == 7

    refused = terminal("cluster", "restore", str(backup), "--overwrite")
    assert refused.exit_code == 1
    assert "leads shard dev: stop its servers first" in refused.stderr
    assert server.stop() == 0
    assert "--overwrite" in terminal("cluster", "restore", str(backup)).stderr
    before = {path: path.read_bytes() for path in world.bucket.rglob("*") if path.is_file()}
    tried, done = restoring
    terminal.ok(*tried)
    assert {path: path.read_bytes() for path in world.bucket.rglob("*") if path.is_file()} == before
    assert terminal.json(*done)["removed"] > 0

    server = world.start("one")
    leader = wait_for("a leader", world.leader)
    lease = leader.leadership()
    assert lease is not None
    assert lease["epoch"] > 1  # no epoch is used twice
    wait_for("four VMs that no record knows", lambda: len(unknown(terminal)) == 4)
    assert unknown(terminal) == set(every) - old
    wait_for("the metric", lambda: server.metric("nstance_unknown_vms") == 4)
    shown = terminal.ok("status").stdout
    assert "4 unknown VMs held" in shown
    assert alive(world) == every, "a healthy VM was deleted"

    for words in deciding:
        if "ID" in words:
            terminal.ok("wait", "web", "--within", PATIENCE)  # three of the four come back, none is made
        last = sorted(unknown(terminal))[-1:]
        terminal.ok(*(last[0] if word == "ID" else word for word in words))
    gone = set(last)
    wait_for("the end of the last one", lambda: set(alive(world)) == set(every) - gone)
    assert alive(world) == {id: pid for id, pid in every.items() if id not in gone}
    wait_for("the end of its record", lambda: members(terminal) == set(every) - gone)
    assert not unknown(terminal)
