"""What a Proxmox cluster has: its VMs, templates and nodes, from one complete answer of the cluster.

The traps: that answer has names, states and sizes as the nodes last reported them. A new VM has none of them for some
seconds, and one of an offline node loses them after some minutes. And while a VM is cloned, not even its configuration has
its name. So what is missing is read from the configuration, or from the tags, which the answer always has; and what has no
name at all may be the VM that is looked for, which is an error and never an absence.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nstance.model import ids
from nstance.model.ids import InstanceId
from nstance.providers import errors
from nstance.providers.proxmox import ownership, vmids
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.placement import MIB, Node, Promise

AUDIT = "VM.Audit"
CREATING = ("clone", "create")  # locks


@dataclass(frozen=True, slots=True, kw_only=True)
class PveVm:
    vmid: int
    name: str
    node: str
    status: str
    tags: str = ""
    lock: str = ""
    is_template: bool = False
    is_container: bool = False  # it takes a VMID and memory
    memory_mib: int = 0
    cpus: int = 0

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/qemu/{self.vmid}"

    @property
    def instance(self) -> InstanceId | None:
        is_ours = not self.is_template and not self.is_container and ids.is_instance_id(self.name)
        return InstanceId(self.name) if is_ours else None

    @property
    def is_unnamed(self) -> bool:
        """It is being cloned, or its node is offline and it has none of our tags."""
        return not self.name and not self.is_container


class CloningError(errors.UnavailableError):
    """The VM that is looked for may be one that is being cloned, which has no name yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    content: Sequence[str]
    is_active: bool
    is_shared: bool
    free_bytes: int = 0


def best_storage(storages: Mapping[str, Storage], names: Sequence[str]) -> str:
    """Of those that can hold disks, the one with the most free space; among equals the first that is named."""
    usable = [name for name in names if not why_no_storage(storages, name, "images")]
    return max(usable, key=lambda name: storages[name].free_bytes, default=names[0])


def why_no_storage(storages: Mapping[str, Storage], name: str, content: str) -> str:
    """Why VMs on a node with these storages cannot use one; empty if they can."""
    found = storages.get(name)
    if found is None:
        return f"it has no storage {name}"
    if content not in found.content:
        return f"storage {name} has no content type {content!r}"
    return "" if found.is_active else f"storage {name} is not active"


