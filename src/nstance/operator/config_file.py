"""config.yaml: the cluster, the tenant, and the addresses of its shards.

Every problem is reported with its line. The file may change while the operator runs: shards are added, removed and moved.
An invalid file is rejected and the previous configuration stays active. The trap: a ConfigMap is mounted as a chain of
symbolic links, one of which is swapped, so only the content is compared, never names or times.
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

MAX_FILE_BYTES = 1 << 20
MAX_SHARDS = 1000
MAX_NAMES_LENGTH = 61  # a label's value has at most 63 characters, and the two are joined with `--`
MAX_PROBLEMS = 50  # in one message

NAME = "lower-case letters, digits and single hyphens, at most 32"
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_TOP_KEYS = ("cluster_id", "tenant", "shards")
_SHARD_KEYS = ("registration_addr", "operator_addr")


class InvalidConfigError(Exception):
    """The file is invalid; `problems` lists everything that is wrong with it."""

    def __init__(self, source: str, problems: list[str]) -> None:
        more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        super().__init__(f"{source}: " + "; ".join(problems[:MAX_PROBLEMS] + more))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of one shard's servers, as host:port; clients try them in turn."""

    registration: tuple[str, ...]
    operator: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    cluster: ClusterId
    tenant: TenantId
    shards: Mapping[ShardId, Endpoints]  # in the order of the file


def load(path: Path) -> tuple[Configuration, bytes]:
    """The configuration and the file's content. Raises FatalError."""
    try:
        content = _read(path)
        return parse(content, source=str(path)), content
    except OSError as problem:
        why = "is missing" if isinstance(problem, FileNotFoundError) else f"cannot be read: {problem.strerror}"
        raise FatalError(f"the configuration file {path} {why}; mount it there or set --config") from problem
    except InvalidConfigError as problem:
        raise FatalError(f"the configuration is invalid: {problem}") from problem


def parse(content: bytes, *, source: str) -> Configuration:
    """Raises InvalidConfigError with every problem."""
    if len(content) > MAX_FILE_BYTES:
        raise InvalidConfigError(source, [f"expected at most {MAX_FILE_BYTES} bytes"])
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark is not None else 1
        raise InvalidConfigError(source, [f"line {line}: not YAML: {problem.problem}"]) from problem
    except (yaml.YAMLError, RecursionError, UnicodeError) as problem:
        raise InvalidConfigError(
            source, [f"not YAML: {' '.join(str(problem).split()) or 'nested too deeply'}"]
        ) from problem
    reader = _Reader()
    configuration = reader.read(node)
    if reader.problems:
        raise InvalidConfigError(source, [text for _, text in sorted(reader.problems)])
    assert configuration is not None
    return configuration


