"""config.yaml: which cluster, which tenant, and where its shards are.

Every fault is told, with its line. The file may change while the operator runs: shards come, go and move; a bad file is
refused and the old one goes on. The trap: a ConfigMap is mounted as a chain of symbolic links whose middle is swapped, so
the content is compared and nothing is concluded from names or times.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from nstance.clock import Clock
from nstance.model import ids
from nstance.model.ids import DEFAULT_TENANT, ClusterId, ShardId, TenantId
from nstance.operator.errors import FatalError
from nstance.wire import channel

log = logging.getLogger(__name__)

MAX_FILE = 1 << 20
MAX_SHARDS = 1000
MAX_NAMES = 61  # a label's value has at most 63 characters, and `--` stands between the two
MAX_FAULTS = 50  # that are told
LOOK_SECONDS = 1.0

NAME = "lower-case letters, digits and single hyphens, at most 32"
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_TOP = ("cluster_id", "tenant", "shards")
_SHARD = ("registration_addr", "operator_addr")


class InvalidConfigError(Exception):
    """The file is not what it must be; `faults` says all of why."""

    def __init__(self, source: str, faults: list[str]) -> None:
        told = faults[:MAX_FAULTS] + [f"and {len(faults) - MAX_FAULTS} more"] * (len(faults) > MAX_FAULTS)
        super().__init__(f"{source}: " + "; ".join(told))
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of one shard's servers, as host:port; they are tried in turn."""

    registration: tuple[str, ...]
    operator: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    cluster: ClusterId
    tenant: TenantId
    shards: Mapping[ShardId, Endpoints]  # in the file's order


def load(path: Path) -> tuple[Configuration, bytes]:
    """What the file says, and its content. Raises Fatal."""
    try:
        content = _read(path)
        return parse(content, source=str(path)), content
    except OSError as problem:
        why = "is missing" if isinstance(problem, FileNotFoundError) else f"cannot be read: {problem.strerror}"
        raise FatalError(f"the configuration file {path} {why}; mount it there or name it with --config") from problem
    except InvalidConfigError as problem:
        raise FatalError(f"the configuration is not valid: {problem}") from problem


def parse(content: bytes, *, source: str) -> Configuration:
    """Raises Invalid with every fault."""
    if len(content) > MAX_FILE:
        raise InvalidConfigError(source, [f"expected at most {MAX_FILE} bytes"])
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark is not None else 1
        raise InvalidConfigError(source, [f"line {line}: not YAML: {problem.problem}"]) from problem
    except (yaml.YAMLError, RecursionError, UnicodeError) as problem:
        raise InvalidConfigError(
            source, [f"not YAML: {' '.join(str(problem).split()) or 'nested too deeply'}"]
        ) from problem
    reading = _Reading()
    found = reading.top(node)
    if reading.faults:
        raise InvalidConfigError(source, [text for _, text in sorted(reading.faults)])
    assert found is not None
    return found


