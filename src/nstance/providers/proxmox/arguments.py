"""A template's `args` for Proxmox, checked before anything is created."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nstance.providers import errors
from nstance.providers.proxmox import network
from nstance.providers.proxmox.network import IpConfig

_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "TemplateName": ("a text", (str,)),
    "TemplateVMID": ("a whole number", (int,)),
    "StoragePool": ("a text or a list of texts", (str, list, tuple)),
    "FullClone": ("true or false", (bool,)),
    "DiskDevice": ("a text", (str,)),
    "Bridge": ("a text", (str,)),
    "Vlan": ("a whole number", (int,)),
    "IpConfig": ("a text", (str,)),
    "Nameservers": ("a list of texts", (list, tuple)),
    "SearchDomain": ("a text", (str,)),
    "Pool": ("a text", (str,)),
    "CpuType": ("a text", (str,)),
    "ExtraTags": ("a list of texts", (list, tuple)),
}
NAMES = tuple(_TYPES)


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
    values: dict[str, Any] = {}
    for name, value in args.items():
        if name not in _TYPES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(NAMES)}"
            raise errors.PermanentError(f"provider 'proxmox' has no argument {name!r}; {hint}", parameter=name)
        expected, types = _TYPES[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise errors.PermanentError(
                f"expected {expected} in argument {name}, found {type(value).__name__}", parameter=name
            )
        values[name] = value
    name, vmid = values.get("TemplateName", ""), values.get("TemplateVMID")
    if bool(name) == bool(vmid):
        raise errors.PermanentError("expected exactly one of TemplateName and TemplateVMID", parameter="TemplateName")
    if not values.get("StoragePool"):
        raise errors.PermanentError("expected argument StoragePool for a VM's disks", parameter="StoragePool")
    storages = values["StoragePool"]
    return Arguments(
        template=vmid or name,
        storages=(storages,) if isinstance(storages, str) else tuple(str(each) for each in storages),
        full_clone=values.get("FullClone", True),
        disk_device=values.get("DiskDevice") or "scsi0",
        bridge=values.get("Bridge", ""),
        vlan=values.get("Vlan"),
        ip=network.parse(
            values.get("IpConfig", ""),
            [str(each) for each in values.get("Nameservers", ())],
            values.get("SearchDomain", ""),
        ),
        pool=values.get("Pool", ""),
        cpu_type=values.get("CpuType", ""),
        tags=tuple(str(tag) for tag in values.get("ExtraTags", ())),
    )
