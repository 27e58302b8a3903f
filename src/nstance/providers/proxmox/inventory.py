"""What a Proxmox cluster has: its VMs, templates and nodes, from one complete answer of the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.model import ids
from nstance.model.ids import InstanceId
from nstance.providers import errors
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.placement import MIB, Node, Promise

AUDIT = "VM.Audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PveVm:
    vmid: int
    name: str
    node: str
    status: str
    tags: str = ""
    lock: str = ""
    is_template: bool = False
    memory_mib: int = 0
    cpus: int = 0

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/qemu/{self.vmid}"

    @property
    def instance(self) -> InstanceId | None:
        is_ours = not self.is_template and ids.is_instance_id(self.name)
        return InstanceId(self.name) if is_ours else None


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
    def __init__(self, client: ProxmoxClient, pool: str = "") -> None:
        self._client = client
        self._pool = pool
        self._may_list = False

    async def vms(self) -> Sequence[PveVm]:
        """All VMs of the cluster. A token without the right to see them gets a short list without an error, so the right is
        checked first."""
        if not self._may_list:
            await self._check_right()
            self._may_list = True
        found = await self._client.get("/cluster/resources", permission=f"{AUDIT} on /vms", type="vm")
        return [_vm(each) for each in _entries(found) if each.get("type") == "qemu"]

    async def find(self, id: InstanceId) -> PveVm | None:
        """By its name. Raises UnknownOutcomeError if there are two."""
        found = [vm for vm in await self.vms() if vm.instance == id]
        if len(found) > 1:
            places = ", ".join(f"{vm.vmid} on {vm.node}" for vm in found)
            raise errors.UnknownOutcomeError(f"expected one VM named {id}, found {places}: remove one by hand")
        return found[0] if found else None

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
        if not isinstance(found, dict) or not any(AUDIT in (found.get(path) or ()) for path in paths):
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
        memory_mib=int(each.get("maxmem") or 0) // MIB,
        cpus=int(each.get("maxcpu") or 0),
    )