@dataclass(slots=True)
class _Reading:
    faults: list[tuple[int, str]] = field(default_factory=list)

    def top(self, node: yaml.Node | None) -> Configuration | None:
        if node is None:
            self.faults.append((1, "the file is empty; expected cluster_id and shards"))
            return None
        top = self._mapping(node, "the file", _TOP)
        cluster = self._name(top, "cluster_id", node)
        tenant = self._name(top, "tenant", node) if "tenant" in top else DEFAULT_TENANT
        if len(cluster) + len(tenant) > MAX_NAMES:
            self._fault(
                node,
                f"cluster_id and tenant: expected at most {MAX_NAMES} characters together, found "
                f"{len(cluster) + len(tenant)}: the Cluster in Kubernetes has both in its name",
            )
        return Configuration(
            cluster=ClusterId(cluster), tenant=TenantId(tenant), shards=self._shards(top.get("shards"), node)
        )

    def _shards(self, node: yaml.Node | None, above: yaml.Node) -> dict[ShardId, Endpoints]:
        if node is None:
            self._fault(above, "shards is missing; expected a map of shard IDs to their addresses")
            return {}
        found = self._mapping(node, "shards", None)
        if not found and isinstance(node, yaml.MappingNode | yaml.ScalarNode) and not getattr(node, "value", None):
            self._fault(node, "shards is empty; expected at least one shard")
        if len(found) > MAX_SHARDS:
            self._fault(node, f"shards: expected at most {MAX_SHARDS}, found {len(found)}")
        shards = {}
        for name, part in found.items():
            where = f"shards.{name[:64]}"
            if not ids.is_name(name):
                self._fault(part, f"{where}: expected a shard ID of {NAME}")
            told = self._mapping(part, where, _SHARD)
            shards[ShardId(name)] = Endpoints(
                registration=self._addresses(told, "registration_addr", where, part),
                operator=self._addresses(told, "operator_addr", where, part),
            )
        return shards

    def _mapping(self, node: yaml.Node, where: str, allowed: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            if not (isinstance(node, yaml.ScalarNode) and not node.value and allowed is None):  # `shards:`
                self._fault(node, f"{where}: expected a map")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fault(key, f"{where}: expected plain text as a key")
            elif allowed is not None and key.value not in allowed:
                self._fault(key, f"{where}: unknown key {key.value[:64]!r}; expected {', '.join(allowed)}")
            elif key.value in found:
                self._fault(key, f"{where}: {key.value[:64]} is there twice")
            else:
                found[key.value] = value
        return found

    def _name(self, top: dict[str, yaml.Node], key: str, above: yaml.Node) -> str:
        node = top.get(key)
        if node is None:
            self._fault(above, f"{key} is missing")
            return ""
        if not isinstance(node, yaml.ScalarNode) or not ids.is_name(node.value):
            self._fault(node, f"{key}: expected {NAME}, found {_shown(node)}")
            return ""
        return str(node.value)

    def _addresses(self, told: dict[str, yaml.Node], key: str, where: str, above: yaml.Node) -> tuple[str, ...]:
        node = told.get(key)
        if node is None:
            if isinstance(above, yaml.MappingNode):
                self._fault(above, f"{where}: {key} is missing")
            return ()
        if not isinstance(node, yaml.ScalarNode):
            self._fault(node, f"{where}.{key}: expected host:port, several separated by commas")
            return ()
        try:
            return tuple(_addresses(node.value))
        except ValueError as problem:
            self._fault(node, f"{where}.{key}: {problem}")
            return ()

    def _fault(self, node: yaml.Node, text: str) -> None:
        line = node.start_mark.line + 1
        self.faults.append((line, f"line {line}: {text}"))


def _addresses(text: str) -> Iterator[str]:
    for host, port in dict.fromkeys(channel.parse_addresses(text)):
        if not _HOST.fullmatch(host):
            raise ValueError(f"expected a host name or address, found {host[:64]!r}")
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(node: yaml.Node) -> str:
    return repr(node.value[:64]) if isinstance(node, yaml.ScalarNode) else "something else"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE + 1)


class ConfigWatcher:
    """The configuration in force."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        """Raises Fatal."""
        self._path = path
        self._clock = clock
        self.current, self._content = load(path)
        self._trouble = ""

    async def run(self, changed: Callable[[Configuration], None]) -> None:
        """Looks until it is cancelled; `changed` is told of each new one."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                # On a thread: the file may lie on a network that hangs.
                content = await asyncio.to_thread(_read, self._path)
                if content == self._content:
                    self._trouble = ""
                    continue
                fresh = parse(content, source=str(self._path))
            except (OSError, InvalidConfigError) as problem:
                self._complain(str(problem))
                continue
            if (fresh.cluster, fresh.tenant) != (self.current.cluster, self.current.tenant):
                self._complain("cluster_id and tenant cannot change while the operator runs; restart it")
                continue
            self._content, self._trouble = content, ""
            if fresh != self.current or list(fresh.shards) != list(self.current.shards):
                self.current = fresh
                log.info("the configuration has changed", extra={"shards": ", ".join(fresh.shards)})
                changed(fresh)

    def _complain(self, reason: str) -> None:
        """Once for each new reason."""
        if reason != self._trouble:
            self._trouble = reason
            log.error("the new configuration is refused, the old one goes on", extra={"reason": reason})
