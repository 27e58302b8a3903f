"""A template's `args` for Proxmox, read before anything is created."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nstance.providers import errors
from nstance.proxmox import network
from nstance.proxmox.arguments import find_faults
from nstance.proxmox.network import IpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    template: str | int
    storages: tuple[str, ...]  # of the disks; the one with the most space on the node is used
    full_clone: bool = True
    disk_device: str = "scsi0"
    bridge: str = ""
    vlan: int | None = None
    ip: IpConfig = field(default_factory=IpConfig)
    pool: str = ""
    cpu_type: str = ""
    tags: tuple[str, ...] = ()


def parse(args: Mapping[str, object]) -> Arguments:
    """Raises PermanentError with the name of the first bad argument."""
    for fault in find_faults(args):
        name = str(fault.path[0])
        near = difflib.get_close_matches(name, fault.known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(fault.known)}" if fault.known else ""
        raise errors.PermanentError(f"argument {name}: {fault.message}{hint}", parameter=name)
    values: dict[str, Any] = {name: value for name, value in args.items() if value not in (None, "")}
    if ("TemplateName" in values) == ("TemplateVMID" in values):
        raise errors.PermanentError("expected exactly one of TemplateName and TemplateVMID", parameter="TemplateName")
    if not values.get("StoragePool"):
        raise errors.PermanentError("expected argument StoragePool for a VM's disks", parameter="StoragePool")
    storages = values["StoragePool"]
    return Arguments(
        template=values.get("TemplateVMID") or values["TemplateName"],
        storages=(storages,) if isinstance(storages, str) else tuple(storages),
        full_clone=values.get("FullClone", True),
        disk_device=values.get("DiskDevice", "scsi0"),
        bridge=values.get("Bridge", ""),
        vlan=values.get("Vlan"),
        ip=IpConfig(
            **network.parse(values.get("IpConfig", "")),
            nameservers=tuple(values.get("Nameservers", ())),
            search_domain=values.get("SearchDomain", ""),
        ),
        pool=values.get("Pool", ""),
        cpu_type=values.get("CpuType", ""),
        tags=tuple(values.get("ExtraTags", ())),
    )
