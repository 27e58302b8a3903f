"""Real servers and agents on this machine, started and broken by tests. All processes end with the test."""

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nstance.clock import SystemClock
from nstance.model.instance import Instance, State
from nstance.objects.file import FileStore
from nstance.objects.journal import Journal, JournalState
from nstance.providers import processes
from support import ports

T = TypeVar("T")

KEY = "thisisatest32bytekey123456789012"
PATIENCE = 90.0


NAMES = ("health", "election", "registration", "operator", "agent")


@dataclass
class ServerProcess:
    id: str
    process: subprocess.Popen[bytes]
    ports: dict[str, int]
    log: Path

    def leadership(self) -> dict[str, Any] | None:
        """The lease, if this server leads."""
        context = ssl._create_unverified_context()
        url = f"https://127.0.0.1:{self.ports['election']}/health/leadership/shard"
        try:
            with urllib.request.urlopen(url, context=context, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, http.client.HTTPException):
            return None

    def acts(self) -> bool:
        """Its gRPC ports are open: the fence is committed."""
        try:
            socket.create_connection(("127.0.0.1", self.ports["agent"]), timeout=0.5).close()
        except OSError:
            return False
        return True

    def get(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['health']}{path}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float | None:
        try:
            _, text = self.get("/metrics")
        except (OSError, http.client.HTTPException):
            return None
        for line in text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@dataclass
class ShardWorld:
    """One shard: a bucket in a directory, instances as processes, servers on ports of their own."""

    home: Path
    base: int  # of the first server's ports
    name: str = "dev"
    servers: dict[str, ServerProcess] = field(default_factory=dict)

    @property
    def ports(self) -> dict[str, int]:
        return {name: self.base + number for number, name in enumerate(NAMES)}

    @property
    def bucket(self) -> Path:
        return self.home / "bucket"

    @property
    def instances_dir(self) -> Path:
        return self.home / "instances"

    def configure(self, settings: dict[str, Any]) -> None:
        path = self.bucket / "shard" / self.name / "config.jsonc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=2))

    def start(self, id: str, *arguments: str, env: dict[str, str] | None = None, offset: int = 0) -> ServerProcess:
        log = self.home / f"{id}.log"
        ports = {name: port + offset for name, port in self.ports.items()}
        with log.open("ab") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "nstance.server.main",
                    f"--id={id}",
                    f"--shard={self.name}",
                    "--storage=file",
                    f"--bucket={self.bucket}",
                    f"--cachedir={self.home / f'cache-{id}'}",
                    f"--port-offset={offset}",
                    "--insecure-dev",
                    *arguments,
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NSTANCE_ENCRYPTION_KEY": KEY, **(env or {})},
            )
        server = self.servers[id] = ServerProcess(id, process, ports, log)
        return server

    def leader(self) -> ServerProcess | None:
        return next(
            (s for s in self.servers.values() if s.process.poll() is None and s.acts() and s.leadership()), None
        )

    def records(self) -> dict[str, Instance]:
        """The state in the journal."""

        async def read() -> JournalState:
            store = FileStore(self.bucket)
            try:
                prefix = f"shard/{self.name}/"
                book, _ = await Journal(
                    store, journal_prefix=f"{prefix}journal/", snapshot_prefix=f"{prefix}snapshot/", clock=SystemClock()
                ).load()
                return book
            finally:
                await store.close()

        return {str(id): record for id, record in asyncio.run(read()).instances.items()}

    def running(self, count: int) -> Callable[[], dict[str, Instance] | None]:
        """Exactly so many managed instances are running, and nothing else is on its way."""

        def look() -> dict[str, Instance] | None:
            alive = {i: r for i, r in self.records().items() if r.state not in (State.DELETED, State.FAILED)}
            whole = len(alive) == count and all(r.state is State.RUNNING for r in alive.values())
            return alive if whole else None

        return look

    def home_of(self, instance: str) -> Path:
        return self.instances_dir / instance

    def agent(self, instance: str) -> processes.Process | None:
        try:
            raw = json.loads((self.home_of(instance) / "process.json").read_text())
        except OSError:
            return None
        return processes.Process(raw["pid"], raw["start"])

    def kill_agent(self, instance: str) -> None:
        process = self.agent(instance)
        assert process is not None
        assert processes.is_running(process)
        os.kill(process.pid, signal.SIGKILL)

    def end(self) -> None:
        for server in self.servers.values():
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
                server.process.kill()
            server.process.wait(60)
        if self.instances_dir.is_dir():
            for home in self.instances_dir.iterdir():
                process = self.agent(home.name)
                if process is not None and processes.is_running(process):
                    os.kill(process.pid, signal.SIGKILL)


OFFSET = 10  # of the standby's ports


@contextmanager
def shard_world(home: Path) -> Iterator[ShardWorld]:
    with ports.claimed() as base:
        world = ShardWorld(home=home, base=base)
        world.bucket.mkdir(parents=True, exist_ok=True)
        try:
            yield world
        finally:
            world.end()


def settings(world: ShardWorld, **groups: Any) -> dict[str, Any]:
    """A configuration with quick timings: one template, the groups that are asked for."""
    ports = world.ports
    both = {n: f"127.0.0.1:{ports[n]},127.0.0.1:{ports[n] + OFFSET}" for n in ("registration", "operator", "agent")}
    return {
        "cluster": {"id": "test-cluster"},
        "shard": {
            "infra": {"provider": "process", "options": {"dir": str(world.instances_dir)}},
            "bind": {f"{name}_addr": f"127.0.0.1:{port}" for name, port in ports.items()},
            "advertise": {f"{name}_addr": addresses for name, addresses in both.items()},
            "health_check_interval": "2s",
            "garbage_collection": {"interval": "5s", "registration_timeout": "10m"},
        },
        "templates": {
            "plain": {
                "kind": "tst",
                "files": {"motd": {"kind": "string", "template": "{{ .Vars.word }} {{ .Instance.ID }}\n"}},
            }
        },
        "defaults": {"vars": {"word": "hello"}},
        "groups": {"default": groups or {"web": {"template": "plain", "size": 3}}},
    }
