"""Pairs of real server processes, a leader and its standby, that are started, broken and restarted.

A pair has a bucket of its own (a directory or S3) and no groups. A server acts when its gRPC ports are open: they open only
after the fence is committed.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench import ports
from bench.fleet_server import until

NAMES = ("health", "election", "registration", "operator", "agent")
OFFSET = 10  # of the second server's ports
SHARD = "one"
TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 1.0  # until the standby has received heartbeats that name it as a member


class Pair:
    """`storage`: arguments of both servers. `election_host`: the advertised host of their election ports."""

    def __init__(self, dir: Path, storage: Sequence[str], *, election_host: str = "127.0.0.1") -> None:
        self.dir = dir
        numbers = range(len(NAMES))
        self.base = ports.free_base([*numbers, *(OFFSET + n for n in numbers)], {"127.0.0.1", election_host})
        self.election_host = election_host
        self._storage = storage
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def config(self) -> str:
        bind = {f"{name}_addr": f"127.0.0.1:{self.base + number}" for number, name in enumerate(NAMES)}
        settings = {
            "cluster": {"id": "bench", "secrets": {"encryption_key": {"provider": "env", "source": "NO_SUCH_KEY"}}},
            "shard": {
                "infra": {"provider": "memory"},
                "bind": bind,
                "advertise": {"election_addr": f"{self.election_host}:{self.base + 1}"},
            },
        }
        return json.dumps(settings)

    def port(self, id: str, name: str) -> int:
        return self.base + NAMES.index(name) + (OFFSET if id == "b" else 0)

    async def start(self, id: str, environment: dict[str, str] | None = None) -> None:
        descriptor = os.open(self.dir / f"{id}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            self._running[id] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "nstance.server.main",
                f"--id={id}",
                f"--shard={SHARD}",
                *self._storage,
                f"--cachedir={self.dir / f'cache-{id}'}",
                f"--port-offset={OFFSET if id == 'b' else 0}",
                "--insecure-dev",
                stdout=descriptor,
                stderr=descriptor,
                env={**os.environ, **(environment or {})},
            )
        finally:
            os.close(descriptor)

    async def wait_complete(self) -> tuple[str, str]:
        """Wait until one server leads and the other is a member. Returns both, the leader first."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self._wait_complete()
        except TimeoutError:
            for id in self._running:
                print_log_tail(self.dir / f"{id}.log")
            raise

    async def _wait_complete(self) -> tuple[str, str]:
        while True:
            for leader, standby in (("a", "b"), ("b", "a")):
                both = self._runs(leader) and self._runs(standby) and self.acts(leader)
                if both and standby in await asyncio.to_thread(self._members, leader):
                    await asyncio.sleep(SETTLE_SECONDS)
                    return leader, standby
            await asyncio.sleep(0.05)

    def _runs(self, id: str) -> bool:
        process = self._running.get(id)
        return process is not None and process.returncode is None

    def acts(self, id: str) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port(id, "agent")), timeout=0.5).close()
        except OSError:
            return False
        return True

    async def until_acts(self, id: str) -> float:
        """Returns when it did."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await until(lambda: self.acts(id), every=0.002)
            return time.monotonic()

    def lease(self, id: str) -> dict[str, Any] | None:
        """Its lease, if it leads."""
        context = ssl._create_unverified_context()
        url = f"https://127.0.0.1:{self.port(id, 'election')}/health/leadership/shard"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, context=context, timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
        return None

    def _members(self, id: str) -> list[str]:
        found = self.lease(id)
        return [member["server"] for member in found["members"]] if found is not None else []

    def metrics(self, id: str) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.port(id, 'health')}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def busy(self, id: str) -> float:
        """Processor seconds of all its threads."""
        tasks = Path(f"/proc/{self._running[id].pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def pid(self, id: str) -> int:
        return self._running[id].pid

    def signal(self, id: str, number: signal.Signals) -> float:
        """Returns when it was sent."""
        at = time.monotonic()
        self._running[id].send_signal(number)
        return at

    async def end(self, id: str) -> None:
        process = self._running.pop(id, None)
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def close(self) -> None:
        for id in list(self._running):
            await self.end(id)


@contextlib.asynccontextmanager
async def on_files(folder: Path) -> AsyncIterator[Pair]:
    """A complete pair with a bucket in a directory."""
    bucket = folder / "bucket"
    pair = Pair(folder, ("--storage=file", f"--bucket={bucket}"))
    put_config(bucket, pair)
    try:
        for id in ("a", "b"):
            await pair.start(id)
        await pair.wait_complete()
        yield pair
    finally:
        await pair.close()


def s3_environment(endpoint: str) -> dict[str, str]:
    """The environment of a server that uses dev-s3."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "dev",
        "AWS_SECRET_ACCESS_KEY": "dev",
        "AWS_ALLOW_HTTP": "true",
    }


def print_log_tail(log: Path) -> None:
    print(f"{log.name}:", *log.read_text(errors="replace").splitlines()[-8:], sep="\n  ", file=sys.stderr)


def put_config(bucket: Path, pair: Pair) -> None:
    path = bucket / "shard" / SHARD / "config.jsonc"
    path.parent.mkdir(parents=True)
    path.write_text(pair.config())
