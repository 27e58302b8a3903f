"""Arguments of a VM as users write them, checked before anything is created: each fault with its path."""

import re
from collections.abc import Callable, Iterator, Mapping

from nstance.clouds.arguments import Fault
from nstance.proxmox import network


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_number(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_list(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(holds, value))


_NAME = _matches(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "TemplateName": ("the name of a template", _NAME),
    "TemplateVMID": ("a VMID: a whole number from 100", _is_number(100, 999_999_999)),
    "StoragePool": (
        "the name of a storage, or a list of them",
        lambda value: _NAME(value) or (value != [] and _is_list(_NAME)(value)),
    ),
    "FullClone": ("true or false", lambda value: isinstance(value, bool)),
    "DiskDevice": ("a disk such as scsi0", _matches(r"(scsi|virtio|sata|ide)[0-9]{1,2}")),
    "Bridge": ("the name of a bridge such as vmbr0", _matches(r"[A-Za-z0-9_.-]{1,15}")),
    "Vlan": ("a whole number from 1 to 4094", _is_number(1, 4094)),
    "IpConfig": ("text in quotes", lambda value: isinstance(value, str)),
    "Nameservers": (
        "a list of addresses",
        _is_list(lambda value: isinstance(value, str) and network.is_address(value)),
    ),
    "SearchDomain": ("a domain", _NAME),
    "Pool": ("the name of a resource pool", _matches(r"[A-Za-z0-9_./-]+")),
    "CpuType": ("a CPU type such as host", _matches(r"[A-Za-z0-9_.=,+-]+")),
    "ExtraTags": ("a list of tags such as web or team-a", _is_list(_matches(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*"))),
}
NAMES = tuple(_TYPES)


def find_faults(args: Mapping[str, object]) -> Iterator[Fault]:
    """A string with a template in it can become anything, and empty text is as good as none."""
    for name, value in args.items():
        if name not in _TYPES:
            yield Fault((name,), "expected an argument of the provider proxmox", NAMES)
            continue
        if value is None or value == "" or "{{" in str(value):
            continue
        expected, is_valid = _TYPES[name]
        if not is_valid(value):
            yield Fault((name,), f"expected {expected}, found {_shown(value)}")
        elif name == "IpConfig":
            try:
                network.parse(str(value))
            except ValueError as problem:
                yield Fault((name,), str(problem))


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)[:60]
