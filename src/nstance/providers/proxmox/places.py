"""Where a VM goes: a template, a node and a storage that can make it together."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.model.ids import InstanceId
from nstance.providers import errors
from nstance.providers.machine_size import MachineSize
from nstance.providers.proxmox import inventory, placement
from nstance.providers.proxmox.arguments import Arguments
from nstance.providers.proxmox.inventory import Inventory, PveVm, Storage
from nstance.providers.proxmox.placement import Limits, Promise

_DISK = re.compile(r"(scsi|virtio|sata|ide|efidisk|tpmstate)\d+")


@dataclass(frozen=True, slots=True)
class Place:
    template: PveVm
    node: str
    storage: str


class Places:
    def __init__(self, found: Inventory, iso_storage: str, limits: Limits) -> None:
        self._inventory = found
        self._iso_storage, self._limits = iso_storage, limits

    async def choose(
        self,
        vms: Sequence[PveVm],
        args: Arguments,
        size: MachineSize,
        in_flight: Callable[[], Mapping[InstanceId, Promise]],
    ) -> Place:
        """The node of the template, or any if the template's disks are shared. Raises PermanentError, NoCapacityError."""
        templates = find_templates(vms, args)
        nodes = await self._inventory.nodes()
        usable = sorted(node.name for node in nodes if node.is_usable)
        storages = {name: await self._inventory.storages(name) for name in usable}
        sources = {name: vm for name, vm in templates.items() if name in usable}
        for name, vm in list(sources.items()):
            if len(sources) < len(usable) and await self._is_shared(vm, storages[name]):
                sources |= {other: vm for other in usable if other not in sources}
        allowed = {name: self.why_not(storages[name], args) for name in sources}
        if allowed and all(allowed.values()) and len(usable) == len(nodes):
            # On every node, and all of them are there: waiting does not help.
            raise errors.PermanentError(next(iter(allowed.values())), parameter="StoragePool")
        promised = in_flight()  # those of now: others were promised meanwhile
        shown = inventory.promises([vm for vm in vms if vm.instance not in promised])
        chosen = placement.choose_node(nodes, allowed, [*shown, *promised.values()], size, self._limits)
        return Place(sources[chosen], chosen, inventory.best_storage(storages[chosen], args.storages))

    def why_not(self, storages: Mapping[str, Storage], args: Arguments) -> str:
        """Why a node with these storages cannot have such a VM; empty if it can."""
        reasons = [inventory.why_no_storage(storages, name, "images") for name in args.storages]
        return reasons[0] if all(reasons) else inventory.why_no_storage(storages, self._iso_storage, "iso")

    async def _is_shared(self, template: PveVm, storages: Mapping[str, Storage]) -> bool:
        """Whether all disks of a template are on storages that every node reaches."""
        config = await self._inventory.config(template)
        names = {
            str(value).partition(":")[0] for key, value in config.items() if _DISK.fullmatch(key) and ":" in str(value)
        }
        return all(name in storages and storages[name].is_shared for name in names)


def check_disk(config: Mapping[str, Any], device: str) -> None:
    """Raises PermanentError if a VM or template has no such disk to give the size of the instance type."""
    if device not in config:
        found = ", ".join(sorted(name for name in config if _DISK.fullmatch(name))) or "none"
        raise errors.PermanentError(
            f"expected a disk {device} in the template for the size of its disk, found {found}", parameter="DiskDevice"
        )


def find_templates(vms: Sequence[PveVm], args: Arguments) -> dict[str, PveVm]:
    """By node. Raises PermanentError, and UnavailableError while it may be one that cannot be seen."""
    found = {vm.node: vm for vm in vms if vm.is_template and args.template in (vm.name, vm.vmid)}
    unseen = sorted({vm.node for vm in vms if vm.is_unnamed and vm.lock not in inventory.CREATING})
    if not found and unseen:
        raise errors.UnavailableError(
            f"expected a template {args.template!r} in the cluster, found none; what is on {', '.join(unseen)}, which is "
            "offline, cannot be seen"
        )
    if not found:
        raise errors.PermanentError(
            f"expected a template {args.template!r} in the cluster, found none",
            parameter="TemplateName" if isinstance(args.template, str) else "TemplateVMID",
        )
    return found
