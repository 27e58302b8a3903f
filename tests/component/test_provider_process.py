"""Real agents' processes (a stand-in that waits): what is around them, and what crashes do to them."""

import asyncio
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from contracts import provider_worlds as worlds
from contracts.provider_worlds import LocalWorld, marked, request, scope, tick_until
from nstance.clock import SystemClock
from nstance.model.ids import InstanceId, Kind, ProviderId, instance_id, uuid7
from nstance.providers import errors, instance_dirs, launch, local, port, processes
from nstance.providers.port import Status
from support.eventually import eventually

HERE = scope()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.fixture
async def world() -> AsyncIterator[LocalWorld]:
    async with worlds.process_world() as made:
        yield made


def run(command: list[str], **pipes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, **pipes}, text=True)  # type: ignore[call-overload,no-any-return]


async def test_the_home_of_an_instance(world: LocalWorld) -> None:
    vm = await world.door(HERE).create(request(nonce="secret.nonce", ca_certificate="the CA"))
    home = world.root / vm.id
    assert {path.name for path in home.iterdir()} == {
        *("identity", "keys", "recv"),
        *("instance.json", "process.json", "agent.pid", "agent.log"),
    }
    assert (home / "identity/ca.crt").read_text() == "the CA"
    assert (home / "identity/nonce.jwt").read_text() == "secret.nonce"
    assert stat.S_IMODE((home / "identity/nonce.jwt").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "identity").stat().st_mode) == 0o700
    assert "secret.nonce" not in (home / "instance.json").read_text()
    assert marked(vm.id) == [int((home / "agent.pid").read_text())]
    record = json.loads((home / "instance.json").read_bytes())
    tags = {name: record[name] for name in ("cluster", "shard", "tenant", "group", "kind", "template", "created")}
    assert tags == {
        "cluster": "one",
        "shard": "a",
        "tenant": "default",
        "group": "workers",
        "kind": "knc",
        "template": "worker",
        "created": 1_700_000_000.0,
    }


async def test_the_agents_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what 6-agent.md names and an allow-list: no secret of the server's."""
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "thisisatest32bytekey123456789012")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    show = python("import json, os, signal; print(json.dumps(dict(os.environ)), flush=True); signal.pause()")
    async with worlds.process_world(show) as world:
        door = world.door(HERE)
        vm = await door.create(request(report_interval=0.25))

        async def holds() -> bool:
            return (await door.console_output(vm.id, None)).endswith("}\n")

        await tick_until(world, holds)
        seen = json.loads(await door.console_output(vm.id, None))
        home = world.root / vm.id
        ours = {name: value for name, value in seen.items() if name.startswith("NSTANCE_")}
        assert ours == {
            "NSTANCE_SERVER_REGISTRATION_ADDR": "127.0.0.1:8992",
            "NSTANCE_SERVER_AGENT_ADDR": "127.0.0.1:8994",
            "NSTANCE_INSTANCE_ID": vm.id,
            "NSTANCE_INSTANCE_KIND": "knc",
            "NSTANCE_INSTANCE_HOSTNAME": vm.id,
            "NSTANCE_INSTANCE_FQDN": vm.id,
            "NSTANCE_INSTANCE_IPV4": "127.0.0.1",
            "NSTANCE_IDENTITY_DIR": str(home / "identity"),
            "NSTANCE_KEYS_DIR": str(home / "keys"),
            "NSTANCE_RECV_DIR": str(home / "recv"),
            "NSTANCE_REPORT_INTERVAL": "250ms",
            "NSTANCE_PROVIDER": "none",
        }
        assert seen["LANG"] == "C.UTF-8"
        assert "AWS_SECRET_ACCESS_KEY" not in seen


async def test_the_agent_is_nobodys_child(world: LocalWorld) -> None:
    vm = await world.door(HERE).create(request())
    (pid,) = marked(vm.id)
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, pid), "its own process group and session"
    with pytest.raises(ChildProcessError):
        await asyncio.to_thread(os.waitpid, pid, os.WNOHANG)