class Inventory:
    def __init__(self, client: ProxmoxClient, vmids: range, pool: str = "") -> None:
        self._client = client
        self._vmids = vmids
        self._pool = pool

    async def vms(self) -> Sequence[PveVm]:
        """All VMs of the cluster, and its containers. A token without the right to see them gets a short list without an
        error, so the right is checked after each list: it may be taken away at any time."""
        found = await self._client.get("/cluster/resources", permission=f"{AUDIT} on /vms", type="vm")
        await self._check_right()
        vms = [_vm(each) for each in _entries(found) if each.get("type") in ("qemu", "lxc")]
        unnamed = [vm for vm in vms if vm.is_unnamed]
        if not unnamed:
            return vms
        usable = {node.name for node in await self.nodes() if node.is_usable}
        completed = await asyncio.gather(*(self._complete(vm, is_reachable=vm.node in usable) for vm in unnamed))
        return [*(vm for vm in vms if not vm.is_unnamed), *(vm for vm in completed if vm is not None)]

    async def _complete(self, vm: PveVm, *, is_reachable: bool) -> PveVm | None:
        """None: it is gone."""
        by_tags = replace(vm, name=vm.name or ownership.id_of(vm.tags))
        if not is_reachable:
            return by_tags
        try:
            found = await self._client.get(f"{vm.path}/config", permission=f"{AUDIT} on /vms/{vm.vmid}", current=True)
        except errors.NotFoundError:
            return None
        except (errors.UnavailableError, errors.PermanentError):
            return by_tags
        config: Mapping[str, Any] = found if isinstance(found, dict) else {}
        lock = str(config.get("lock") or "")
        return replace(
            vm,
            name=str(config.get("name") or ("" if lock in CREATING else f"VM {vm.vmid}")),
            tags=str(config.get("tags") or ""),
            lock=lock,
            is_template=bool(config.get("template")),
            memory_mib=_number(config.get("memory")),
            cpus=max(1, _number(config.get("sockets"))) * max(1, _number(config.get("cores"))),
        )

    async def find(self, id: InstanceId) -> PveVm | None:
        """By its name. Raises UnknownOutcomeError if there are two, and CloningError or UnavailableError if a VM without a name
        may be it."""
        vms = await self.vms()
        found = [vm for vm in vms if vm.instance == id]
        if len(found) > 1:
            places = ", ".join(f"{vm.vmid} on {vm.node}" for vm in found)
            raise errors.UnknownOutcomeError(f"expected one VM named {id}, found {places}: remove one by hand")
        if found:
            return found[0]
        drawn = set(vmids.draws(id, self._vmids))
        for vm in [await self._look(vm) for vm in vms if vm.vmid in drawn]:
            if vm is not None and vm.instance == id:
                return vm
            if vm is not None and vm.is_unnamed and vm.lock in CREATING:
                raise CloningError(
                    f"VM {vm.vmid} on {vm.node} is being cloned and may be {id}; if no task does that, remove it by hand"
                )
            if vm is not None and vm.is_unnamed:
                raise errors.UnavailableError(
                    f"VM {vm.vmid} on {vm.node} cannot be looked at and may be {id}: its node is offline"
                )
        return None

    async def at(self, vmid: int) -> PveVm | None:
        """The VM that has a VMID now."""
        found = next((vm for vm in await self.vms() if vm.vmid == vmid), None)
        return found if found is None else await self._look(found)

    async def _look(self, vm: PveVm) -> PveVm | None:
        """As it is now: under a VMID that was used again the cluster shows the name of the old VM for a while."""
        return vm if vm.is_unnamed or vm.is_container else await self._complete(vm, is_reachable=True)

    async def config(self, vm: PveVm) -> Mapping[str, Any]:
        """Raises NotFoundError."""
        found = await self._client.get(f"{vm.path}/config", permission=f"{AUDIT} on /vms/{vm.vmid}", current=True)
        if not isinstance(found, dict):
            raise errors.UnavailableError(f"expected the configuration of VM {vm.vmid}, found something else")
        return found

    async def nodes(self) -> Sequence[Node]:
        found = await self._client.get("/cluster/resources", permission="Sys.Audit on /nodes", type="node")
        return [
            Node(
                name=str(each.get("node")),
                is_usable=each.get("status") == "online" and each.get("hastate") != "maintenance",
                memory_mib=int(each.get("maxmem") or 0) // MIB,
                cpus=int(each.get("maxcpu") or 0),
            )
            for each in _entries(found)
        ]

    async def storages(self, node: str) -> Mapping[str, Storage]:
        found = await self._client.get(f"/nodes/{node}/storage", permission="Datastore.Audit on /storage")
        return {
            str(each.get("storage")): Storage(
                content=tuple(str(each.get("content", "")).split(",")),
                is_active=bool(each.get("active", 1)) and bool(each.get("enabled", 1)),
                is_shared=bool(each.get("shared")),
                free_bytes=int(each.get("avail") or 0),
            )
            for each in _entries(found)
        }

    async def _check_right(self) -> None:
        found = await self._client.get("/access/permissions", permission=f"{AUDIT} on /vms")
        paths = ("/", "/vms", *([f"/pool/{self._pool}"] if self._pool else []))
        if not isinstance(found, dict) or not any((found.get(path) or {}).get(AUDIT) for path in paths):
            raise errors.PermanentError(
                f"expected a token with {AUDIT} on /vms, found none: without it VMs are missing from lists; see "
                "docs/proxmox.md#permissions",
                permission=f"{AUDIT} on /vms",
            )


def promises(vms: Sequence[PveVm]) -> list[Promise]:
    """Templates and VMs that were stopped need nothing; a VM that is being created will."""
    return [
        Promise(vm.node, vm.memory_mib, vm.cpus)
        for vm in vms
        if not vm.is_template and (vm.status != "stopped" or vm.lock or vm.instance is not None)
    ]


def _entries(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise errors.UnavailableError("expected a list from Proxmox, found something else")
    return found


def _vm(each: dict[str, Any]) -> PveVm:
    return PveVm(
        vmid=int(each["vmid"]),
        name=str(each.get("name") or ""),
        node=str(each.get("node")),
        status=str(each.get("status") or "unknown"),
        tags=str(each.get("tags") or ""),
        lock=str(each.get("lock") or ""),
        is_template=bool(each.get("template")),
        is_container=each.get("type") == "lxc",
        memory_mib=int(each.get("maxmem") or 0) // MIB,
        cpus=int(each.get("maxcpu") or 0),
    )


def _number(value: object) -> int:
    """Memory may be written as `current=2048`."""
    text = str(value or 0).removeprefix("current=").partition(",")[0]
    return int(text) if text.isdecimal() else 0
