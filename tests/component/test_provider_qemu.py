"""VMs as QEMU processes: real QEMU with a guest of one sector. The contract suite has the rest."""

import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from contracts import provider_worlds as worlds
from contracts.provider_worlds import QemuWorld, marked, request, scope, tick_until
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import InstanceId
from nstance.providers import errors, launch, local, machine_size, port, registry
from nstance.providers.port import Status
from nstance.providers.qemu import acceleration, machine, qmp, save_state, saved_state
from nstance.providers.qemu import provider as qemu
from nstance.providers.qemu.acceleration import Acceleration
from nstance.providers.qemu.settings import BINARY, QemuSettings
from support.hand_clock import HandClock

HERE = scope()
SCHEDULES = int(os.environ.get("NSTANCE_QEMU_SCHEDULES", "4"))
FIRST_SEED = int(os.environ.get("NSTANCE_FIRST_SEED", "0"))


@pytest.fixture
async def world() -> AsyncIterator[QemuWorld]:
    async with worlds.qemu_world() as made:
        yield made


async def ended(world: QemuWorld, door: port.Instances, id: InstanceId) -> port.Vm:
    async def holds() -> bool:
        return (await door.get(id, None)).status is Status.STOPPED

    await tick_until(world, holds)
    return await door.get(id, None)


@pytest.mark.parametrize(
    ("command", "reason"),
    [("quit", "QEMU was asked to quit"), (None, "QEMU ended without a word: it was killed or crashed")],
    ids=["quit", "killed"],
)
async def test_a_vm_says_why_it_ended(world: QemuWorld, command: str | None, reason: str) -> None:
    """Also to a server that did not run when it happened."""
    vm = await world.door(HERE).create(request())
    if command is None:
        os.kill(marked(vm.id)[0], signal.SIGKILL)
    else:
        with qmp.monitor(world.root / vm.id) as monitor:
            monitor.execute(command)
    assert (await ended(world, world.door(HERE), vm.id)).end_reason == reason


async def test_vms_of_a_host_that_was_rebooted_are_stopped_and_leave_nothing(world: QemuWorld) -> None:
    """Their process numbers belong to others by now."""
    vm = await world.door(HERE).create(request())
    world.end_by_hand(vm.id)
    path = world.root / vm.id / launch.PROCESS
    known = json.loads(path.read_text())
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        path.write_text(json.dumps({"pid": stranger.pid, "start": f"another-boot:{known['start'].partition(':')[2]}"}))
        door = world.door(HERE)
        assert [(each.id, each.status) for each in await door.list()] == [(vm.id, Status.STOPPED)]
        assert await door.delete(vm.id, vm.provider_id) is Status.DELETED
        assert stranger.returncode is None
    finally:
        stranger.kill()
        assert await stranger.wait() == -signal.SIGKILL, "it ran until now"
    assert [each.name for each in world.root.iterdir() if not each.name.startswith(".")] == []


async def test_a_reset_keeps_the_vm_and_a_paused_one_is_running(world: QemuWorld) -> None:
    door = world.door(HERE)
    vm = await door.create(request())
    before = marked(vm.id)
    with qmp.monitor(world.root / vm.id) as monitor:
        monitor.execute("system_reset")
        monitor.execute("stop")
        assert monitor.execute("query-status")["status"] == "paused"
        with pytest.raises(qmp.QmpError, match="refused no-such-command"):
            monitor.execute("no-such-command")
    assert (await door.get(vm.id, None)).status is Status.RUNNING
    assert marked(vm.id) == before


async def test_the_seed_has_the_userdata_and_an_identity_of_its_own(world: QemuWorld) -> None:
    door = world.door(HERE)
    one, two = [await door.create(request(userdata=b"#!/bin/sh\necho hello\n")) for _ in range(2)]
    seeds = [(world.root / vm.id / machine.SEED).read_bytes() for vm in (one, two)]
    for vm, seed in zip((one, two), seeds, strict=True):
        assert len(seed) == machine.SEED_BYTES
        assert b"#!/bin/sh\necho hello\n" in seed
        assert vm.id.encode() in seed
    read_back = [json.loads(seed[seed.index(b'{"instance-id"') :].partition(b"\n")[0]) for seed in seeds]
    assert read_back[0]["mac-address"] != read_back[1]["mac-address"]
    assert len({base64.b64decode(each["random-seed"]) for each in read_back}) == 2
    mode = (world.root / one.id).stat().st_mode & 0o777
    assert mode == 0o700, "the seed has the nonce"


