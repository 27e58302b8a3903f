"""The agent's settings from environment variables. All faults are reported at once, one line each."""

import enum
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TypeVar, cast

from nstance.model import durations, ids
from nstance.model.ids import InstanceId
from nstance.tasks.backoff import Backoff

DEFAULT_ROOT = Path("/opt/nstance-agent")
CONFIG_HASH = "config.hash"  # in the identity directory, written when a set of files is installed
MIN_INTERVAL = 0.1
MAX_SPOT_INTERVAL = 60.0  # clouds warn at most two minutes ahead
METADATA = "http://169.254.169.254"  # the same on all clouds; a number, because names need a name server

T = TypeVar("T")


class Provider(enum.Enum):
    AWS = "aws"
    GOOGLE = "google"
    PROXMOX = "proxmox"
    NONE = "none"


class InvalidSettingsError(Exception):
    """The environment is incomplete or wrong; each fault is one line."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class DirectorySettings:
    path: Path
    mode: int  # of the files in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the agent waits, in seconds. No variable sets these."""

    identity_lock: float = 5.0  # for an agent that is just being stopped
    stop: float = 1.6  # of the two seconds that a stop may take
    goodbye: float = 0.8  # of these
    command: float = 60.0  # for the command that runs after files were installed
    command_retry: Backoff = Backoff(5.0, 300.0)


WAITS = Waits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    registration: tuple[Address, ...]
    agent: tuple[Address, ...]
    instance: InstanceId
    hostname: str  # empty: detected; the same for the two addresses
    ipv4: str
    ipv6: str
    identity: DirectorySettings
    keys: DirectorySettings
    recv: DirectorySettings
    report_interval: float  # 0: only notices
    spot_poll_interval: float
    provider: Provider | None  # None: detected
    metadata: Address
    health: Address | None
    on_receive: tuple[str, ...]  # empty: none
    waits: Waits = WAITS


def identity_dir(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("NSTANCE_IDENTITY_DIR") or DEFAULT_ROOT / "identity")


def read(environment: Mapping[str, str]) -> Settings:
    """Raises InvalidSettingsError."""
    faults: list[str] = []

    def take(name: str, parse: Callable[[str], T], default: str | None) -> T:
        text = environment.get(name, "").strip() or default
        try:
            if text is not None:
                return parse(text)
            faults.append(f"{name} is required but not set")
        except ValueError as error:
            faults.append(f"{name}: {error}")
        return cast("T", None)  # never used: a fault ends in InvalidSettingsError below

    def directory(name: str, mode: str) -> DirectorySettings:
        path = take(f"NSTANCE_{name.upper()}_DIR", _path, str(DEFAULT_ROOT / name))
        return DirectorySettings(path, take(f"NSTANCE_{name.upper()}_MODE", _mode, mode))

    settings = Settings(
        registration=take("NSTANCE_SERVER_REGISTRATION_ADDR", _addresses, None),
        agent=take("NSTANCE_SERVER_AGENT_ADDR", _addresses, None),
        instance=take("NSTANCE_INSTANCE_ID", _instance, None),
        hostname=environment.get("NSTANCE_INSTANCE_HOSTNAME", "").strip(),
        ipv4=take("NSTANCE_INSTANCE_IPV4", lambda text: str(IPv4Address(text)) if text else "", ""),
        ipv6=take("NSTANCE_INSTANCE_IPV6", lambda text: str(IPv6Address(text)) if text else "", ""),
        identity=directory("identity", "0600"),
        keys=directory("keys", "0640"),
        recv=directory("recv", "0640"),
        report_interval=take("NSTANCE_REPORT_INTERVAL", _interval, "60s"),
        spot_poll_interval=take("NSTANCE_SPOT_POLL_INTERVAL", _spot_interval, "2s"),
        provider=take("NSTANCE_PROVIDER", _provider, ""),
        metadata=take("NSTANCE_METADATA_URL", _metadata, METADATA),
        health=take("NSTANCE_HEALTH_ADDR", lambda text: _address(text, wildcard=True) if text else None, ""),
        on_receive=take("NSTANCE_ON_RECEIVE", lambda text: tuple(shlex.split(text)), ""),
    )
    kind, instance = environment.get("NSTANCE_INSTANCE_KIND", "").strip(), settings.instance
    if kind and instance and kind != ids.kind_of(instance):
        expected = ids.kind_of(instance)
        faults.append(f"NSTANCE_INSTANCE_KIND: expected {expected!r} as in the instance ID, found {kind!r}")
    paths = [each.path for each in (settings.identity, settings.keys, settings.recv) if each.path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        faults.append("NSTANCE_IDENTITY_DIR, NSTANCE_KEYS_DIR and NSTANCE_RECV_DIR must be three different directories")
    if faults:
        raise InvalidSettingsError(faults)
    return settings


def _addresses(text: str) -> tuple[Address, ...]:
    return tuple(_address(part.strip()) for part in text.split(","))


def _address(text: str, *, wildcard: bool = False) -> Address:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"expected an IPv6 address in brackets, as in [::1]:8994, found {text!r}")
    if not colon or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ValueError(f"expected host:port, found {text!r}")
    if not host and not wildcard:
        raise ValueError(f"expected a host before the port, found {text!r}")
    return Address(host, int(port))


def _instance(text: str) -> InstanceId:
    if not ids.is_instance_id(text):
        raise ValueError(f"expected an instance ID such as etc-01jw51srryegh9snf9cmeh3k4q, found {text!r}")
    return InstanceId(text)


def _path(text: str) -> Path:
    path = Path(text)
    if "\0" in text or not path.is_absolute():
        raise ValueError(f"expected an absolute path, found {text!r}")
    return path


def _mode(text: str) -> int:
    digits = text.removeprefix("0o")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 4 and not set(digits) & set("89")):
        raise ValueError(f"expected an octal file mode such as 0640, found {text!r}")
    mode = int(digits, 8)
    if mode & ~0o664 or mode & 0o600 != 0o600:
        raise ValueError(f"expected a mode from 0600 to 0664 without execute, set-ID or write for all, found {text!r}")
    return mode


def _interval(text: str) -> float:
    seconds = durations.parse(text)
    if seconds != 0 and not MIN_INTERVAL <= seconds <= 86400:
        raise ValueError(f"expected 0 or a duration from 100ms to 1d, found {text!r}")
    return seconds


def _spot_interval(text: str) -> float:
    seconds = durations.parse(text)
    if not MIN_INTERVAL <= seconds <= MAX_SPOT_INTERVAL:
        raise ValueError(f"expected a duration from 100ms to 1m, found {text!r}")
    return seconds


def _provider(text: str) -> Provider | None:
    if not text:
        return None
    try:
        return Provider(text)
    except ValueError as error:
        raise ValueError(f"expected {', '.join(each.value for each in Provider)}, found {text!r}") from error


def _metadata(text: str) -> Address:
    found = re.fullmatch(r"http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?/?", text)
    if found is None:
        raise ValueError(f"expected a URL such as {METADATA}, without path or credentials, found {text!r}")
    return _address(found[1] + (found[2] or ":80"))
