"""VMs of a Proxmox VE cluster: clones of a template, with the userdata on an ISO.

A VM is found by its name, which is the instance ID. Its VMID follows from the instance ID too, so the intent in the journal
holds it, and a repeated create asks for the same one. A VM has no name while it is cloned: who finds such a VM under a VMID
of its own waits until it is certain whose it is, and never asks for the next VMID instead. A create is many calls, and a
server may die between any two. So each step looks first: a VM that carries the tag `nstance-new` was never started and is
finished by the next create.
"""

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from nstance.clock import Clock
from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import errors, machine_size, port, seed_iso
from nstance.providers.machine_size import MachineSize
from nstance.providers.port import CreateRequest, Status, Vm
from nstance.providers.proxmox import arguments, cloning, network, ownership, places
from nstance.providers.proxmox.arguments import Arguments
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.cloning import Cloning, half_made
from nstance.providers.proxmox.inventory import CREATING, CloningError, Inventory, PveVm
from nstance.providers.proxmox.ownership import Owner
from nstance.providers.proxmox.places import Places
from nstance.providers.proxmox.preflight import PreflightChecks
from nstance.providers.proxmox.seeds import Seeds
from nstance.providers.proxmox.settings import ProxmoxSettings

DEFAULT_SIZE = MachineSize(cpus=1, memory_mib=1024)
SEED_DEVICE = "ide2"
_ALREADY = "already running"


