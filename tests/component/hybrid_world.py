"""Shards of one cluster on different providers. Each has its stand-in; the agents on its VMs are light ones.

A provider whose stand-in is missing on this machine is left out with a message.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from component.whole_server import CLUSTER, Json, World
from contracts import aws_world, provider_worlds
from nstance.model.ids import InstanceId, ShardId
from nstance.providers import errors, port
from nstance.providers.port import CreateRequest, Status, Vm

T = TypeVar("T")

ADDRESS = "10.0.0.5"  # of a VM whose provider does not know it: its agent reports it


@dataclass
class Place:
    """A provider's stand-in, and what the configuration of its shard says."""

    world: Any  # one of the worlds of the contract suite
    infra: Json
    template: Json
    subnets: tuple[str, ...] = ()


async def _aws(stack: AsyncExitStack) -> Place:
    made = await stack.enter_async_context(aws_world.aws_world())
    template = {"instance_type": aws_world.TYPE, "args": dict(aws_world.ARGS)}
    return Place(made, {"provider": "aws", "region": "r", "zone": "z"}, template, (made.subnets[0],))


async def _gcp(stack: AsyncExitStack) -> Place:
    try:
        found = importlib.import_module("contracts.gcp_world")
    except ModuleNotFoundError:
        pytest.skip("needs the provider gcp and its stand-in")
    made = await stack.enter_async_context(found.gcp_world())
    template = {"instance_type": found.TYPE, "args": dict(found.ARGS)}
    infra = {"provider": "gcp", "region": "europe-west1", "zone": "europe-west1-b"}
    return Place(made, infra, template, ("subnet-1",))


async def _proxmox(stack: AsyncExitStack) -> Place:
    made = await stack.enter_async_context(provider_worlds.proxmox_world())
    args = {"TemplateName": "debian", "StoragePool": "local-lvm"}
    return Place(made, {"provider": "proxmox"}, {"instance_type": "cpu:1,memory:64", "args": args})


async def _qemu(stack: AsyncExitStack) -> Place:
    made = await stack.enter_async_context(provider_worlds.qemu_world())
    return Place(made, {"provider": "qemu"}, {"instance_type": "cpu:1,memory:16", "args": {"Image": "guest.raw"}})


async def _process(stack: AsyncExitStack) -> Place:
    made = await stack.enter_async_context(provider_worlds.process_world())
    return Place(made, {"provider": "process"}, {})


OPENERS: dict[str, Callable[[AsyncExitStack], Awaitable[Place]]] = {
    "process": _process,
    "qemu": _qemu,
    "proxmox": _proxmox,
    "aws": _aws,
    "gcp": _gcp,
}


async def open_places(stack: AsyncExitStack) -> dict[str, Place]:
    """By the name of the shard, which is the provider's."""
    found: dict[str, Place] = {}
    for name, opener in OPENERS.items():
        try:
            found[name] = await opener(stack)
        except pytest.skip.Exception as missing:
            print(f"hybrid: without {name}: {missing}")
    return found


class HybridShard(World):
    def __init__(self, dir: Path, settings: Json, *, shard: ShardId, beside: World | None, place: Place) -> None:
        self.place = place
        self.is_lit = asyncio.Event()  # otherwise calls hang: none reaches the provider, and no answer comes back
        self.is_lit.set()
        shard_settings = {**settings["shard"], "infra": place.infra, "subnet_pools": {}}
        if place.subnets:
            shard_settings["subnet_pools"] = {"main": list(place.subnets)}
        shard_settings["garbage_collection"] = {"interval": "1s", "registration_timeout": "60s"}
        web = {key: value for key, value in settings["templates"]["web"].items() if key != "instance_type"}
        changed = {**settings, "shard": shard_settings, "templates": {"web": {**web, **place.template}}}
        super().__init__(dir, changed, shard=shard, beside=beside)

    def open_provider(self, name: str) -> port.Instances:
        provider = self.place.world.door(port.Scope(cluster=CLUSTER, shard=self.shard))
        for method in ("create", "delete", "get", "list"):
            is_change = method in ("create", "delete")
            setattr(provider, method, self._unless_dark(getattr(provider, method), is_change=is_change))
        create = provider.create

        async def create_and_boot(request: CreateRequest) -> Vm:
            vm: Vm = await create(request)
            if request.id not in self.agents and vm.status in (Status.PENDING, Status.RUNNING):
                self._boot(request, vm)
            return vm

        provider.create = create_and_boot
        return provider  # type: ignore[no-any-return]

    def _unless_dark(self, call: Callable[..., Awaitable[T]], *, is_change: bool) -> Callable[..., Awaitable[T]]:
        async def guarded(*args: Any) -> T:
            if not self.is_lit.is_set():
                await self.is_lit.wait()
                raise (errors.UnknownOutcomeError if is_change else errors.UnavailableError)("no answer")
            return await call(*args)

        return guarded

    def count(self) -> int:
        """Running VMs of the group by the provider's own books."""
        return sum(self.place.world.count(id) for id in self.agents)

    def kill(self, id: InstanceId) -> None:
        """The VM stops, and its agent with it."""
        self.place.world.end_by_hand(id)
        self.agents[id].stop()