@pytest.mark.parametrize(
    ("changes", "parameter", "message"),
    [
        ({"args": {"Imgae": "x"}}, "Imgae", "did you mean Image?"),
        ({"args": {"Image": 5}}, "Image", "expected a text in argument Image, found int"),
        ({"args": {"Image": "none.raw"}}, "Image", "expected a file in argument Image"),
        ({"args": {"Kernel": "/none"}}, "Kernel", "expected a file in argument Kernel"),
        ({"args": {"State": "none"}}, "Image", "expected no Image beside State"),
        ({"args": {"State": "none", "Image": ""}}, "State", "expected a saved machine state in"),
        ({"userdata": b"x" * 2_000_000}, "userdata", "expected at most 1048576 bytes of userdata, found 2000000"),
    ],
)
async def test_bad_requests_are_refused_before_anything_is_made(
    world: QemuWorld, changes: dict[str, object], parameter: str, message: str
) -> None:
    door = world.door(HERE)
    with pytest.raises(errors.PermanentError, match=message.replace("?", r"\?")) as caught:
        await door.create(request(**changes))
    assert caught.value.parameter == parameter
    assert await door.list() == []
    assert [path.name for path in world.root.iterdir() if not path.name.startswith(".")] == []
    assert list((world.root / ".new").iterdir()) == []


async def test_what_qemu_refuses_leaves_nothing_and_may_be_tried_again(world: QemuWorld) -> None:
    """A bridge that does not exist."""
    door, asked = world.door(HERE), request()
    bad = request(asked.id, subnet="nstance-no-such-bridge")
    with pytest.raises(errors.PermanentError, match="QEMU refused to start"):
        await door.create(bad)
    assert await door.list() == []
    assert marked(asked.id) == []
    assert (await door.create(asked)).status is Status.RUNNING


async def test_a_full_host_is_no_capacity_until_a_vm_is_gone() -> None:
    async with worlds.qemu_world(memory_mib=40) as world:
        door = world.door(HERE)
        first, _ = await door.create(request()), await door.create(request())
        with pytest.raises(
            errors.NoCapacityError, match="expected 16 MiB of free memory for a VM, found 8 MiB"
        ) as caught:
            await door.create(request())
        assert caught.value.scope is errors.CapacityScope.HOST
        await door.delete(first.id, None)
        await door.create(request())


async def test_creates_at_the_same_time_do_not_share_the_last_memory() -> None:
    """Also those of several servers."""
    async with worlds.qemu_world(memory_mib=72) as world:
        doors = [world.door(HERE), world.door(scope(shard="b"))]
        creates = [doors[number % 2].create(request()) for number in range(8)]
        answers = await asyncio.gather(*creates, return_exceptions=True)
        assert sum(isinstance(each, errors.NoCapacityError) for each in answers) == 4, answers
        assert sum([len(await door.list()) for door in doors]) == 4


