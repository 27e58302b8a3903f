"""Places where VMs live, each with the doors to it and with what people and accidents do to it behind the provider's back."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.aws_world import AwsWorld
from contracts.gcp_world import GcpWorld
from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId, instance_id, uuid7
from nstance.providers import errors, instance_dirs, local, memory, port, process, processes, tmux
from nstance.providers.memory_behavior import Call, Life, Outcome, Script
from nstance.providers.proxmox import client as proxmox_client
from nstance.providers.proxmox import placement
from nstance.providers.proxmox import provider as proxmox
from nstance.providers.proxmox.settings import ProxmoxSettings
from nstance.providers.qemu import disks
from nstance.providers.qemu import provider as qemu
from nstance.providers.qemu.settings import BINARY, QemuSettings
from support import proxmox_stand_in
from support.eventually import wait_for
from support.hand_clock import HandClock

KIND = Kind("knc")
WAITS = [sys.executable, "-I", "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]
_numbers = itertools.count(1)


def fresh_id() -> InstanceId:
    return instance_id(KIND, uuid7(1_700_000_000_000 + next(_numbers), os.getpid()))


def request(id: InstanceId | None = None, **changes: object) -> port.CreateRequest:
    values: dict[str, object] = {
        "id": id or fresh_id(),
        "tenant": TenantId("default"),
        "group": GroupName("workers"),
        "kind": KIND,
        "template": "worker",
        "created": 1_700_000_000.0,
        "nonce": "header.claims.signature",
        "ca_certificate": "-----BEGIN CERTIFICATE-----\n",
        "registration_addr": "127.0.0.1:8992",
        "agent_addr": "127.0.0.1:8994",
    }
    return port.CreateRequest(**{**values, **changes})  # type: ignore[arg-type]


def scope(cluster: str = "one", shard: str = "a") -> port.Scope:
    return port.Scope(cluster=ClusterId(cluster), shard=ShardId(shard))


class MemoryWorld:
    capabilities = (True, True, True, True)  # load balancers, images, leader address, subnet capacity
    has_console = True
    knows_addresses = True

    def __init__(self, behavior: Script) -> None:
        self.clock = HandClock()
        self.script = behavior
        self.cloud = memory.MemoryCloud(self.clock, behavior=behavior)

    def door(self, of: port.Scope) -> port.Instances:
        return memory.MemoryProvider(of, self.clock, cloud=self.cloud)

    async def tick(self) -> None:
        await self.clock.advance(1.0)

    def count(self, id: InstanceId) -> int:
        return sum(vm.id == id and vm.status is not port.Status.DELETED for vm in self.cloud.vms())

    def end_by_hand(self, id: InstanceId) -> None:
        self.cloud.stop(id)

    def spoil(self, id: InstanceId) -> None:
        self.cloud.strip_tags(id)

    def write_console(self, id: InstanceId, text: str) -> None:
        self.cloud.write_console(id, text)

    def hostname(self, vm: port.Vm) -> str:
        return vm.id

    def balancer(self) -> port.LoadBalancer:
        return port.LoadBalancer("lb")

    @contextlib.contextmanager
    def broken_listing(self) -> Iterator[None]:
        self.script.then(Call.LIST, Outcome(applied=False, error=errors.UnavailableError("page 2 of 3 did not come")))
        yield


class LocalWorld:
    """A directory that several providers share, as several servers on one machine do."""

    capabilities = (False, False, False, False)
    has_console = True
    knows_addresses = True

    def __init__(self, folder: Path, make: Callable[[port.Scope, Path], port.Instances]) -> None:
        self.root = folder / "instances"
        self._make = make
        self._doors: list[port.Instances] = []

    def door(self, of: port.Scope) -> port.Instances:
        instance_dirs.InstanceDirs(self.root, marker=local.marker(of)).prepare()
        return self.door_without_folder(of)

    def door_without_folder(self, of: port.Scope) -> port.Instances:
        self._doors.append(self._make(of, self.root))
        return self._doors[-1]

    async def tick(self) -> None:
        await asyncio.sleep(0.02)

    def count(self, id: InstanceId) -> int:
        return len(marked(id))

    def end_by_hand(self, id: InstanceId) -> None:
        known = instance_dirs.InstanceDirs(self.root).process(id)
        assert known is not None
        os.kill(known.pid, signal.SIGKILL)
        wait_for("its end", lambda: not processes.is_running(known))

    def write_console(self, id: InstanceId, text: str) -> None:
        """Its process has printed that by itself."""

    def balancer(self) -> port.LoadBalancer:
        raise NotImplementedError("this machine has no load balancers")

    def spoil(self, id: InstanceId) -> None:
        (self.root / id / "instance.json").write_bytes(b'{"id": "knc-')

    def hostname(self, vm: port.Vm) -> str:
        return vm.id

    @contextlib.contextmanager
    def broken_listing(self) -> Iterator[None]:
        away = self.root.with_name("away")
        self.root.rename(away)
        yield
        away.rename(self.root)

    async def end(self) -> None:
        for door in self._doors:
            await door.close()
        here = instance_dirs.InstanceDirs(self.root)
        for id in here.ids() if self.root.exists() else ():
            with contextlib.suppress(instance_dirs.UnreadableError):
                found = here.process(id)
                if found is not None:
                    await asyncio.to_thread(processes.end, found, mark=f"NSTANCE_INSTANCE_ID={id}", grace=2.0)


class QemuWorld(LocalWorld):
    capabilities = (False, True, False, False)


class ProxmoxWorld:
    """A cluster that is fakepve in a process of its own."""

    capabilities = (False, False, False, False)
    has_console = False
    knows_addresses = False  # the network gives them, and agents report them

    def __init__(self, stand_in: proxmox_stand_in.StandIn, url: str) -> None:
        self.stand_in = stand_in
        self._url = url
        self._doors: list[port.Instances] = []

    def access(self) -> proxmox_client.Access:
        return proxmox_client.Access(
            url=self._url, token_id=proxmox_stand_in.TOKEN, token_secret=proxmox_stand_in.SECRET
        )

    def door(self, of: port.Scope) -> port.Instances:
        client = proxmox_client.ProxmoxClient(self.access(), SystemClock())
        settings = ProxmoxSettings(limits=placement.Limits(reserve_memory_mib=0))
        self._doors.append(Clones(of, client, SystemClock(), settings))
        return self._doors[-1]

    def hostname(self, vm: port.Vm) -> str:
        return vm.id

    async def tick(self) -> None:
        await asyncio.sleep(0.02)

    def write_console(self, id: InstanceId, text: str) -> None:
        raise NotImplementedError("its API has no console log")

    def balancer(self) -> port.LoadBalancer:
        raise NotImplementedError("Proxmox has no load balancers")

    def count(self, id: InstanceId) -> int:
        return sum(vm.get("name") == id for vm in self.stand_in.vms())

    def end_by_hand(self, id: InstanceId) -> None:
        self.stand_in.ask("POST", f"{self.stand_in.path(id)}/status/stop")

    def spoil(self, id: InstanceId) -> None:
        self.stand_in.ask("PUT", f"{self.stand_in.path(id)}/config", delete="tags,description")

    @contextlib.contextmanager
    def broken_listing(self) -> Iterator[None]:
        self.stand_in.rules.append(
            proxmox_stand_in.Rule("GET", "/cluster/resources", 500, "cluster not ready - no quorum?")
        )
        yield

    async def end(self) -> None:
        for door in self._doors:
            await door.close()


class Clones(proxmox.ProxmoxProvider):
    async def create(self, request: port.CreateRequest) -> port.Vm:
        args = {"TemplateName": "debian", "StoragePool": "local-lvm", **request.args}
        size = request.instance_type or "cpu:1,memory:64"
        return await super().create(replace(request, args=args, instance_type=size))


@contextlib.asynccontextmanager
async def proxmox_world(time_scale: float = 0.0) -> AsyncIterator[ProxmoxWorld]:
    with _folder() as folder, proxmox_stand_in.cluster(folder, time_scale=time_scale) as stand_in:
        async with proxmox_stand_in.proxy(stand_in) as url:
            world = ProxmoxWorld(stand_in, url)
            try:
                yield world
            finally:
                await world.end()


World = MemoryWorld | LocalWorld | AwsWorld | GcpWorld | ProxmoxWorld


def marked(id: InstanceId) -> list[int]:
    """The living processes that run for an instance."""
    sign = f"NSTANCE_INSTANCE_ID={id}".encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            if sign in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and processes.start_of(pid):
                found.append(pid)
    return found


@contextlib.asynccontextmanager
async def memory_world(behavior: Script | None = None) -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld(behavior or Script())
    yield world
    await world.cloud.close()


EVENTUAL = Life(boot=2.0, dying=4.0, linger=3.0, get_lag=1.5, list_lag=6.0)


@contextlib.asynccontextmanager
async def process_world(command: list[str] = WAITS) -> AsyncIterator[LocalWorld]:
    with _folder() as folder:
        world = LocalWorld(folder, lambda of, root: process.ProcessProvider(of, dir=root, command=command))
        try:
            yield world
        finally:
            await world.end()


@contextlib.asynccontextmanager
async def tmux_world(command: list[str] = WAITS) -> AsyncIterator[LocalWorld]:
    if shutil.which("tmux") is None:
        pytest.skip("needs the program tmux: install it")
    with _folder() as folder:
        socket = str(folder / "tmux")

        def make(of: port.Scope, root: Path) -> port.Instances:
            return tmux.TmuxProvider(
                of, dir=root, command=command, session=tmux.Session("test", socket), dev_k8s_dir=folder / "dev-k8s"
            )

        world = LocalWorld(folder, make)
        try:
            yield world
        finally:
            await world.end()
            # It may have ended with its last window.
            await asyncio.to_thread(subprocess.run, ["tmux", "-S", socket, "kill-server"], capture_output=True)


# Sets the segment, prints the text after it to the serial port, and halts.
BOOT_SECTOR = bytes.fromhex("31c08ed8be167cbaf803ac84c07403eeebf8fbf4ebfd") + b"up\r\n\0"


class SmallVms(qemu.QemuProvider):
    """Real QEMU with a guest of one sector, so that a VM is up in a fraction of a second."""

    async def create(self, request: port.CreateRequest) -> port.Vm:
        args = {"Image": "guest.raw", **request.args}
        return await super().create(replace(request, args=args, instance_type="cpu:1,memory:16"))


def small_vms(of: port.Scope, root: Path, **settings: object) -> SmallVms:
    made = QemuSettings(dir=root, images=root.parent / "images", memory_mib=100_000)
    return SmallVms(of, HandClock(), SystemRng(), replace(made, **settings))  # type: ignore[arg-type]


def make_guest(folder: Path) -> None:
    images = folder / "images"
    images.mkdir()
    (images / "guest.raw").write_bytes(BOOT_SECTOR.ljust(510, b"\0") + b"\x55\xaa" + bytes(1024 * 1024 - 512))


@contextlib.asynccontextmanager
async def qemu_world(**settings: object) -> AsyncIterator[QemuWorld]:
    for program in (BINARY, disks.QEMU_IMG):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}: install QEMU")
    with _folder() as folder:
        make_guest(folder)
        world = QemuWorld(folder, lambda of, root: small_vms(of, root, **settings))
        try:
            yield world
        finally:
            await world.end()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Not tmp_path: the name of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="nst-") as folder:
        yield Path(folder)


async def one(world: World, id: InstanceId) -> bool:
    """There is one VM of this ID. A process that was started a moment ago may still be on its way to being the agent."""
    for _ in range(3000):
        if world.count(id):
            break
        await world.tick()
    return world.count(id) == 1


async def tick_until(world: World, holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(3000):
        if await holds():
            return
        await world.tick()
    raise AssertionError("it did not come true in time")