SERVER = """
import asyncio, json, sys
from pathlib import Path
from nstance.model.ids import *
from nstance.providers import port, process
scope = port.Scope(cluster=ClusterId("one"), shard=ShardId("a"))
async def main():
    provider = process.ProcessProvider(scope, dir=Path(sys.argv[1]), command=json.loads(sys.argv[3]))
    await provider.open_folder(())
    print("ready", flush=True)
    await provider.create(port.CreateRequest(id=InstanceId(sys.argv[2]), tenant=TenantId("default"),
        group=GroupName("workers"), kind=Kind("knc"), template="worker", created=1.0))
    print("made", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.04, None])
async def test_a_server_killed_while_it_creates(world: LocalWorld, delay: float | None) -> None:
    """A real kill -9 at different moments: the repeat finds or finishes it, and there is one agent."""
    asked = request(created=1.0)
    arguments = [sys.executable, "-c", SERVER, str(world.root), asked.id, json.dumps(worlds.WAITS)]
    server = run(arguments, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert await asyncio.to_thread(server.stdout.readline) == "ready\n"
    if delay is None:
        assert await asyncio.to_thread(server.stdout.readline) == "made\n"
    else:
        await asyncio.sleep(delay)  # not a wait for something: the moment of the crash
    server.kill()
    server.wait()
    server.stdout.close()
    door = world.door(HERE)
    made = await door.create(asked)
    assert made.status is Status.RUNNING
    assert len(marked(asked.id)) == 1
    assert await door.delete(asked.id, made.provider_id) is Status.DELETED
    assert marked(asked.id) == []


async def test_a_crash_between_the_home_and_the_start(world: LocalWorld) -> None:
    """Shown as pending; the repeat starts it."""
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    world.end_by_hand(vm.id)
    (world.root / vm.id / "process.json").unlink()
    assert [each.status for each in await door.list()] == [Status.PENDING]
    assert (await door.create(asked)).status is Status.RUNNING
    assert len(marked(vm.id)) == 1


async def test_of_many_launchers_one_becomes_the_agent(world: LocalWorld) -> None:
    """Even without the lock there are never two agents."""
    vm = await world.door(HERE).create(request())
    home = world.root / vm.id
    world.end_by_hand(vm.id)
    (home / "process.json").unlink()
    launchers = [run(launch.command(home), stderr=subprocess.DEVNULL) for _ in range(6)]
    await eventually(lambda: sum(each.poll() is None for each in launchers) == 1)
    (alive,) = [each for each in launchers if each.poll() is None]
    assert json.loads((home / "process.json").read_bytes())["pid"] == alive.pid
    alive.kill()
    alive.wait()


STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
PARENT = (
    "import signal, subprocess, sys; "
    "subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import signal; signal.pause()']); "
    "print('up', flush=True); signal.pause()"
)


@pytest.mark.parametrize("code", [STUBBORN, PARENT], ids=["ignores SIGTERM", "leaves a child"])
async def test_delete_ends_everything(code: str) -> None:
    """Deleted means positively dead."""
    async with worlds.process_world(python(code)) as world:
        door = world.door(HERE)
        vm = await door.create(request())

        async def holds() -> bool:
            return "up" in await door.console_output(vm.id, None)

        await tick_until(world, holds)
        assert await door.delete(vm.id, None) is Status.DELETED
        assert marked(vm.id) == []


async def test_delete_ends_a_stopped_process_and_what_a_dead_one_left(world: LocalWorld) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    os.kill(marked(vm.id)[0], signal.SIGSTOP)
    assert (await door.get(vm.id, None)).status is Status.RUNNING
    assert await door.delete(vm.id, None) is Status.DELETED
    assert marked(vm.id) == []


async def test_a_reused_process_number_is_not_the_agent(world: LocalWorld) -> None:
    """The pid alone would show a dead agent as running, and deleting it would kill a stranger."""
    door = world.door(HERE)
    vm = await door.create(request())
    world.end_by_hand(vm.id)
    stranger = run(worlds.WAITS)
    try:
        past = json.dumps({"pid": stranger.pid, "start": "another boot:1"})
        (world.root / vm.id / "process.json").write_text(past)
        assert (await door.get(vm.id, None)).status is Status.STOPPED
        assert await door.delete(vm.id, None) is Status.DELETED
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_an_unreadable_process_record_is_unknown(world: LocalWorld) -> None:
    """Not stopped, not gone; and nothing is deleted in doubt."""
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    path = world.root / vm.id / "process.json"
    whole = path.read_bytes()
    for body in (b"", b"[]", b'{"pid": 1, "start": "x"}', b'{"pid": true}', b"\xff\xfe"):
        path.write_bytes(body)
        assert [each.status for each in await door.list()] == [Status.UNKNOWN]
        with pytest.raises(errors.PermanentError, match="by hand"):
            await door.delete(vm.id, vm.provider_id)
        with pytest.raises(errors.UnknownOutcomeError):
            await door.create(asked)
    path.write_bytes(whole)
    assert (await door.get(vm.id, None)).status is Status.RUNNING


async def test_foreign_things_stay(world: LocalWorld) -> None:
    """Whatever else lies in the directory is not ours."""
    door = world.door(HERE)
    vm = await door.create(request())
    strange = worlds.fresh_id()
    (world.root / strange).mkdir()
    (world.root / strange / "thesis.txt").write_text("mine")
    (world.root / "notes").mkdir()
    (world.root / "notes" / "a").write_text("b")
    (world.root / "file.txt").write_text("c")
    assert {each.id: each.cluster for each in await door.list()} == {vm.id: "one", strange: None}
    with pytest.raises(errors.PermanentError):
        await door.delete(strange, None)
    with pytest.raises(errors.PermanentError):
        await door.delete(strange, port_id(strange))
    with pytest.raises(errors.UnknownOutcomeError):
        await door.create(request(strange))
    assert await door.delete(vm.id, None) is Status.DELETED
    assert (world.root / strange / "thesis.txt").read_text() == "mine"
    assert {path.name for path in world.root.iterdir() if not path.name.startswith(".")} == {
        strange,
        "notes",
        "file.txt",
    }


def port_id(id: InstanceId) -> port.ProviderId:
    return port.ProviderId(f"process:///a/{id}")


async def test_links_are_not_followed(world: LocalWorld, tmp_path: Path) -> None:
    door = world.door(HERE)
    (tmp_path / "precious").write_text("mine")
    vm = await door.create(request())
    (world.root / vm.id / "recv" / "link").symlink_to(tmp_path)
    assert await door.delete(vm.id, None) is Status.DELETED
    assert (tmp_path / "precious").read_text() == "mine"

    other = await door.create(request())
    home = world.root / other.id
    home.rename(tmp_path / "moved")
    home.symlink_to(tmp_path / "moved")
    assert (await door.get(other.id, None)).status is Status.UNKNOWN
    with pytest.raises(errors.PermanentError):
        await door.delete(other.id, None)
    assert (tmp_path / "moved" / "instance.json").exists()


@pytest.mark.parametrize(
    "id", ["..", "../../etc", "", ".ids", "knc-01", "KNC-01jw51srryegh9snf9cmeh3k4q", "a/b", "x\0"]
)
async def test_bad_ids_reach_no_file(world: LocalWorld, id: str) -> None:
    door, bad = world.door(HERE), InstanceId(id)
    for call in (
        door.get(bad, None),
        door.delete(bad, None),
        door.console_output(bad, None),
        door.create(request(bad or "\n")),
    ):
        with pytest.raises(errors.PermanentError, match="instance ID"):
            await call


async def test_a_missing_program_is_refused_before_anything_is_made() -> None:
    async with worlds.process_world(["/no/such/program"]) as world:
        door = world.door(HERE)
        with pytest.raises(errors.PermanentError, match="/no/such/program"):
            await door.create(request())
        assert await door.list() == []


async def test_a_program_that_fails_at_once_is_a_stopped_vm() -> None:
    async with worlds.process_world(python("raise SystemExit('no configuration')")) as world:
        door = world.door(HERE)
        vm = await door.create(request())

        async def holds() -> bool:
            return (await door.get(vm.id, None)).status is Status.STOPPED

        await tick_until(world, holds)
        assert "no configuration" in await door.console_output(vm.id, None)


async def test_a_full_disk_leaves_nothing(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for the home: nothing was made, and it can be tried again."""
    door, asked = world.door(HERE), request()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(instance_dirs.os, "fsync", full)
        with pytest.raises(errors.UnavailableError, match="no space"):
            await door.create(asked)
    assert await door.list() == []
    assert list((world.root / ".new").iterdir()) == []
    assert (await door.create(asked)).status is Status.RUNNING


