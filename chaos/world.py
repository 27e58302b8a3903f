"""One shard of real processes: two servers, dev-s3 behind proxies, and any number of agents.

    agents ──Wire──> server a ──Storage──┐
    agents ──Wire──> server b ──Storage──┴─> dev-s3        a <──Wire──> b

Everything runs on loopback (servers on 127.0.0.1, the proxies in front of them on the same ports of 127.0.0.2) in a private
directory, and is removed at the end. What the run does to a VM is noted in `harm`: it decides later whether a replacement
was justified.
"""

import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ports
from bench.wires import Wire

from chaos import children
from chaos.storage import Storage
from chaos.vms import Vms
from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.config.addresses import Service
from nstance.model.ids import ClusterId, ShardId
from nstance.objects import file
from nstance.providers import local

CLUSTER, SHARD = ClusterId("chaos"), ShardId("one")
NAMES = ("health", "election", "registration", "operator", "agent")
OFFSET = 10
FRONT = "127.0.0.2"  # the advertised address of the servers: that of the proxies
SUSPECT_AFTER, DEAD_AFTER = 10.0, 30.0
GROUPS = 4
KEY = "chaos-needs-32-bytes-of-a-key---"
# Before a VM starts its agent, it leaves a copy of its nonce, as if its userdata could be read by others.
STEAL = 'cp identity/nonce.jwt stolen.jwt 2>/dev/null; exec "$0" "$@"'


@dataclass
class Harm:
    """What was done to one VM: killed, or stopped for a while."""

    kind: str
    began: float
    ended: float = float("inf")


