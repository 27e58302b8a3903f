"""The network of a VM: its first interface, and what cloud-init sets up in the guest.

Argument `IpConfig` is spelled like Proxmox's `ipconfig0`. It goes into the seed, because the seed is the only cloud-init
drive that a VM of ours has.
"""

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nstance.providers import errors

_MAC = re.compile(r"(?:^|,)(?:virtio|e1000|e1000e|rtl8139|vmxnet3|macaddr)=([0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5})")
_WORDS = {"ip": ("dhcp",), "ip6": ("dhcp", "auto")}
_KEYS = ("ip", "gw", "ip6", "gw6")


@dataclass(frozen=True, slots=True, kw_only=True)
class IpConfig:
    """Values as written: an address with its prefix length, or `dhcp`, or for IPv6 `auto`."""

    ip: str = ""
    gw: str = ""
    ip6: str = ""
    gw6: str = ""
    nameservers: tuple[str, ...] = ()
    search_domain: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.ip or self.ip6 or self.nameservers or self.search_domain)


def parse(text: str, nameservers: Sequence[str] = (), search_domain: str = "") -> IpConfig:
    """Raises PermanentError."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        if key not in _KEYS or key in values:
            raise _fault(f"found {part!r}")
        values[key] = value
        if value not in _WORDS.get(key, ()) and not _is_address(key, value):
            raise _fault(f"found {value!r} for {key}")
    for address, gateway in (("ip", "gw"), ("ip6", "gw6")):
        if gateway in values and "/" not in values.get(address, ""):
            raise _fault(f"found {gateway} without an address in {address}")
    for server in nameservers:
        if not _is_address("gw", server) and not _is_address("gw6", server):
            raise errors.PermanentError(
                f"expected addresses in argument Nameservers, found {server!r}", parameter="Nameservers"
            )
    return IpConfig(**values, nameservers=tuple(nameservers), search_domain=search_domain)


def _is_address(key: str, value: str) -> bool:
    version = 6 if key.endswith("6") else 4
    try:
        if key.startswith("gw"):
            return ipaddress.ip_address(value).version == version
        return "/" in value and ipaddress.ip_interface(value).version == version
    except ValueError:
        return False


def _fault(found: str) -> errors.PermanentError:
    return errors.PermanentError(
        f'expected argument IpConfig such as "ip=dhcp,ip6=auto" or "ip=10.0.0.5/24,gw=10.0.0.1", {found}',
        parameter="IpConfig",
    )


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