async def test_a_half_finished_delete_is_finished(world: LocalWorld) -> None:
    """Marked as deleted, then the server died. It is shown as deleting, and never started again."""
    asked, door = request(), world.door(HERE)
    vm = await door.create(asked)
    here = instance_dirs.InstanceDirs(world.root)
    with here.lock(vm.id) as held:
        here.mark_deleted(held)
    assert [each.status for each in await door.list()] == [Status.DELETING]
    with pytest.raises(errors.PermanentError):
        await door.create(asked)
    assert await door.delete(vm.id, None) is Status.DELETED
    assert marked(vm.id) == []
    assert await door.list() == []


async def test_a_held_instance_is_waited_for_but_not_for_ever(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_dirs, "_LOCK_STEPS", 3)
    door, asked = world.door(HERE), request()
    with instance_dirs.InstanceDirs(world.root).lock(asked.id), pytest.raises(errors.UnavailableError, match="holds"):
        await door.create(asked)
    assert (await door.create(asked)).status is Status.RUNNING


async def test_the_loop_is_not_blocked(world: LocalWorld) -> None:
    """While a delete waits for a stubborn agent, the loop goes on: it turns many times before the delete returns."""
    async with worlds.process_world(python(STUBBORN)) as stubborn:
        door = stubborn.door(HERE)
        vm = await door.create(request())

        async def holds() -> bool:
            return "up" in await door.console_output(vm.id, None)

        await tick_until(stubborn, holds)
        delete = asyncio.create_task(door.delete(vm.id, None))
        turns = 0
        while not delete.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert await delete is Status.DELETED
        assert turns > 10


