"""The network of a VM: its first interface, and what cloud-init sets up in the guest.

Argument `IpConfig` goes into the seed, because the seed is the only cloud-init drive that a VM of ours has.
"""

import json
import re
from collections.abc import Mapping

from nstance.proxmox.network import IpConfig

_MAC = re.compile(r"(?:^|,)(?:virtio|e1000|e1000e|rtl8139|vmxnet3|macaddr)=([0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5})")


def render(config: IpConfig, interface: str) -> bytes:
    """`network-config` of a seed, version 2, for the interface with the MAC address in `net0`. Empty: the guest decides."""
    found = _MAC.search(interface)
    if config.is_empty or found is None:
        return b""
    addresses = [each for each in (config.ip, config.ip6) if "/" in each]
    routes = [{"to": to, "via": via} for to, via in (("0.0.0.0/0", config.gw), ("::/0", config.gw6)) if via]
    ethernet: dict[str, object] = {
        "match": {"macaddress": found[1].lower()},
        "dhcp4": config.ip == "dhcp" or not (config.ip or config.ip6),
        "dhcp6": config.ip6 == "dhcp",
    }
    if config.ip6 == "auto":
        ethernet["accept-ra"] = True
    if addresses:
        ethernet["addresses"] = addresses
    if routes:
        ethernet["routes"] = routes
    if config.nameservers or config.search_domain:
        search = {"search": [config.search_domain]} if config.search_domain else {}
        ethernet["nameservers"] = {"addresses": list(config.nameservers), **search}
    return json.dumps({"version": 2, "ethernets": {"net0": ethernet}}).encode() + b"\n"


def interface(current: str, bridge: str, vlan: int | None) -> str:
    """`net0` with another bridge or VLAN. The model and MAC address stay those of the clone."""
    parts = [part for part in current.split(",") if part]
    changes: Mapping[str, str] = {"bridge": bridge, "tag": "" if vlan is None else str(vlan)}
    kept = [part for part in parts if not any(value and part.startswith(f"{key}=") for key, value in changes.items())]
    return ",".join([*kept, *(f"{key}={value}" for key, value in changes.items() if value)])
