"""A shard of real processes is broken in every way that its first promise names, and stays whole."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.processes import OFFSET, ServerProcess, ShardWorld, settings, shard_world
from nstance.model.instance import Cause, State
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    with shard_world(tmp_path) as made:
        made.configure(settings(made))
        yield made


@pytest.fixture
def pair(world: ShardWorld) -> tuple[ServerProcess, ServerProcess]:
    """A leader with a group of three and a standby that the lease names."""
    leader = world.start("a")
    wait_for("a leads", lambda: leader.acts())
    standby = world.start("b", offset=OFFSET)
    wait_for("the group is whole", world.running(3))
    wait_for("the standby is a member", lambda: (leader.leadership() or {}).get("members"))
    wait_for("all agents are connected", lambda: leader.metric("nstance_agents_connected") == 3)
    return leader, standby


def same_instances(world: ShardWorld, before: dict[str, object]) -> bool:
    alive = {i for i, r in world.records().items() if r.state not in (State.DELETED, State.FAILED)}
    return alive == set(before)


def test_a_killed_agent_is_replaced(world: ShardWorld) -> None:
    """F13 in its local form: the VM is gone, the group heals."""
    world.start("a")
    before = wait_for("the group is whole", world.running(3))
    victim = sorted(before)[0]
    world.kill_agent(victim)
    after = wait_for("a replacement runs", lambda: (r := world.running(3)()) and victim not in r and r)
    assert len(set(after) - set(before)) == 1
    assert world.records()[victim].cause is not None
    motd = wait_for(
        "its files are there",
        lambda: next(
            (p.read_text() for i in set(after) - set(before) if (p := world.home_of(i) / "recv/motd").exists()), None
        ),
    )
    assert motd.startswith("hello tst-")


def test_leader_killed(world: ShardWorld, pair: tuple[ServerProcess, ServerProcess]) -> None:
    """F14: the standby leads, the agents come back, nothing is replaced."""
    leader, standby = pair
    before = world.records()
    leader.kill()
    wait_for("the standby acts", standby.acts)
    wait_for("all agents are back", lambda: standby.metric("nstance_agents_connected") == 3)
    assert same_instances(world, before)
    # It really leads: it replaces what dies now.
    victim = sorted(before)[0]
    world.kill_agent(victim)
    wait_for("a replacement runs", lambda: (r := world.running(3)()) and victim not in r and r)


def test_leader_paused_and_resumed(world: ShardWorld, pair: tuple[ServerProcess, ServerProcess]) -> None:
    """F15: a paused leader that wakes does nothing and stands by."""
    leader, standby = pair
    before = world.records()
    leader.pause()
    wait_for("the standby acts", standby.acts)
    leader.resume()
    wait_for("the old leader closed its ports", lambda: not leader.acts())
    wait_for("all agents are at the new leader", lambda: standby.metric("nstance_agents_connected") == 3)
    assert same_instances(world, before)
    assert leader.leadership() is None
    lease = wait_for("the new leader shows its lease", standby.leadership)
    assert lease["holder"]["server"] == "b"
    wait_for("the old leader is a member now", lambda: (standby.leadership() or {}).get("members"))


def test_orderly_stop(world: ShardWorld, pair: tuple[ServerProcess, ServerProcess]) -> None:
    leader, standby = pair
    before = world.records()
    assert leader.stop() == 0
    wait_for("the standby acts", standby.acts)
    wait_for("all agents are back", lambda: standby.metric("nstance_agents_connected") == 3)
    assert same_instances(world, before)


def test_delete_everything_but_the_bucket(world: ShardWorld) -> None:
    """Servers, caches, instances and their processes are gone: the bucket brings the group back."""
    first = world.start("a")
    before = wait_for("the group is whole", world.running(3))
    first.kill()
    for instance in before:
        process = world.agent(instance)
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    shutil.rmtree(world.instances_dir)
    shutil.rmtree(world.home / "cache-a")
    world.start("b")
    wait_for("other instances run", lambda: (r := world.running(3)()) and not set(r) & set(before))
    assert all(world.records()[gone].cause is Cause.GONE for gone in before)


def test_both_servers_killed_and_started_again(world: ShardWorld, pair: tuple[ServerProcess, ServerProcess]) -> None:
    """Agents outlive all servers; the server that starts first finds them again."""
    before = world.records()
    for server in pair:
        server.kill()
    again = world.start("c")
    wait_for("it leads", lambda: again.acts())
    wait_for("all agents are back", lambda: again.metric("nstance_agents_connected") == 3)
    assert same_instances(world, before)


def test_a_full_disk_costs_the_leadership_and_not_the_process(world: ShardWorld) -> None:
    """F28, F41: the bucket's disk takes nothing more; afterwards it takes something again."""
    leader = world.start("a")
    before = wait_for("the group is whole", world.running(3))
    _, hard = resource.prlimit(leader.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(leader.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    wait_for("it stops leading", lambda: not leader.acts())
    assert leader.process.poll() is None
    resource.prlimit(leader.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_for("it leads again", leader.acts)
    wait_for("all agents are back", lambda: leader.metric("nstance_agents_connected") == 3)
    assert same_instances(world, before)
    assert leader.process.poll() is None


def test_a_server_whose_folder_of_instances_is_away_replaces_nobody(world: ShardWorld) -> None:
    """As of a disk that is not mounted: the server starts, says so, and goes on when it is there."""
    server = world.start("a")
    before = wait_for("the group is whole", world.running(3))
    server.stop()
    away = world.instances_dir.with_name("away")
    world.instances_dir.rename(away)
    world.instances_dir.mkdir()
    try:
        server = world.start("a")
        wait_for("it says so", lambda: "mount its disk, or correct option 'dir'" in server.log.read_text())
        wait_for("all agents are connected", lambda: server.metric("nstance_agents_connected") == 3)
        victim = sorted(before)[0]
        os.kill(int(json.loads((away / victim / "process.json").read_text())["pid"]), signal.SIGKILL)
        wait_for("it is missed", lambda: server.metric("nstance_agents_connected") == 2)
        wait_for("three listings failed", lambda: "does not list the VMs" in server.log.read_text())
        assert same_instances(world, before)
        assert list(world.instances_dir.iterdir()) == [], "a mount point stays empty"
    finally:
        shutil.rmtree(world.instances_dir)
        away.rename(world.instances_dir)
    after = wait_for("a replacement runs", lambda: (r := world.running(3)()) and victim not in r and r)
    assert len(set(after) - set(before)) == 1