async def test_the_default_command_is_the_real_agent() -> None:
    """It gets as far as the identity that it was given, and says what is wrong with it."""
    async with worlds.process_world(list(local.AGENT)) as world:
        door = world.door(HERE)
        vm = await door.create(request(ca_certificate="no certificate"))

        async def holds() -> bool:
            return "nstance-agent" in await door.console_output(vm.id, None)

        await tick_until(world, holds)
        assert str(world.root / vm.id / "identity") in await door.console_output(vm.id, None)
        assert await door.delete(vm.id, None) is Status.DELETED


async def test_a_vanished_directory_is_an_error_until_it_is_back(world: LocalWorld) -> None:
    """Nothing is read as gone, also not where an empty folder is left, as of a disk that is not mounted. A create does not
    make the directory again: then all others would be gone, while their processes run."""
    door = world.door(HERE)
    vm = await door.create(request())
    for is_mount_point in (False, True):
        with world.broken_listing():
            if is_mount_point:
                world.root.mkdir()
            for call in (
                door.get(vm.id, None),
                door.create(request()),
                door.delete(vm.id, None),
                door.get(vm.id, None),
                door.list(),
            ):
                with pytest.raises(errors.UnavailableError, match="expected the folder of instances"):
                    await call
            if is_mount_point:
                world.root.rmdir()
        assert (await door.get(vm.id, None)).status is Status.RUNNING