@contextlib.asynccontextmanager
async def small_disk(world: QemuWorld, *, mib: int) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A file system of its own for the VMs; the function makes it larger."""

    async def mount(options: str) -> int:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(world.root)]
        return (await asyncio.to_thread(subprocess.run, command, capture_output=True)).returncode

    world.root.mkdir()
    if await mount(f"size={mib}m"):
        pytest.skip("only root can mount a small file system")
    try:
        yield lambda: mount("remount,size=64m")
    finally:
        await world.end()
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(world.root)], check=True)
        world.root.rmdir()


async def test_a_full_disk_is_no_capacity_until_a_vm_is_gone() -> None:
    """To delete a VM needs no space: it is what makes some."""
    async with worlds.qemu_world() as world, small_disk(world, mib=6):
        door = world.door(HERE)
        vm = await door.create(request())
        with (world.root / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        with pytest.raises(errors.NoCapacityError, match="No space left") as caught:
            await door.create(request())
        assert (caught.value.scope, caught.value.subject) == (errors.CapacityScope.HOST, "disk of this host")
        assert [each.id for each in await door.list()] == [vm.id]
        assert await door.delete(vm.id, None) is Status.DELETED
        assert marked(vm.id) == []
        with pytest.raises(errors.PermanentError, match="was deleted"):
            await door.create(request(vm.id))
        assert (await door.create(request())).status is Status.RUNNING


# Writes 12 MiB to its disk, from its second MiB on, and halts.
WRITER = bytes.fromhex("31c08ed8be207cb9c000b80043cd1366810628 7c80000000e2f0f4ebfd").ljust(32, b"\0")
WRITER += bytes.fromhex("10007f00000000100008000000000000")


async def test_a_guest_that_a_full_disk_paused_continues_when_there_is_room() -> None:
    """Meanwhile, and until its agent can be heard again, nobody may take it for unresponsive."""
    async with worlds.qemu_world() as world:
        (world.root.parent / "images" / "guest.raw").write_bytes(
            WRITER.ljust(510, b"\0") + b"\x55\xaa" + bytes(32 * 1024 * 1024 - 512)
        )
        async with small_disk(world, mib=8) as enlarge:
            door = world.door(HERE)
            clock = door._clock  # type: ignore[attr-defined]
            vm = await door.create(request())

            async def is_paused() -> bool:
                return (await door.get(vm.id, vm.provider_id)).status is Status.REPAIRING

            await tick_until(world, is_paused)
            [listed] = await door.list()
            assert (listed.status, listed.problem) == (Status.REPAIRING, qemu.DISK_FULL)
            await clock.advance(3600.0)
            assert await is_paused(), "for as long as it takes"
            await enlarge()
            [listed] = await door.list()
            assert (listed.status, listed.problem) == (Status.REPAIRING, "")
            with qmp.monitor(world.root / vm.id) as monitor:
                assert monitor.execute("query-status")["status"] == "running"
            await clock.advance(61.0)
            assert (await door.get(vm.id, vm.provider_id)).status is Status.RUNNING
            assert len(marked(vm.id)) == 1


async def test_a_guest_gets_its_time_to_shut_down() -> None:
    """This guest ignores the power button, so it is ended when its time is over."""
    async with worlds.qemu_world(shutdown_seconds=60.0) as world:
        door = world.door(HERE)
        clock = door._clock  # type: ignore[attr-defined]
        vm = await door.create(request())
        assert await door.delete(vm.id, None) is Status.DELETING
        assert (await door.get(vm.id, None)).status is Status.DELETING
        assert await door.delete(vm.id, None) is Status.DELETING
        assert len(marked(vm.id)) == 1
        await clock.advance(61.0)
        assert await door.delete(vm.id, None) is Status.DELETED
        assert marked(vm.id) == []


async def test_a_console_does_not_grow_for_ever(world: QemuWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "MAX_CONSOLE_FILE_BYTES", 1000)
    door = world.door(HERE)
    vm = await door.create(request())
    path = world.root / vm.id / machine.CONSOLE

    async def is_up() -> bool:
        return path.exists() and b"up" in path.read_bytes()

    await tick_until(world, is_up)
    with path.open("ab") as console:
        console.write(b"x" * 200_000 + b"the end\n")
    await door.list()
    assert path.stat().st_size == port.MAX_CONSOLE_BYTES
    with qmp.monitor(world.root / vm.id) as monitor:
        monitor.execute("system_reset")

    async def is_up_again() -> bool:
        return path.read_bytes().endswith(b"the end\nup\r\n")

    await tick_until(world, is_up_again)


async def test_a_saved_state_is_continued(world: QemuWorld) -> None:
    door = world.door(HERE)
    images = world.root.parent / "images"
    source = save_state.Source(
        image=images / "guest.raw",
        boot=machine.Boot(),
        size=machine_size.parse("cpu:1,memory:16"),
        binary=BINARY,
        acceleration=Acceleration.TCG,
    )
    await asyncio.to_thread(save_state.save, source, images / "state", until="up", timeout=60.0)
    assert {path.name for path in images.iterdir()} == {"guest.raw", "state"}, "nothing else is left"
    asked = request(args={"State": "state", "Image": ""})
    vm = await door.create(asked)

    async def runs() -> bool:
        with qmp.monitor(world.root / vm.id) as monitor:
            return bool(monitor.execute("query-status")["status"] == "running")

    await tick_until(world, runs)
    assert (world.root / vm.id / machine.CONSOLE).read_bytes() == b"", "it continues after its boot"
    assert (await door.create(asked)).provider_id == vm.provider_id
    # Another QEMU cannot continue it: said before anything is made.
    record = json.loads((images / "state" / saved_state.RECORD).read_text())
    (images / "state" / saved_state.RECORD).write_text(json.dumps({**record, "qemu": "1.0"}))
    with pytest.raises(errors.PermanentError, match=r"found QEMU 1\.0 with tcg .* save it again"):
        await door.create(request(args={"State": "state", "Image": ""}))
    assert [each.id for each in await door.list()] == [vm.id]


async def test_find_image(world: QemuWorld) -> None:
    images = port.capabilities_of(world.door(HERE)).images
    assert images is not None
    folder = world.root.parent / "images"
    for number, name in enumerate(("debian-1.qcow2", "debian-2.qcow2", "other")):
        (folder / name).touch()
        os.utime(folder / name, (number, number))
    found = await images.find_image(port.ImageQuery(filters={"name": ["debian-*"]}))
    assert found == str(folder / "debian-2.qcow2")
    with pytest.raises(errors.PermanentError, match="by the filter 'name', found 'arch'"):
        await images.find_image(port.ImageQuery(filters={"arch": ["x"]}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accel": "warp"}, "expected one of auto, kvm, tcg, found 'warp'"),
        ({"memory_mib": "4G"}, "expected a whole number, found str"),
        ({"bridg": "br0"}, "did you mean 'bridge'?"),
        ({"binary": "qemu-system-none"}, "expected the program qemu-system-none, found none; install QEMU"),
    ],
)
def test_bad_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.PermanentError) as caught:
        registry.open_provider("qemu", scope=HERE, options=options, cachedir=tmp_path, clock=HandClock())
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_kvm_is_used_only_where_guests_run(tmp_path: Path) -> None:
    with_vmx, without = tmp_path / "vmx", tmp_path / "none"
    with_vmx.write_text("processor: 0\nflags\t\t: fpu vmx sse\n")
    without.write_text("processor: 0\nflags\t\t: fpu sse\n")
    assert "cannot be opened" in acceleration.why_not_kvm(tmp_path / "nothing", with_vmx)
    assert "is no KVM" in acceleration.why_not_kvm(Path("/dev/null"), with_vmx)
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and os.uname().machine == "x86_64":
        assert "neither vmx nor svm" in acceleration.why_not_kvm(cpuinfo=without)
        assert acceleration.detect(cpuinfo=without) is Acceleration.TCG
        assert acceleration.detect(cpuinfo=with_vmx) is Acceleration.KVM


# Imports little, because each schedule starts several of these.
SERVER = """
import asyncio, json, os, sys, threading
from pathlib import Path
from nstance.clock import SystemClock, SystemRng
from nstance.providers import port
from nstance.providers.qemu import provider
from nstance.providers.qemu.settings import QemuSettings

