"""Real tmux, each test with its own tmux server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts import provider_worlds as worlds
from contracts.provider_worlds import LocalWorld, marked, one, request, scope, tick_until
from nstance.model.ids import InstanceId
from nstance.providers import port, tmux
from nstance.providers.port import Status
from support.eventually import eventually

HERE = scope()


@pytest.fixture
async def world() -> AsyncIterator[LocalWorld]:
    async with worlds.tmux_world() as made:
        yield made


def call(world: LocalWorld, *arguments: str) -> str:
    socket = str(world.root.parent / "tmux")
    return subprocess.run(["tmux", "-S", socket, *arguments], capture_output=True, text=True, check=True).stdout


def node_path(world: LocalWorld, id: InstanceId) -> Path:
    return world.root.parent / "dev-k8s" / "nodes" / f"{id}.json"


async def status_is(world: LocalWorld, door: port.Instances, id: InstanceId, wanted: Status) -> None:
    async def holds() -> bool:
        return (await door.get(id, None)).status is wanted

    await tick_until(world, holds)


async def test_a_window_per_instance(world: LocalWorld) -> None:
    door = world.door(HERE)
    made = await asyncio.gather(*(door.create(request()) for _ in range(4)))
    assert all([await one(world, vm.id) for vm in made])
    windows = call(world, "list-windows", "-t", "test", "-F", "#{window_name} #{pane_pid}").splitlines()
    assert set(windows) == {f"nstance-agent-{vm.id} {marked(vm.id)[0]}" for vm in made}
    assert (world.root / made[0].id / "identity" / "nonce.jwt").exists()
    assert await door.delete(made[0].id, None) is Status.DELETED
    assert made[0].id not in call(world, "list-windows", "-t", "test")


async def test_a_window_closed_by_hand_is_a_vm_that_runs_no_more(world: LocalWorld) -> None:
    door = world.door(HERE)
    vm, other = await door.create(request()), await door.create(request())
    call(world, "kill-window", "-t", f"test:nstance-agent-{vm.id}")
    await status_is(world, door, vm.id, Status.STOPPED)
    assert (await door.get(other.id, None)).status is Status.RUNNING
    assert await door.delete(vm.id, None) is Status.DELETED
    assert not node_path(world, vm.id).exists()


async def test_windows_that_stay_open_are_closed_with_the_instance(world: LocalWorld) -> None:
    """Some people's tmux keeps windows whose program has ended."""
    door = world.door(HERE)
    await door.create(request())
    call(world, "set-option", "-g", "remain-on-exit", "on")
    vm = await door.create(request())
    assert await door.delete(vm.id, None) is Status.DELETED
    assert vm.id not in call(world, "list-windows", "-t", "test")


async def test_what_an_agent_says_at_once_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the next call of tmux takes. Found on a busy machine: the log was laid after the window was open."""
    calls = tmp_path / "tmux"
    real = shutil.which("tmux")
    calls.write_text(f'#!/bin/sh\ncase "$*" in *new-*) ;; *) sleep 1 ;; esac\nexec {real} "$@"\n')
    calls.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with worlds.tmux_world(["sh", "-c", "echo said at once"]) as world:
        door = world.door(HERE)
        for _ in range(2):  # the first one with a new session
            vm = await door.create(request())

            async def holds(id: InstanceId = vm.id) -> bool:
                return "said at once" in await door.console_output(id, None)

            await tick_until(world, holds)


async def test_a_missing_session_and_server_are_made_anew(world: LocalWorld) -> None:
    door = world.door(HERE)
    first = await door.create(request())
    call(world, "kill-server")
    await status_is(world, door, first.id, Status.STOPPED)
    second = await door.create(request())
    assert second.status is Status.RUNNING
    call(world, "new-session", "-d", "-s", "other")
    call(world, "kill-session", "-t", "test")
    await status_is(world, door, second.id, Status.STOPPED)
    assert (await door.create(request())).status is Status.RUNNING
    assert await door.delete(first.id, None) is Status.DELETED
    assert "other" in call(world, "list-sessions")


async def test_the_node_of_an_instance(world: LocalWorld) -> None:
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    path = node_path(world, vm.id)
    node = json.loads(path.read_bytes())
    assert (node["apiVersion"], node["kind"], node["metadata"]["name"]) == ("v1", "Node", vm.id)
    assert node["spec"]["providerID"] == vm.provider_id == f"dev:///a/{vm.id}"
    assert node["metadata"]["labels"]["nstance.dev/instance-id"] == vm.id
    assert node["metadata"]["labels"]["nstance.dev/group"] == "workers"
    assert node["metadata"]["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert [(each["type"], each["status"]) for each in node["status"]["conditions"]] == [("Ready", "True")]
    assert {"type": "InternalIP", "address": "127.0.0.1"} in node["status"]["addresses"]
    assert node["status"]["capacity"]["cpu"]
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no half-written file stays"

    node["spec"]["unschedulable"] = True
    path.write_text(json.dumps(node))
    await door.create(asked)
    assert json.loads(path.read_bytes())["spec"]["unschedulable"], "a repeated create does not undo a cordon"
    assert await door.delete(vm.id, None) is Status.DELETED
    assert not path.exists()


async def test_a_lost_node_comes_back_and_a_strangers_stays(world: LocalWorld) -> None:
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    path = node_path(world, vm.id)
    path.unlink()
    await door.create(asked)
    assert path.exists()
    path.write_text(json.dumps({"spec": {"providerID": "kind://somebody"}}))
    assert await door.delete(vm.id, None) is Status.DELETED
    assert path.exists()


async def test_the_tmux_server_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that our first window starts keeps its environment for all later windows."""
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "thisisatest32bytekey123456789012")
    async with worlds.tmux_world() as world:
        door = world.door(HERE)
        await door.create(request())
        assert "thisisatest" not in call(world, "show-environment", "-g")
        # Nor does an agent see what somebody else's tmux server knows.
        call(world, "set-environment", "-g", "NSTANCE_ENCRYPTION_KEY", "thisisatest")
        vm = await door.create(request())
        assert await one(world, vm.id)
        (pid,) = marked(vm.id)
        environment = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
        assert b"thisisatest" not in environment
        assert b"NSTANCE_PROVIDER=none" in environment


async def test_the_agent_starts_anew_when_its_code_changes(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("import signal, os\nprint('one', os.getpid(), flush=True)\nsignal.pause()\n")
    command = tmux.reloading([sys.executable, "-I", "-S", str(code)], tmp_path)
    async with worlds.tmux_world(command) as world:
        door = world.door(HERE)
        vm = await door.create(request())

        async def says(text: str) -> bool:
            return text in await door.console_output(vm.id, None)

        await tick_until(world, lambda: says("one"))

        async def reloaded() -> bool:
            # Written again and again: the watcher may have begun to watch only after the first agent spoke.
            code.write_text("import signal, os\nprint('two', os.getpid(), flush=True)\nsignal.pause()\n")
            return await says("two")

        await eventually(reloaded, interval=0.2)
        assert (await door.get(vm.id, None)).status is Status.RUNNING
        assert len(marked(vm.id)) >= 2, "the watcher and the agent"
        assert await door.delete(vm.id, None) is Status.DELETED
        assert marked(vm.id) == []


def test_in_a_checkout_the_agent_reloads() -> None:
    command = tmux.agent_command()
    assert command[:3] == [sys.executable, "-m", "watchfiles"]
    assert any("nstance.agent.main" in part for part in command)
    assert Path(command[-1]).name == "src"