def as_folder(provider: port.Instances) -> port.Folder:
    assert isinstance(provider, port.Folder)
    return provider


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_another_folder_is_an_error_while_the_journal_has_vms_until_a_person_confirms(
    world: LocalWorld, is_confirmed: bool
) -> None:
    """A disk that is not mounted when the server starts, or another `dir`. These VMs are older than the machine's start, so
    none has to run."""
    vm = await world.door(HERE).create(request())
    if is_confirmed:
        world.end_by_hand(vm.id)
    with world.broken_listing():
        world.root.mkdir()
        door = world.door_without_folder(HERE)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: as_folder(door).open_folder([vm.provider_id]),
            lambda: door.get(vm.id, vm.provider_id),
            lambda: door.create(request()),
            lambda: door.delete(vm.id, vm.provider_id),
            door.list,
        ]
        for call in calls:
            with pytest.raises(errors.OutOfReachError, match="correct option 'dir'") as caught:
                await call()
        assert list(world.root.iterdir()) == [], "a mount point stays empty"
        if is_confirmed:
            command = str(caught.value).rpartition("run: ")[2]
            assert run(["sh", "-c", command]).wait() == 0
            assert await door.list() == []
            assert (await door.create(request())).status is Status.RUNNING
            shutil.rmtree(world.root.with_name("away"))
            world.root.rename(world.root.with_name("away"))
        else:
            world.root.rmdir()
    if not is_confirmed:
        await as_folder(door).open_folder([vm.provider_id])
        assert [each.id for each in await door.list()] == [vm.id]


async def test_a_folder_that_was_deleted_with_its_vms_is_made_again(world: LocalWorld) -> None:
    """VMs that were made since the machine started, and none of them runs: they are on no disk that will be mounted."""
    id = instance_id(Kind("knc"), uuid7(int(SystemClock().wall() * 1000), 1))
    vm = await world.door(HERE).create(request(id))
    with world.broken_listing():
        door = world.door_without_folder(HERE)
        with pytest.raises(errors.OutOfReachError, match="expected the folder"):
            await as_folder(door).open_folder([vm.provider_id])
    world.end_by_hand(id)
    shutil.rmtree(world.root)
    await as_folder(door).open_folder([vm.provider_id])
    assert await door.list() == []
    assert (await door.create(request())).status is Status.RUNNING


async def test_a_folder_of_an_earlier_version_has_vms_and_no_marker(world: LocalWorld) -> None:
    vm = await world.door(HERE).create(request())
    (world.root / local.marker(HERE)).unlink()
    door = world.door_without_folder(HERE)
    await as_folder(door).open_folder([vm.provider_id])
    assert [each.id for each in await door.list()] == [vm.id]


@pytest.mark.parametrize("known", ["", "qemu:///a/knc-1", "process:///b/knc-1"])
async def test_a_new_shard_gets_its_folder_without_ceremony(world: LocalWorld, known: str) -> None:
    """Also one whose VMs were another provider's."""
    door = world.door_without_folder(HERE)
    await as_folder(door).open_folder([ProviderId(known)] if known else [])
    assert (await door.create(request())).status is Status.RUNNING


async def test_a_session_without_the_mark_is_somebody_elses() -> None:
    """A session's number is reused too."""
    stranger = run(worlds.WAITS, start_new_session=True, stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    try:
        assert stranger.stdout.readline() == "up\n"  # before that it may not have an environment yet
        assert processes.session(stranger.pid, mark="NSTANCE_INSTANCE_ID=other") == []
        known = processes.session(stranger.pid, mark=f"PATH={os.environ['PATH']}")
        assert [each.pid for each in known] == [stranger.pid]
    finally:
        stranger.stdout.close()
        stranger.kill()
        stranger.wait()


async def test_zombies_are_stopped() -> None:
    child = run(worlds.WAITS)
    start = processes.start_of(child.pid)
    assert start is not None
    known = processes.Process(child.pid, start)
    assert processes.is_running(known)
    child.kill()
    await eventually(lambda: not processes.is_running(known))
    assert str(child.pid) in os.listdir("/proc"), "nobody has reaped it"
    assert processes._start_by_ps(child.pid) is None
    child.wait()
    assert processes.start_of(child.pid) is None
    assert not processes.is_running(known)


def test_systems_without_proc_ask_ps() -> None:
    first, second = (processes._start_by_ps(os.getpid()) for _ in range(2))
    assert first == second
    assert first
    assert processes._start_by_ps(2**22 + 1) is None
