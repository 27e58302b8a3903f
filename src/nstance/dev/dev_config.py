"""The configuration of servers that share one machine.

An example file has the default ports and one server. Here it gets the ports of this run, both servers of the shard and one
folder for instances, because the standby must find the agents that the leader started.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nstance.clock import Clock, Rng
from nstance.config import addresses, jsonc, storage_keys
from nstance.dev.errors import DevError
from nstance.dev.screen import Screen
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.port import ObjectStore
from nstance.server.config import configuration

DEFAULT_PORT = 8990  # the first of five: health, election, registration, operator, agent
STANDBY_PORT_OFFSET = 100
UPLOAD_SECONDS = 30.0
_MIN_PORT, _MAX_PORT = 10_000, 32_000  # below the ephemeral ports
_ATTEMPTS = 200
_ADVERTISED = (addresses.Service.REGISTRATION, addresses.Service.OPERATOR, addresses.Service.AGENT)
_HOST_IN_GUESTS = "10.0.2.2"  # the loopback address of the host, in QEMU's user-mode network


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the servers of a shard are on this machine."""

    shard: ShardId
    port: int
    port_offsets: Sequence[int]  # one for each server
    instances: Path
    dev_k8s: Path | None = None
    vm_images: Path | None = None  # instances are VMs made of these


def adapt(text: str, layout: Layout, *, source: str) -> bytes:
    """The configuration in `text` for a layout. Raises NoConfigurationError."""
    configuration.parse(text.encode(), shard=layout.shard, source=source)  # first, for the lines of the file
    document: Any = jsonc.read(text, source=source).value
    block = document["shard"] if "shard" in document else document["server"]  # the older spelling
    provider = block["infra"] if "infra" in block else block["provider"]
    options = provider.setdefault("options", {})
    options.setdefault("dir", str(layout.instances))
    if layout.dev_k8s is not None and "dev_k8s_dir" in options:
        options["dev_k8s_dir"] = str(layout.dev_k8s)
    if layout.vm_images is not None:
        options.setdefault("images", str(layout.vm_images))
    ports = {service: layout.port + number for number, service in enumerate(addresses.Service)}
    bind = block.setdefault("bind", {})
    for service in addresses.Service:
        host = str(bind.get(service.key, "127.0.0.1:0")).rpartition(":")[0]
        bind[service.key] = f"{host}:{ports[service]}"
    if len(layout.port_offsets) > 1:
        block["advertise"] = {
            service.key: ",".join(f"{_host(layout, service)}:{ports[service] + each}" for each in layout.port_offsets)
            for service in _ADVERTISED
        }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _host(layout: Layout, service: addresses.Service) -> str:
    is_for_guests = layout.vm_images is not None and service is not addresses.Service.OPERATOR
    return _HOST_IN_GUESTS if is_for_guests else "127.0.0.1"


class ConfigFile:
    """A configuration file that is uploaded whenever it is saved."""

    def __init__(self, path: Path, store: ObjectStore, layout: Layout) -> None:
        self.path = path
        self._store = store
        self._layout = layout
        self._saved = 0

    async def upload_if_changed(self, screen: Screen, clock: Clock) -> bool:
        """Whether this was the first upload. Raises NoConfigurationError then; later an invalid file is only reported."""
        saved = self.path.stat().st_mtime_ns
        if saved == self._saved:
            return False
        is_first, self._saved = self._saved == 0, saved
        try:
            body = adapt(self.path.read_text(), self._layout, source=str(self.path))
        except configuration.NoConfigurationError as problem:
            if is_first:
                raise
            screen.say(f"{problem}\nthe previous configuration stays active")
            return False
        if await upload(self._store, self._layout.shard, body, clock=clock) and not is_first:
            screen.say(f"configuration of shard {self._layout.shard} uploaded: the leader reads it within a minute")
        return is_first


async def upload(
    store: ObjectStore, shard: ShardId, body: bytes, *, clock: Clock, timeout: float = UPLOAD_SECONDS
) -> bool:
    """Writes the configuration into the bucket unless it is there. Waits for a store that is just starting."""
    key = storage_keys.config(shard)
    end = clock.monotonic() + timeout
    while True:
        try:
            async with asyncio.timeout(timeout):
                try:
                    found = await store.get(key)
                except errors.NotFoundError:
                    await store.create(key, body)
                    return True
                if found.body == body:
                    return False
                await store.replace(key, body, seen=found.version)
                return True
        except (errors.UnavailableError, errors.UnknownOutcomeError, errors.ConflictError, TimeoutError) as problem:
            if clock.monotonic() > end:
                raise DevError(f"failed to upload the configuration to {store!r}: {problem}") from problem
            await clock.sleep(0.2)


def ports_in_use(port: int, offsets: Sequence[int]) -> list[int]:
    """Those of the servers' ports that are in use."""
    return [p for offset in offsets for p in range(port + offset, port + offset + 5) if not _is_free(p)]


def find_free_port(rng: Rng, offsets: Sequence[int]) -> int:
    for _ in range(_ATTEMPTS):
        port = int(rng.uniform(_MIN_PORT, _MAX_PORT))
        if not ports_in_use(port, offsets):
            return port
    raise DevError("expected free ports on this machine, found none; stop other programs or name one with --ports")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