@dataclass
class World:
    dir: Path
    agents: int
    rng: random.Random
    base: int = 0
    servers: dict[str, children.Child] = field(default_factory=dict)
    storage: dict[str, Storage] = field(default_factory=dict)
    peers: dict[str, Wire] = field(default_factory=dict)
    fronts: dict[str, list[Wire]] = field(default_factory=dict)  # the proxies of each server for its clients
    harm: dict[str, list[Harm]] = field(default_factory=dict)
    cuts: list[Harm] = field(default_factory=list)  # of many agents at once
    s3: children.Child = field(init=False)
    vms: Vms = field(init=False)

    def __post_init__(self) -> None:
        self.vms = Vms(self.dir / "instances")
        numbers = range(len(NAMES))
        storage = 2 * OFFSET - 1  # the last of the row
        self.base = ports.free_base([*numbers, *(OFFSET + n for n in numbers), storage], {"127.0.0.1", FRONT})
        self._s3_port = self.base + storage

    @property
    def bucket(self) -> Path:
        return self.dir / "bucket"

    @property
    def sizes(self) -> dict[str, int]:
        groups = min(GROUPS, self.agents)
        return {f"group-{n}": self.agents // groups + (n < self.agents % groups) for n in range(groups)}

    def port(self, server: str, name: str) -> int:
        return self.base + NAMES.index(name) + (OFFSET if server == "b" else 0)

    def config(self) -> dict[str, Any]:
        ports = {name: self.base + number for number, name in enumerate(NAMES)}
        both = {n: f"{FRONT}:{ports[n]},{FRONT}:{ports[n] + OFFSET}" for n in ("registration", "operator", "agent")}
        return {
            "cluster": {"id": CLUSTER},
            "shard": {
                "infra": {
                    "provider": "process",
                    "options": {
                        "dir": str(self.vms.root),
                        "command": ["/bin/sh", "-c", STEAL, *local.AGENT],
                    },
                },
                "bind": {f"{name}_addr": f"127.0.0.1:{port}" for name, port in ports.items()},
                "advertise": {
                    **{f"{name}_addr": addresses for name, addresses in both.items()},
                    "election_addr": f"{FRONT}:{ports['election']}",
                },
                "health": {"suspect_after": f"{SUSPECT_AFTER}s", "dead_after": f"{DEAD_AFTER}s"},
                "health_check_interval": "15s",
                "create_concurrency": 8,
                "garbage_collection": {"interval": "10s", "registration_timeout": "300s"},
            },
            "templates": {
                "plain": {
                    "kind": "cha",
                    "files": {
                        "motd": {"kind": "string", "template": "I am {{ .Instance.ID }}\n"},
                        "node.crt": {
                            "kind": "certificate",
                            "template": "node",
                            "key": {"source": "agent", "name": "node.pub"},
                        },
                    },
                }
            },
            "certificates": {"node": {"kind": "client", "cn": "{{ .Instance.ID }}", "ttl": "24h"}},
            "groups": {
                "default": {
                    name: {"template": "plain", "size": size, "drain_timeout": "0s"}
                    for name, size in self.sizes.items()
                }
            },
        }

    # ---- starting and ending

    async def begin(self) -> None:
        for folder in ("logs", "bucket"):
            (self.dir / folder).mkdir(parents=True, exist_ok=True)
        path = self.bucket / storage_keys.config(SHARD)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(self.config(), indent=2))
        command = ("-m", "nstance.dev.s3.main", f"--port={self._s3_port}", f"--dir={self.bucket}")
        self.s3 = children.Child("s3", command, self.dir / "logs", {})
        self.s3.start()
        await self.until(lambda: accepts("127.0.0.1", self._s3_port), 20.0, "dev-s3 listens")
        for name in ("a", "b"):
            await self._start_proxies(name)
            self.servers[name] = self._server(name)
            self.servers[name].start()

    async def _start_proxies(self, name: str) -> None:
        storage = self.storage[name] = Storage(self._s3_port, self.rng)
        await storage.start("127.0.0.1")
        services = ("election", "registration", "agent", "operator")
        wires = {service: Wire(self.port(name, service)) for service in services}
        for service, wire in wires.items():
            await wire.start(FRONT, self.port(name, service))
        self.peers[name] = wires.pop("election")
        self.fronts[name] = list(wires.values())

    def _server(self, name: str) -> children.Child:
        command = (
            "-m",
            "nstance.server.main",
            f"--id={name}",
            f"--shard={SHARD}",
            "--bucket=dev",
            f"--cachedir={self.dir / f'cache-{name}'}",
            f"--port-offset={OFFSET if name == 'b' else 0}",
            "--log-json",
        )
        environment = {
            "NSTANCE_ENCRYPTION_KEY": KEY,
            "AWS_ENDPOINT_URL": f"http://{self.storage[name].address}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "dev",
            "AWS_SECRET_ACCESS_KEY": "dev",
            "AWS_ALLOW_HTTP": "true",
        }
        return children.Child(name, command, self.dir / "logs", environment)

    def repair(self) -> None:
        """Undo the effects of all faults."""
        for proxy in self._proxies():
            proxy.pass_on()
        for child in (self.s3, *self.servers.values()):
            if not child.runs:
                child.start()
            child.resume()
            child.free_disk()
        self.vms.free_disks()
        for id in self.vms.running():
            self.resume_agent(id)
        for cut in self.cuts:
            cut.ended = min(cut.ended, time.time())

    async def end(self) -> None:
        """End all processes and proxies."""
        for child in [*self.servers.values(), *([self.s3] if hasattr(self, "s3") else [])]:
            if child.runs:
                await child.end()
        remaining = await asyncio.to_thread(self.vms.end)
        for proxy in self._proxies():
            await proxy.close()
        if remaining:
            sys.stderr.write(f"failed to end {remaining} processes of {self.vms.root}\n")

    def _proxies(self) -> list[Storage | Wire]:
        fronts = (wire for wires in self.fronts.values() for wire in wires)
        return [*self.storage.values(), *self.peers.values(), *fronts]

    # ---- harm

    def kill(self, id: str) -> bool:
        at = self.vms.send(id, signal.SIGKILL)
        if at is not None:
            self.harm.setdefault(id, []).append(Harm("killed", at))
        return at is not None

    def stop_agent(self, id: str) -> bool:
        at = self.vms.send(id, signal.SIGSTOP)
        if at is not None:
            self.harm.setdefault(id, []).append(Harm("stopped", at))
        return at is not None

    def resume_agent(self, id: str) -> None:
        for each in self.harm.get(id, []):
            if each.kind == "stopped" and each.ended == float("inf"):
                self.vms.send(id, signal.SIGCONT)
                each.ended = time.time()

    # ---- observations

    def lease(self) -> tuple[int, str]:
        """Epoch and holder (a server's name) in the bucket."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            raw = json.loads((self.bucket / storage_keys.lease(SHARD)).read_bytes())
            return int(raw["epoch"]), str(raw["holder"]["server"])
        return 0, ""

    def leader(self) -> children.Child | None:
        return self.servers.get(self.lease()[1])

    def standby(self) -> children.Child | None:
        _, holder = self.lease()
        return next((child for name, child in self.servers.items() if name != holder), None)

    def store(self) -> file.FileStore:
        """The bucket itself, without dev-s3."""
        return file.FileStore(self.bucket, clock=SystemClock())

    def ca(self) -> str:
        return (self.bucket / "cluster/ca.crt").read_text()

    def address(self, service: Service) -> tuple[str, int] | None:
        """The leader's own address, not that of a proxy."""
        leader = self.leader()
        return ("127.0.0.1", self.port(leader.name, service.value)) if leader is not None else None

    def accepts(self, server: str, name: str) -> bool:
        return self.servers[server].answers and accepts("127.0.0.1", self.port(server, name))

    async def until(self, condition: Callable[[], object], seconds: float, what: str) -> float:
        """Wait for a condition; returns how long it took. Raises TimeoutError."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"not seen within {seconds:.0f} s: {what}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began


def accepts(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.3):
        return True
    return False


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    try:
        await world.begin()
        yield world
    finally:
        await world.end()
