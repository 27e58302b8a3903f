"""The addresses that a server binds and advertises.

A bind address is one `host:port`; an empty host means every interface. An advertised address may list all servers of the
shard; clients try them in turn. The trap: `--port-offset` shifts the ports of one process, so it never applies to a list,
which names other servers too.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MAX_PORT = 65_535
_UNSPECIFIED_HOSTS = ("", "0.0.0.0", "::")


class Service(Enum):
    HEALTH = "health"
    ELECTION = "election"
    REGISTRATION = "registration"
    OPERATOR = "operator"
    AGENT = "agent"

    @property
    def key(self) -> str:
        """Its key under `bind` and `advertise`."""
        return f"{self.value}_addr"


PORTS: Mapping[Service, int] = {service: port for port, service in enumerate(Service, 8990)}


@dataclass(frozen=True, slots=True)
class Address:
    host: str  # empty: any
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unspecified(self) -> bool:
        return self.host in _UNSPECIFIED_HOSTS

    def clashes(self, other: "Address") -> bool:
        return self.port == other.port and (self.host == other.host or self.is_unspecified or other.is_unspecified)

    def shifted(self, offset: int) -> "Address":
        port = self.port + offset
        if not 1 <= port <= _MAX_PORT:
            raise ValueError(f"expected ports from 1 to {_MAX_PORT} after shifting {self} by {offset}, found {port}")
        return Address(self.host, port)


Advertised = tuple[Address, ...]


def parse(text: str) -> Address:
    """Raises ValueError that says what was expected."""
    host, colon, digits = text.rpartition(":")
    if not colon or not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:6]) <= _MAX_PORT:
        raise ValueError(f'expected host:port with a port from 1 to {_MAX_PORT}, such as "10.0.0.1:8992" or ":8992"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError('expected an IPv6 address between the brackets, such as "[::1]:8992"') from None
    elif host and not _HOST.fullmatch(host):
        raise ValueError('expected a host name or address before the port; IPv6 needs brackets, such as "[::1]:8992"')
    return Address(host, int(digits))


def is_host(text: str) -> bool:
    """A host name, or an address without brackets."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def parse_advertised(text: str) -> Advertised:
    """One address, or several separated by commas."""
    advertised = tuple(parse(part.strip()) for part in text.split(","))
    if len(set(advertised)) != len(advertised):
        raise ValueError("expected each address only once in the list")
    return advertised


def show(advertised: Advertised) -> str:
    return ",".join(map(str, advertised))


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What one process binds and advertises."""

    bind: Mapping[Service, Address]
    advertise: Mapping[Service, Advertised]


def resolve_endpoints(
    bind: Mapping[Service, Address],
    advertise: Mapping[Service, Advertised],
    *,
    primary: Callable[[], str],
    port_offset: int = 0,
) -> Endpoints:
    """Applies the port offset and fills in hosts. The default for an advertised address is the bind address."""
    shifted = {service: address.shifted(port_offset) for service, address in bind.items()}
    advertised = {}
    for service in bind:
        listed = advertise.get(service) or (bind[service],)
        own = listed if len(listed) > 1 else (listed[0].shifted(port_offset),)
        advertised[service] = tuple(resolve_host(each, primary) for each in own)
    return Endpoints(shifted, advertised)


def resolve_host(address: Address, primary: Callable[[], str]) -> Address:
    """An address to connect to: an unspecified host becomes the one of `primary` (`--advertise-host`, or the primary
    interface)."""
    return Address(primary(), address.port) if address.is_unspecified else address