class ProxmoxProvider(port.Instances, port.Preflight):
    def __init__(self, scope: port.Scope, client: ProxmoxClient, clock: Clock, settings: ProxmoxSettings) -> None:
        self._scope, self._client, self._clock, self._settings = scope, client, clock, settings
        self._inventory = Inventory(client, settings.vmids, settings.pool)
        self._seeds = Seeds(client, clock, settings.iso_storage)
        self._places = Places(self._inventory, settings.iso_storage, settings.limits)
        self._cloning = Cloning(scope, client, clock, settings, self._inventory)
        self._locks: weakref.WeakValueDictionary[InstanceId, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def traits(self) -> port.Traits:
        return port.Traits(is_consistent=True)

    async def create(self, request: CreateRequest) -> Vm:
        args = arguments.parse(request.args)
        size = machine_size.parse(request.instance_type) if request.instance_type else DEFAULT_SIZE
        if len(request.userdata) > seed_iso.MAX_USERDATA_BYTES:
            raise errors.PermanentError(
                f"expected at most {seed_iso.MAX_USERDATA_BYTES} bytes of userdata, found {len(request.userdata)}",
                parameter="userdata",
            )
        lock = self._locks.setdefault(request.id, asyncio.Lock())
        async with lock:
            with self._cloning.promising(request.id):
                return await self._create(request, args, size)

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        nodes = await self._usable_nodes()
        try:
            found = await self._inventory.find(id)
        except CloningError:
            await self._seeds.bury(nodes, id)  # the create that clones it will see that
            raise
        if found is None:
            # A create may still be under way somewhere: the tombstone stops it. A delete that broke half-way left the seed.
            await self._seeds.bury(nodes, id)
            for node in nodes:
                await self._seeds.remove(node, id)
            return await self._confirm_deleted(id)
        self._check_provider_id(found, provider_id)
        owner = await self._owner(found)
        if not owner.is_known and provider_id is None:
            raise errors.PermanentError(
                f"expected VM {found.vmid} ({id}) to carry the tags of its owner, found none: remove it by hand"
            )
        self._check_owner(owner, id, is_optional=True)
        if found.node not in nodes:
            raise errors.UnavailableError(f"node {found.node} of {id} is offline: it is deleted when the node returns")
        await self._seeds.bury([found.node, *(node for node in nodes if node != found.node)], id)
        if await self._destroy(found):
            self._cloning.forget(id)
            await self._seeds.remove(found.node, id)
            await self._sweep(nodes)
        return await self._confirm_deleted(id)

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> Vm:
        found = await self._inventory.find(id)
        if found is None:
            raise errors.NotFoundError(f"Proxmox has no VM named {id}")
        self._check_provider_id(found, provider_id)
        owner = await self._owner(found)
        self._check_owner(owner, id, is_optional=True)
        return await self._vm(found, owner)

    async def list(self) -> Sequence[Vm]:
        out = []
        for found in await self._inventory.vms():
            if found.is_unnamed and ownership.from_tags(found.tags).owned_by(self._scope):
                raise errors.UnavailableError(
                    f"VM {found.vmid} is ours, and its name is not known while node {found.node} is offline"
                )
            if found.instance is None:
                continue
            owner = await self._owner(found)
            if not owner.is_known or owner.owned_by(self._scope):
                out.append(await self._vm(found, owner))
        return out

    async def preflight(self, plan: port.CloudPlan) -> Sequence[port.Fault]:
        checks = PreflightChecks(self._client, self._inventory, self._places, self._settings.limits)
        return await checks.run(plan, pool=self._settings.pool, iso_storage=self._settings.iso_storage)

    async def close(self) -> None:
        await self._client.close()

    # ---- create

    async def _create(self, request: CreateRequest, args: Arguments, size: MachineSize) -> Vm:
        found = await self._cloning.settle(request.id)
        if found is not None:
            self._check_owner(await self._owner(found), request.id, is_optional=False)
        elif await self._seeds.is_buried(await self._usable_nodes(), request.id):
            raise errors.deleted(request.id)
        else:
            found = await self._cloning.clone(request, args, size)
        try:
            vm = await self._finish(request, args, size, found)
        except errors.NotFoundError as problem:
            if await self._seeds.is_buried(await self._usable_nodes(), request.id):
                await self._seeds.remove(found.node, request.id)
                raise errors.deleted(request.id) from problem
            raise errors.UnknownOutcomeError(f"VM {found.vmid} of {request.id} vanished: {problem}") from problem
        except (errors.PermanentError, errors.NoCapacityError) as problem:
            if not await self._discard(found):
                raise half_made(request.id, problem) from problem
            raise
        except (errors.UnavailableError, errors.ThrottledError) as problem:
            raise half_made(request.id, problem) from problem
        if vm is None:
            raise errors.deleted(request.id)
        return vm

    async def _discard(self, vm: PveVm) -> bool:
        """Removes a VM that was never started, so that an error which says "nothing was created" is true. False: it stays."""
        try:
            status = await self._status(vm)
            if status is Status.DELETING:
                return True  # it is gone
            if status is not Status.PENDING or not await self._destroy(vm):
                return False
            await self._seeds.remove(vm.node, InstanceId(vm.name))
        except errors.ProviderError as problem:
            raise half_made(InstanceId(vm.name), problem) from problem
        return True

    async def _finish(self, request: CreateRequest, args: Arguments, size: MachineSize, found: PveVm) -> Vm | None:
        """From a clone to a started VM. Every step may have been done by an earlier call. None: it was deleted meanwhile."""
        config = await self._unlocked_config(found)
        owner = ownership.owner_of(self._scope, request)
        if SEED_DEVICE not in config or self._seeds.volume(request.id) not in str(config[SEED_DEVICE]):
            changes = self._new_config(request, args, size, config)
            interface = str(changes.get("net0") or config.get("net0") or "")
            await self._seeds.upload(found.node, request.id, request.userdata, network.render(args.ip, interface))
            if size.disk_gib is not None:
                places.check_disk(config, args.disk_device)
                await self._resize(found, args.disk_device, size.disk_gib)
            await self._configure(found, changes)  # the seed is the last: its device says that nothing is missing
            config = await self._unlocked_config(found)
        # A delete that ran meanwhile saw no VM: its tombstone is the only trace.
        if await self._seeds.is_buried(await self._usable_nodes(), request.id):
            await self._destroy(found)
            await self._seeds.remove(found.node, request.id)
            return None
        if ownership.is_new(str(config.get("tags") or "")):
            await self._start(found)
            tags = ownership.tags(owner, request.id, is_new=False, extra=args.tags)
            await self._configure(found, {"tags": tags})
        return await self._vm(found, owner)

    def _new_config(
        self, request: CreateRequest, args: Arguments, size: MachineSize, config: Mapping[str, Any]
    ) -> dict[str, object]:
        owner = ownership.owner_of(self._scope, request)
        changes: dict[str, object] = {
            "cores": size.cpus,
            "memory": size.memory_mib,
            SEED_DEVICE: f"{self._seeds.volume(request.id)},media=cdrom",
            "tags": ownership.tags(owner, request.id, is_new=True, extra=args.tags),
        }
        if args.cpu_type:
            changes["cpu"] = args.cpu_type
        bridge = request.subnet or args.bridge or self._settings.bridge
        if bridge or args.vlan is not None:
            changes["net0"] = network.interface(str(config.get("net0") or "virtio"), bridge, args.vlan)
        return changes

    async def _configure(self, vm: PveVm, changes: Mapping[str, object]) -> None:
        await self._client.change(
            "PUT", f"{vm.path}/config", permission=f"VM.Config.* on /vms/{vm.vmid}", **dict(changes)
        )

    async def _resize(self, vm: PveVm, device: str, gib: int) -> None:
        upid = await self._client.change(
            "PUT", f"{vm.path}/resize", permission=f"VM.Config.Disk on /vms/{vm.vmid}", disk=device, size=f"{gib}G"
        )
        if upid:
            await self._client.finish_task(str(upid), permission=f"VM.Config.Disk on /vms/{vm.vmid}")

    async def _start(self, vm: PveVm) -> None:
        permission = f"VM.PowerMgmt on /vms/{vm.vmid}"
        try:
            upid = await self._client.change("POST", f"{vm.path}/status/start", permission=permission)
            await self._client.finish_task(str(upid), permission=permission)
        except errors.ProviderError as problem:
            if _ALREADY not in str(problem):
                raise

    async def _unlocked_config(self, vm: PveVm) -> Mapping[str, Any]:
        """Its configuration, once no other call clones it any more."""
        deadline = self._clock.monotonic() + cloning.UNLOCK_SECONDS
        while True:
            config = await self._config(vm)
            if config.get("lock") not in CREATING:
                return config
            if self._clock.monotonic() > deadline:
                raise errors.UnknownOutcomeError(f"VM {vm.vmid} is still locked ({config['lock']}) by its clone")
            await self._clock.sleep(cloning.STEP_SECONDS)

    async def _config(self, vm: PveVm) -> Mapping[str, Any]:
        found = await self._inventory.config(vm)
        if found.get("name") != vm.name:
            # A VMID is used again at once after a delete. The name says which VM this is.
            raise errors.NotFoundError(f"VM {vm.vmid} is no longer {vm.name}, it is {found.get('name')!r}")
        return found

    # ---- delete

    async def _destroy(self, vm: PveVm) -> bool:
        """Stops and removes it. False while it is being cloned. The name is compared first."""
        try:
            config = await self._config(vm)
            if config.get("lock") in CREATING:
                return False
            if await self._power(vm) != "stopped":
                upid = await self._client.change(
                    "POST", f"{vm.path}/status/stop", permission=f"VM.PowerMgmt on /vms/{vm.vmid}"
                )
                await self._client.finish_task(str(upid), permission=f"VM.PowerMgmt on /vms/{vm.vmid}")
            await self._config(vm)
            upid = await self._client.change(
                "DELETE",
                vm.path,
                permission=f"VM.Allocate on /vms/{vm.vmid}",
                purge=True,
                destroy_unreferenced_disks=True,
            )
            await self._client.finish_task(str(upid), permission=f"VM.Allocate on /vms/{vm.vmid}")
        except errors.NotFoundError:
            pass
        return True

    async def _sweep(self, nodes: Sequence[str]) -> None:
        """A create that was under way during a delete may have died before it saw the tombstone: its clone was never started
        and nobody waits for it."""
        buried = await self._seeds.sweep(nodes)
        for vm in await self._inventory.vms() if buried else ():
            if vm.instance in buried and (await self._owner(vm)).owned_by(self._scope):
                await self._discard(vm)

    async def _confirm_deleted(self, id: InstanceId) -> Status:
        return Status.DELETED if await self._inventory.find(id) is None else Status.DELETING

    # ---- answers

    async def _vm(self, found: PveVm, owner: Owner) -> Vm:
        return Vm(
            id=InstanceId(found.name),
            provider_id=_provider_id(found),
            status=await self._status(found),
            hostname=found.name,
            cluster=owner.cluster,
            shard=owner.shard,
            tenant=owner.tenant,
            group=owner.group,
        )

    async def _status(self, found: PveVm) -> Status:
        if found.lock in CREATING:
            return Status.PENDING
        if found.status == "running":
            return Status.RUNNING
        if found.status not in ("stopped", "unknown"):
            return Status.UNKNOWN
        # The cluster's list is some seconds old: a VM that was just started is still "stopped" in it.
        try:
            power, config = await self._power(found), await self._config(found)
        except errors.NotFoundError:
            return Status.DELETING
        except errors.UnavailableError:
            return Status.UNKNOWN
        if power == "running":
            return Status.RUNNING
        return (
            Status.PENDING
            if SEED_DEVICE not in config or ownership.is_new(str(config.get("tags") or ""))
            else (Status.STOPPED)
        )

    async def _power(self, vm: PveVm) -> str:
        found = await self._client.get(f"{vm.path}/status/current", permission=f"VM.Audit on /vms/{vm.vmid}")
        return str(found.get("status")) if isinstance(found, dict) else "unknown"

    async def _owner(self, found: PveVm) -> Owner:
        owner = ownership.from_tags(found.tags)
        if owner.is_known and owner.tenant is not None and owner.group is not None:
            return owner
        try:
            return ownership.from_notes(str((await self._config(found)).get("description") or ""))
        except errors.NotFoundError:
            return owner

    def _check_owner(self, owner: Owner, id: InstanceId, *, is_optional: bool) -> None:
        if owner.owned_by(self._scope) or (is_optional and not owner.is_known):
            return
        raise errors.PermanentError(
            f"expected {id} to belong to shard {self._scope.shard} of cluster {self._scope.cluster}, found shard "
            f"{owner.shard} of cluster {owner.cluster}"
        )

    def _check_provider_id(self, found: PveVm, provider_id: ProviderId | None) -> None:
        if provider_id not in (None, _provider_id(found)):
            raise errors.PermanentError(f"expected provider ID {_provider_id(found)}, found {provider_id}")

    async def _usable_nodes(self) -> Sequence[str]:
        names = sorted(node.name for node in await self._inventory.nodes() if node.is_usable)
        if not names:
            raise errors.UnavailableError("expected a node that is online, found none")
        return names


def _provider_id(vm: PveVm) -> ProviderId:
    return ProviderId(f"proxmox:///{vm.vmid}/{vm.name}")
