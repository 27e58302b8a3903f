"""Configurations for servers that share one machine.

An example names the usual ports and one server. Here it is told which ports are meant, that two servers serve the shard,
and where its instances live: the standby must find the agents that the leader started, so both need one folder.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nstance.clock import Clock, Rng
from nstance.config import addresses, jsonc, storage_keys
from nstance.model.ids import ShardId
from nstance.objects import errors
from nstance.objects.port import ObjectStore
from nstance.server.config import configuration

PORT = 8990  # the first of five: health, election, registration, operator, agent
STANDBY = 100  # a standby's ports are so much higher
_LOWEST, _HIGHEST = 10_000, 32_000  # below the numbers that systems give to outgoing connections
_ATTEMPTS = 200
_CALLED = (addresses.Service.REGISTRATION, addresses.Service.OPERATOR, addresses.Service.AGENT)


class Unusable(Exception):
    """The message says what is wrong and what to do."""


def adapt(
    text: str,
    *,
    source: str,
    shard: ShardId,
    port: int,
    offsets: Sequence[int],
    instances: Path,
    dev_k8s: Path | None = None,
) -> bytes:
    """The configuration in `text` for servers that are started with these port offsets. Raises NoConfiguration."""
    configuration.parse(text.encode(), shard=shard, source=source)  # here, so that lines and columns are the file's own
    document: Any = jsonc.read(text, source=source).value
    block = document["shard"] if "shard" in document else document["server"]  # today's spelling and the older one
    provider = block["infra"] if "infra" in block else block["provider"]
    options = provider.setdefault("options", {})
    options.setdefault("dir", str(instances))
    if dev_k8s is not None and "dev_k8s_dir" in options:
        options["dev_k8s_dir"] = str(dev_k8s)
    ports = {service: port + number for number, service in enumerate(addresses.Service)}
    bound = block.setdefault("bind", {})
    for service in addresses.Service:
        host = str(bound.get(service.key, "127.0.0.1:0")).rpartition(":")[0]
        bound[service.key] = f"{host}:{ports[service]}"
    if len(offsets) > 1:
        block["advertise"] = {
            service.key: ",".join(f"127.0.0.1:{ports[service] + offset}" for offset in offsets) for service in _CALLED
        }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


async def put(store: ObjectStore, shard: ShardId, body: bytes, *, clock: Clock, patience: float = 30.0) -> bool:
    """Write the configuration into the bucket unless it is there. Waits for a store that is just starting."""
    key = storage_keys.config(shard)
    end = clock.monotonic() + patience
    while True:
        try:
            async with asyncio.timeout(patience):
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
                raise Unusable(f"the configuration could not be put into {store!r}: {problem}") from problem
            await clock.sleep(0.2)


def taken(port: int, offsets: Sequence[int]) -> list[int]:
    """Which of the ports that these servers need are in use."""
    return [p for offset in offsets for p in range(port + offset, port + offset + 5) if not _free(p)]


def free_port(rng: Rng, offsets: Sequence[int]) -> int:
    for _ in range(_ATTEMPTS):
        port = int(rng.uniform(_LOWEST, _HIGHEST))
        if not taken(port, offsets):
            return port
    raise Unusable("no free ports were found on this machine")


def _free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