root, calls, left = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])

def crash(frame, event, argument):
    global left
    if event in ("call", "return") and "nstance/providers/" in frame.f_code.co_filename:
        left -= 1
        if left == 0:
            os._exit(9)

async def main():
    settings = QemuSettings(dir=root, images=root.parent / "images", memory_mib=100_000)
    door = provider.QemuProvider(port.Scope(cluster="one", shard="a"), SystemClock(), SystemRng(), settings)
    await door.open_folder(())
    threading.setprofile(crash)
    async def call(kind, id):
        try:
            if kind == "create":
                await door.create(port.CreateRequest(
                    id=id, tenant="default", group="workers", kind="knc", template="worker", created=1.0,
                    instance_type="cpu:1,memory:16", args={"Image": "guest.raw"}))
            else:
                await door.delete(id, None)
        except Exception as problem:
            if "deleted" not in str(problem):
                print(repr(problem), flush=True)
    await asyncio.gather(*(call(*each) for each in calls))
    os._exit(0)

asyncio.run(main())
"""


def save_state_files(folder: Path, size: str) -> None:
    """What a saved state looks like."""
    folder.mkdir()
    for name in (saved_state.MEMORY, machine.DISK):
        (folder / name).touch()
    state = saved_state.SavedState(qemu=saved_state.version(BINARY), acceleration=Acceleration.TCG, size=size)
    saved_state.write(folder, state)


async def test_the_check_before_a_start_finds_everything_with_its_path(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "text.qcow2").write_text("no image")
    settings = QemuSettings(dir=tmp_path / "instances", images=images, bridge="br-none", memory_mib=1000)
    door = qemu.QemuProvider(HERE, SystemClock(), SystemRng(), settings)

    def launch(name: str, type: str = "cpu:1,memory:16", **args: object) -> port.PlannedLaunch:
        return port.PlannedLaunch(template=name, instance_types=[type], markets=(), subnets=(), args=args)

    launches = [
        launch("good", Image=str(images / "blank.raw")),
        launch("missing", Image="none.qcow2"),
        launch("kernel", Kernel="/none"),
        launch("state", State="none"),
        launch("large", "cpu:1,memory:2000"),
        launch("broken", Image="text.qcow2", Initrd="/none"),
        launch("small", "cpu:1,memory:16,disk:1", Image="large.raw"),
        launch("other", "cpu:1,memory:32", State="saved"),
    ]
    (images / "blank.raw").write_bytes(b"\0" * 1024)
    (images / "large.raw").touch()
    os.truncate(images / "large.raw", 2 * 1024**3)
    save_state_files(images / "saved", "cpu:1,memory:16")
    plan = port.CloudPlan(launches=launches, subnet_pools={"main": ["br-other"]})
    faults = {".".join(map(str, fault.path)): fault.text for fault in await door.preflight(plan)}
    await door.close()
    assert {path: text.split(",")[0] for path, text in faults.items()} == {
        "shard.subnet_pools.main.0": "this host has no bridge br-other",
        "shard.infra.options.bridge": "this host has no bridge br-none",
        "templates.missing.args.Image": "expected a file in argument Image",
        "templates.kernel.args.Kernel": "expected a file in argument Kernel",
        "templates.state.args.State": f"expected a saved machine state in {images / 'none'}",
        "templates.large.instance_type": "expected at most 1000 MiB for all VMs",
        "templates.broken.args.Initrd": "expected a file in argument Initrd",
        "templates.small.instance_type": "expected a disk of at least 2 GiB",
        "templates.other.instance_type": "expected instance type cpu:1",
    }
    assert list((tmp_path / "instances").glob("vm*")) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SCHEDULES))
async def test_random_schedules_of_crashes_leak_and_double_nothing(world: QemuWorld, seed: int) -> None:
    """A server dies at a random moment of its calls, again and again; the journal is what the next one repeats."""
    chance = random.Random(seed)
    wanted: dict[InstanceId, str] = {}
    for _ in range(3):
        for _ in range(2):
            wanted[worlds.fresh_id()] = "create"
        for id in wanted:
            if chance.random() < 0.3:
                wanted[id] = "delete"
        calls = [(kind, id) for id, kind in wanted.items()]
        chance.shuffle(calls)
        arguments = [sys.executable, "-c", SERVER, str(world.root), json.dumps(calls), str(chance.randint(1, 700))]
        answer = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, timeout=120)
        assert answer.returncode in (0, 9), answer.stderr
        assert answer.stdout == ""
        for id in wanted:
            assert len(marked(id)) <= 1, "never two VMs of one ID"
        running = [id for id in wanted if marked(id)]
        if running and chance.random() < 0.3:
            world.end_by_hand(chance.choice(running))
    door = world.door(HERE)
    for id, kind in wanted.items():
        if kind == "create":
            assert (await door.create(request(id, created=1.0))).status in (Status.RUNNING, Status.STOPPED)
        else:
            assert await door.delete(id, None) is Status.DELETED
    kept = {id for id, kind in wanted.items() if kind == "create"}
    assert {vm.id for vm in await door.list()} == kept
    for id, kind in wanted.items():
        assert len(marked(id)) == (kind == "create" and (await door.get(id, None)).status is Status.RUNNING)
    for id in kept:
        assert await door.delete(id, None) is Status.DELETED
    assert {path.name for path in world.root.iterdir()} == {".ids", ".new", ".trash", local.marker(HERE)}
    assert [path for name in (".new", ".trash") for path in (world.root / name).iterdir()] == []
    assert not any(marked(id) for id in wanted)
