"""The network of a guest, spelled like Proxmox's `ipconfig0`."""

import ipaddress
from dataclasses import dataclass

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


def parse(text: str) -> dict[str, str]:
    """Raises ValueError."""
    values: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        if key not in _KEYS or key in values:
            raise _error(f"found {part!r}")
        values[key] = value
        if value not in _WORDS.get(key, ()) and not _is_value(key, value):
            raise _error(f"found {value!r} for {key}")
    for address, gateway in (("ip", "gw"), ("ip6", "gw6")):
        if gateway in values and "/" not in values.get(address, ""):
            raise _error(f"found {gateway} without an address in {address}")
    return values


def is_address(text: str) -> bool:
    return _is_value("gw", text) or _is_value("gw6", text)


def _is_value(key: str, value: str) -> bool:
    version = 6 if key.endswith("6") else 4
    try:
        if key.startswith("gw"):
            return ipaddress.ip_address(value).version == version
        return "/" in value and ipaddress.ip_interface(value).version == version
    except ValueError:
        return False


def _error(found: str) -> ValueError:
    return ValueError(f'expected a value such as "ip=dhcp,ip6=auto" or "ip=10.0.0.5/24,gw=10.0.0.1", {found}')
