"""Whole servers on machines of one's own: real servers in this process, a Proxmox cluster or QEMU below them.

Two instance types, of which the larger one runs out first. What the provider itself shows is the truth: VMs of the cluster,
or living QEMU processes and their directories.
"""

import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from component.whole_server import CLUSTER, Json, World, config
from contracts import provider_worlds
from contracts.provider_worlds import ProxmoxWorld, QemuWorld
from nstance.clock import SystemClock, SystemRng
from nstance.model import ids
from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.providers import errors, port
from nstance.providers.proxmox import client, placement
from nstance.providers.proxmox import provider as proxmox
from nstance.providers.proxmox.settings import ProxmoxSettings
from nstance.providers.qemu import provider as qemu
from nstance.providers.qemu.settings import QemuSettings
from support.eventually import eventually

LIVING = (State.PENDING, State.STARTING, State.RUNNING)
HOST_MIB = 230  # of QEMU: three large VMs and a small one


class Place(Protocol):
    infra: Json
    template: Json

    def open(self, scope: port.Scope) -> port.Instances: ...

    def books(self) -> Counter[str]:
        """VMs by name."""
        ...

    def end_by_hand(self, id: InstanceId) -> None: ...

    def fill(self) -> None:
        """Until three large VMs and a small one fit."""
        ...

    def disturb(self, chance: random.Random) -> None: ...

    def heal(self) -> None: ...


@dataclass
class ProxmoxPlace:
    world: ProxmoxWorld
    infra: Json = field(default_factory=lambda: {"provider": "proxmox"})
    template: Json = field(
        default_factory=lambda: {
            "instance_types": ["cpu:1,memory:3000", "cpu:1,memory:500"],
            "args": {"TemplateName": "debian", "StoragePool": "local-lvm"},
        }
    )

    def open(self, scope: port.Scope) -> port.Instances:
        settings = ProxmoxSettings(limits=placement.Limits(reserve_memory_mib=0))
        clock = SystemClock()
        return proxmox.ProxmoxProvider(scope, client.ProxmoxClient(self.world.access(), clock), clock, settings)

    def books(self) -> Counter[str]:
        return Counter(str(vm.get("name")) for vm in self.world.stand_in.vms() if vm["type"] == "qemu")

    def end_by_hand(self, id: InstanceId) -> None:
        self.world.end_by_hand(id)

    def fill(self) -> None:
        ask, volume = self.world.stand_in.ask, "local:vztmpl/debian.tar.zst"
        ask("POST", "/nodes/pve1/lxc", vmid=700, ostemplate=volume, storage="local-lvm", memory=4500)
        ask("POST", "/nodes/pve1/lxc/700/status/start")

    def disturb(self, chance: random.Random) -> None:
        stand_in = self.world.stand_in
        stand_in.chance = random.Random(chance.random())
        stand_in.loss = chance.choice((0.0, 0.03, 0.08))
        stand_in.refusals = chance.choice((0.0, 0.03, 0.08))
        stand_in.slow_tasks = chance.choice((0.0, 0.3))
        stand_in.offline = {chance.choice(("pve1", "pve2"))} if chance.random() < 0.3 else set()

    def heal(self) -> None:
        stand_in = self.world.stand_in
        stand_in.loss = stand_in.refusals = stand_in.slow_tasks = 0.0
        stand_in.offline = set()


@dataclass
class QemuPlace:
    world: QemuWorld
    infra: Json = field(default_factory=lambda: {"provider": "qemu"})
    template: Json = field(
        default_factory=lambda: {
            "instance_types": ["cpu:1,memory:64", "cpu:1,memory:32"],
            "args": {"Image": "guest.raw"},
        }
    )

    def open(self, scope: port.Scope) -> port.Instances:
        settings = QemuSettings(dir=self.world.root, images=self.world.root.parent / "images", memory_mib=HOST_MIB)
        return qemu.QemuProvider(scope, SystemClock(), SystemRng(), settings)

    def books(self) -> Counter[str]:
        """Directories of VMs, and living processes, also those without a directory."""
        if not self.world.root.exists():
            return Counter()
        found = Counter(name for name in os.listdir(self.world.root) if ids.is_instance_id(name))
        return found | Counter(_machines(self.world.root))

    def end_by_hand(self, id: InstanceId) -> None:
        self.world.end_by_hand(id)

    def fill(self) -> None:
        """It is so from the beginning."""

    def disturb(self, chance: random.Random) -> None:
        """Its calls are lost in `OnPremServers`."""

    def heal(self) -> None:
        """Nothing to do."""


