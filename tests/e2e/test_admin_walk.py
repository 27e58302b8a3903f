"""A walk with the command line: one dynamic group from 0 to 20 to 3, changed, rotated, paused, broken and healed, on real
servers and agents. Each step must be seen in `events` with its reason."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from e2e.processes import KEY, ServerProcess, ShardWorld, settings, shard_world
from nstance.admin import main
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATIENCE = "4m"  # it ends a hang, it measures nothing


@dataclass
class Terminal:
    environment: dict[str, str]

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(main.root, list(words), env=self.environment)

    def ok(self, *words: str) -> Result:
        result = self(*words)
        assert result.exit_code == 0, result.output
        return result

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "-o", "json").stdout)

    def settle(self) -> dict[str, Any]:
        """Wait until the group is stable, and show it."""
        self.ok("wait", "walk", "--within", PATIENCE)
        shown: dict[str, Any] = self.json("group", "show", "walk")
        assert shown["actual_size"] == shown["ready_size"] == shown["size"]
        return shown

    def instances(self) -> set[str]:
        return {each["instance_id"] for each in self.json("instance", "list", "--group", "walk")}


@dataclass
class Since:
    """The events of one step."""

    terminal: Terminal
    seen: set[str]

    def reasons(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for event in self.terminal.json("events", "--group", "walk", "--limit", "1000"):
            if json.dumps(event) not in self.seen:
                counts[event["reason"]] = counts.get(event["reason"], 0) + 1
                assert event["message"]
                self.seen.add(json.dumps(event))
        return counts


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    with shard_world(tmp_path) as made:
        made.configure(settings(made, idle={"template": "plain", "size": 0}))
        yield made


def open_terminal(world: ShardWorld, server: ServerProcess) -> Terminal:
    identity = world.home / "identity"
    storage = {
        "NSTANCE_ADMIN_STORAGE_PROVIDER": "file",
        "NSTANCE_ADMIN_STORAGE_BUCKET": str(world.bucket),
        "NSTANCE_ENCRYPTION_KEY": KEY,
    }
    terminal = Terminal(
        {
            **storage,
            "NSTANCE_ADMIN_SERVERS": f"{world.name}=127.0.0.1:{server.ports['operator']}",
            "NSTANCE_ADMIN_SHARD": world.name,
            "NSTANCE_ADMIN_IDENTITY_DIR": str(identity),
        }
    )
    terminal.ok("cluster", "register-operator", "--output-dir", str(identity))
    return terminal


def listings(server: ServerProcess) -> float:
    """How often the server has looked at what the provider has."""
    _, text = server.get("/metrics")
    found = re.findall(r'^nstance_provider_requests_total\{[^}]*op="list"[^}]*\} (\S+)$', text, re.MULTILINE)
    return sum(map(float, found))


def counts_at_each_slot(terminal: Terminal, start: int) -> tuple[list[int], list[int]]:
    """How many instances of the group ran, and how many were on their way, after each slot of the journal from `start`
    on: every state that the shard was ever in."""
    states: dict[str, str] = {}
    running, coming = [], []
    for line in terminal.ok("cluster", "journal", "--from", "1", "-o", "json").stdout.splitlines():
        slot = json.loads(line)
        for entry in slot["entries"]:
            for change in entry["changes"]:
                if change["group"] == "default/walk" or change["instance"] in states:
                    states[change["instance"]] = change["state"]
        if slot["slot"] >= start:
            running.append(sum(state == "running" for state in states.values()))
            coming.append(sum(state in ("pending", "starting") for state in states.values()))
    return running, coming


def last_slot(terminal: Terminal) -> int:
    slot: int = json.loads(terminal.ok("cluster", "journal", "--limit", "1", "-o", "json").stdout)["slot"]
    return slot


def test_the_walk(world: ShardWorld) -> None:
    server = world.start("a")
    wait_for("it leads", server.acts)
    terminal = open_terminal(world, server)
    since = Since(terminal, set())

    # A dynamic group of nothing.
    terminal.ok("group", "create", "walk", "--template", "plain", "--size", "0", "--drain-timeout", "0")
    assert terminal.settle()["size"] == 0
    assert since.reasons() == {"config": 1}

    # 0 → 20, as the plan said.
    plan = terminal.json("group", "scale", "walk", "20", "--dry-run")
    assert [(each["action"], each["reason"]) for each in plan] == [("create", "scale-up")] * 20
    assert terminal.instances() == set()
    terminal.ok("group", "scale", "walk", "20")
    assert terminal.settle()["ready_size"] == 20
    grown = since.reasons()
    assert (grown["scale-up"], grown["created"], grown["registered"]) == (20, 20, 20)

    # 20 → 3.
    terminal.ok("group", "scale", "walk", "3")
    terminal.settle()
    three = terminal.instances()
    assert len(three) == 3
    shrunk = since.reasons()
    assert shrunk["scale-down"] == 17
    assert shrunk["deleted"] == 17

    # A var: files arrive, no VM is replaced.
    wait_for("the first files are there", lambda: all(motd(world, each).startswith("hello") for each in three))
    plan = terminal.json("group", "update", "walk", "--var", "word=goodbye", "--dry-run")
    assert [each["action"] for each in plan] == ["push-files"] * 3
    terminal.ok("group", "update", "walk", "--var", "word=goodbye")
    wait_for("the new files are there", lambda: all(motd(world, each).startswith("goodbye") for each in three))
    terminal.settle()
    assert terminal.instances() == three
    assert since.reasons() == {"config": 1}

    # The instance type: rotated one by one, never below the size.
    before = last_slot(terminal)
    plan = terminal.json("group", "update", "walk", "--instance-type", "large", "--dry-run")
    assert {each["reason"] for each in plan} == {"replace", "config-drift"}
    terminal.ok("group", "update", "walk", "--instance-type", "large")
    assert terminal.settle()["instance_type"] == "large"
    rotated = terminal.instances()
    assert len(rotated) == 3
    assert not rotated & three
    running, coming = counts_at_each_slot(terminal, before)
    assert min(running) == 3
    assert max(coming) == 1
    turned = since.reasons()
    assert turned["config-drift"] == 3
    assert turned["deleted"] == 3

    # Paused: three die, and nothing is done about it.
    terminal.ok("group", "pause", "walk")
    looked = listings(server)
    for each in rotated:
        world.kill_agent(each)
    wait_for("the server has lost them", lambda: server.metric("nstance_agents_connected") == 0)
    wait_for("it has looked twice since", lambda: listings(server) >= looked + 2)
    assert terminal.instances() == rotated
    assert re.search(r"● walk +0/3 ready, 3 without agent, paused", terminal.ok("status").stdout)
    stood = since.reasons()
    assert not stood.keys() & {"replace", "created", "deleted", "scale-up"}

    # Resumed: three are replaced.
    terminal.ok("group", "resume", "walk")
    terminal.settle()
    healed = terminal.instances()
    assert len(healed) == 3
    assert not healed & rotated
    mended = since.reasons()
    assert mended["config"] == 1
    assert mended["gone"] == 3
    assert mended["created"] == 3
    status = terminal.ok("status").stdout
    assert "2/2 groups healthy, 3/3 instances ready" in status
    assert "resolved" in status


def motd(world: ShardWorld, instance: str) -> str:
    path = world.home_of(instance) / "recv" / "motd"
    return path.read_text() if path.exists() else ""


def test_two_shards_side_by_side(tmp_path: Path) -> None:
    """One bucket, two shards: both answer, what lives in one is found there, and one's end does not hide the other."""
    with shard_world(tmp_path / "one") as one:
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "bucket").symlink_to(one.bucket)
        with shard_world(tmp_path / "two") as two:
            two.name = "two"
            first, second = start(one), start(two)
            terminal = open_terminal(one, first)
            terminal.environment["NSTANCE_ADMIN_SERVERS"] += f",two=127.0.0.1:{second.ports['operator']}"
            terminal.ok("wait", "--all-shards", "--within", PATIENCE)
            groups = terminal.json("group", "list", "--all-shards")
            assert [(each["shard"], each["ready_size"]) for each in groups] == [("dev", 1), ("two", 1)]
            here, there = terminal.json("instance", "list", "--all-shards")
            for each in (here, there):
                assert terminal.json("instance", "show", each["instance_id"], "--all-shards")["shard"] == each["shard"]
            terminal.ok("group", "create", "extra", "--template", "plain", "--size", "0", "--shard", "two")
            assert [each["shard"] for each in terminal.json("group", "show", "extra", "--all-shards")] == ["two"]
            partly = terminal("group", "scale", "extra", "0", "--all-shards")
            assert partly.exit_code == 1
            assert "shard dev: there is no group extra" in partly.stderr
            assert re.search(r"^two +extra", partly.stdout, re.MULTILINE)
            assert {each["shard"] for each in terminal.json("events", "--all-shards")} == {"dev", "two"}
            second.kill()
            tree = terminal("status", "--all-shards")
            assert tree.exit_code == 1
            assert "✓ shard dev" in tree.stdout
            assert "✗ shard two  does not answer" in tree.stdout


def start(world: ShardWorld) -> ServerProcess:
    world.configure(settings(world, web={"template": "plain", "size": 1}))
    server = world.start("a")
    wait_for("it leads", server.acts)
    return server