@dataclass(slots=True)
class _Reader:
    problems: list[tuple[int, str]] = field(default_factory=list)  # line and text

    def read(self, node: yaml.Node | None) -> Configuration | None:
        if node is None:
            self.problems.append((1, "the file is empty; expected cluster_id and shards"))
            return None
        top = self._mapping(node, "the file", _TOP_KEYS)
        cluster = self._name(top, "cluster_id", node)
        tenant = self._name(top, "tenant", node) if "tenant" in top else DEFAULT_TENANT
        if len(cluster) + len(tenant) > MAX_NAMES_LENGTH:
            self._report(
                node,
                f"cluster_id and tenant: expected at most {MAX_NAMES_LENGTH} characters together, found "
                f"{len(cluster) + len(tenant)}: the Cluster in Kubernetes has both in its name",
            )
        return Configuration(
            cluster=ClusterId(cluster), tenant=TenantId(tenant), shards=self._shards(top.get("shards"), node)
        )

    def _shards(self, node: yaml.Node | None, parent: yaml.Node) -> dict[ShardId, Endpoints]:
        if node is None:
            self._report(parent, "shards is missing; expected a map of shard IDs to their addresses")
            return {}
        entries = self._mapping(node, "shards", None)
        if not entries and isinstance(node, yaml.MappingNode | yaml.ScalarNode) and not getattr(node, "value", None):
            self._report(node, "shards is empty; expected at least one shard")
        if len(entries) > MAX_SHARDS:
            self._report(node, f"shards: expected at most {MAX_SHARDS}, found {len(entries)}")
        shards = {}
        for name, entry in entries.items():
            where = f"shards.{name[:64]}"
            if not ids.is_name(name):
                self._report(entry, f"{where}: expected a shard ID of {NAME}")
            addresses = self._mapping(entry, where, _SHARD_KEYS)
            shards[ShardId(name)] = Endpoints(
                registration=self._addresses(addresses, "registration_addr", where, entry),
                operator=self._addresses(addresses, "operator_addr", where, entry),
            )
        return shards

    def _mapping(self, node: yaml.Node, where: str, allowed: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            if not (isinstance(node, yaml.ScalarNode) and not node.value and allowed is None):  # `shards:`
                self._report(node, f"{where}: expected a map")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._report(key, f"{where}: expected plain text as a key")
            elif allowed is not None and key.value not in allowed:
                self._report(key, f"{where}: unknown key {key.value[:64]!r}; expected {', '.join(allowed)}")
            elif key.value in found:
                self._report(key, f"{where}: {key.value[:64]} appears twice")
            else:
                found[key.value] = value
        return found

    def _name(self, top: dict[str, yaml.Node], key: str, parent: yaml.Node) -> str:
        node = top.get(key)
        if node is None:
            self._report(parent, f"{key} is missing")
            return ""
        if not isinstance(node, yaml.ScalarNode) or not ids.is_name(node.value):
            self._report(node, f"{key}: expected {NAME}, found {_quote(node)}")
            return ""
        return str(node.value)

    def _addresses(self, fields: dict[str, yaml.Node], key: str, where: str, parent: yaml.Node) -> tuple[str, ...]:
        node = fields.get(key)
        if node is None:
            if isinstance(parent, yaml.MappingNode):
                self._report(parent, f"{where}: {key} is missing")
            return ()
        if not isinstance(node, yaml.ScalarNode):
            self._report(node, f"{where}.{key}: expected host:port, several separated by commas")
            return ()
        try:
            return tuple(_addresses(node.value))
        except ValueError as problem:
            self._report(node, f"{where}.{key}: {problem}")
            return ()

    def _report(self, node: yaml.Node, text: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append((line, f"line {line}: {text}"))


def _addresses(text: str) -> Iterator[str]:
    for host, port in dict.fromkeys(channel.parse_addresses(text)):
        if not _HOST.fullmatch(host):
            raise ValueError(f"expected a host name or address, found {host[:64]!r}")
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _quote(node: yaml.Node) -> str:
    return repr(node.value[:64]) if isinstance(node, yaml.ScalarNode) else "something else"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


class ConfigWatcher:
    """The active configuration, and the file that it comes from."""

    def __init__(self, path: Path, *, clock: Clock, poll_seconds: float) -> None:
        """Raises FatalError."""
        self._path = path
        self._clock = clock
        self._poll_seconds = poll_seconds
        self.current, self._content = load(path)
        self._last_problem = ""

    async def run(self, on_change: Callable[[Configuration], None]) -> None:
        """Reads the file again and again until it is cancelled."""
        while True:
            await self._clock.sleep(self._poll_seconds)
            try:
                # In a thread: the file may be on a network that hangs.
                content = await asyncio.to_thread(_read, self._path)
                if content == self._content:
                    self._last_problem = ""
                    continue
                fresh = parse(content, source=str(self._path))
            except (OSError, InvalidConfigError) as problem:
                self._reject(str(problem))
                continue
            if (fresh.cluster, fresh.tenant) != (self.current.cluster, self.current.tenant):
                self._reject("cluster_id and tenant cannot change while the operator runs; restart it")
                continue
            self._content, self._last_problem = content, ""
            if fresh != self.current or list(fresh.shards) != list(self.current.shards):
                self.current = fresh
                log.info("configuration reloaded", extra={"shards": ", ".join(fresh.shards)})
                on_change(fresh)

    def _reject(self, reason: str) -> None:
        """Logs each new reason once."""
        if reason != self._last_problem:
            self._last_problem = reason
            log.error("failed to reload configuration: the previous one stays active", extra={"reason": reason})