def _machines(root: Path) -> list[str]:
    """The names of VMs by their processes."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink().parent == root:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                found += [words[words.index("-name") + 1]] if "-name" in words else []
    return found


class OnPremServers(World):
    def __init__(self, dir: Path, place: Place) -> None:
        self.place = place
        self.problems: list[str] = []
        self.calls: Counter[str] = Counter()
        self.chance = random.Random(0)
        self.loss = 0.0  # of a create or delete, before or after its effect
        self.doors: list[port.Instances] = []
        super().__init__(dir, self.settings({"web": 0}), agents=False)

    def settings(self, sizes: Mapping[str, int]) -> Json:
        made = config(
            groups={"default": {name: {"template": "web", "size": size} for name, size in sizes.items()}},
            infra=self.place.infra,
            garbage_collection={"interval": "2s", "registration_timeout": "30m"},
        )
        del made["shard"]["subnet_pools"], made["templates"]["web"]["instance_type"]
        made["templates"]["web"] |= {**self.place.template, "files": {}, "userdata": {"content": "{{ .Nonce }}"}}
        return made

    def open_provider(self, name: str) -> port.Instances:
        provider = self.place.open(port.Scope(cluster=CLUSTER, shard=self.shard))
        self.doors.append(provider)
        create, delete = provider.create, provider.delete

        async def counted_create(request: port.CreateRequest) -> port.Vm:
            self.calls["create"] += 1
            return await self._perhaps_lost(lambda: create(request))

        async def checked_delete(id: InstanceId, provider_id: ids.ProviderId | None) -> port.Status:
            self.calls["delete"] += 1
            self._check_delete(name, id)
            return await self._perhaps_lost(lambda: delete(id, provider_id))

        provider.create, provider.delete = counted_create, checked_delete  # type: ignore[method-assign]
        return provider

    async def _perhaps_lost(self, call: Callable[[], Awaitable[Any]]) -> Any:
        fate = self.chance.random()
        if fate < self.loss / 2:
            raise errors.UnavailableError("the request was lost")
        answer = await call()
        if fate < self.loss:
            raise errors.UnknownOutcomeError("the reply was lost")
        return answer

    def _check_delete(self, name: str, id: InstanceId) -> None:
        server = self.servers.get(name)
        record = server.lead.shard.instances.get(id) if server is not None and server.lead is not None else None
        if record is not None and record.state in LIVING:
            self.problems.append(f"{id} is deleted while it is {record.state.value}")

    async def resize(self, **sizes: int) -> None:
        self.configure(self.settings(sizes))
        for server in self.servers.values():
            if server.server.server is not None and not server.task.done():
                await server.active_config.refresh()

    async def settle(self, size: int, *, seconds: float = 300.0) -> None:
        """Wait for the size, by the records and by the provider's own books."""

        def is_settled() -> bool:
            return self._has(size) and self._compare() == (set(), set())

        try:
            await eventually(is_settled, seconds=seconds, interval=0.3)
        except AssertionError as late:
            leaders = [server for server in self.servers.values() if server.lead is not None]
            records = [
                (record.id, record.state.value, record.message)
                for server in leaders
                for record in server.shard.instances.values()
                if record.state is not State.DELETED
            ]
            books = self._compare() if leaders else ()
            raise AssertionError(f"leaked and lost: {books}, {len(leaders)} leaders, records {records}") from late
        assert not self.problems, self.problems
        assert set(self.place.books().values()) <= {1}, self.place.books()

    def _has(self, size: int) -> bool:
        if not any(server.lead is not None for server in self.servers.values()):
            return False
        records = self.leader.shard.instances.values()
        alive = [record for record in records if record.state in LIVING]
        leaving = [record for record in records if record.state in (State.DRAINING, State.DELETING)]
        return len(alive) == size and not leaving and all(record.state is not State.PENDING for record in alive)

    def _compare(self) -> tuple[set[str], set[str]]:
        """VMs without a record, and records without their VM."""
        existing = set(self.place.books())
        records = {str(r.id) for r in self.leader.shard.instances.values() if r.state in LIVING}
        return existing - records, records - existing

    def types(self) -> Counter[str]:
        return Counter(r.instance_type for r in self.leader.shard.instances.values() if r.state in LIVING)


@contextlib.asynccontextmanager
async def on_prem_servers(dir: Path, provider: str) -> AsyncIterator[OnPremServers]:
    async with contextlib.AsyncExitStack() as stack:
        place: Place
        if provider == "proxmox":
            place = ProxmoxPlace(await stack.enter_async_context(provider_worlds.proxmox_world()))
        else:
            place = QemuPlace(await stack.enter_async_context(provider_worlds.qemu_world()))
        world = OnPremServers(dir, place)
        async with world:
            yield world
        for door in world.doors:
            await door.close()
