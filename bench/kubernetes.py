"""Row 12: a pool is scaled in Kubernetes; when does the shard have it?

Real processes: a server (with storage in files), dev-k8s, the operator. Measured from before the PATCH of the scale
subresource is sent, which is what `kubectl scale` sends, until the server tells its watchers of the group's new size.
"""

import asyncio
import base64
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import ports
from bench.pair import NAMES, PATIENCE, SHARD, Pair, put_config, show_end
from bench.rows import Row, percentile, spread
from nstance.clock import SystemClock, SystemRng
from nstance.kube import errors, kinds
from nstance.kube.http import HttpKube
from nstance.kube.kubeconfig import Access
from nstance.model.ids import ClusterId, ShardId, TenantId
from nstance.operator.config_file import Configuration, Endpoints
from nstance.operator.metrics import Metrics
from nstance.operator.options import Environment
from nstance.operator.shards.links import Links
from nstance.operator.shards.ports import Listener
from nstance.wire import credentials

POOL = "nstance-web"
SCALES = 200
KEY = "thisisatest32bytekey123456789012"


class _Server(Pair):
    def config(self) -> str:
        settings = json.loads(super().config())
        settings["cluster"]["secrets"]["encryption_key"]["source"] = "NSTANCE_ENCRYPTION_KEY"
        settings["shard"]["subnet_pools"] = {"main": ["subnet-1"]}
        settings["templates"] = {"web": {"kind": "web"}}
        settings["groups"] = {"default": {"web": {"template": "web", "size": 0}}}
        return json.dumps(settings)


class _Ear(Listener):
    """Notes when a size was heard."""

    def __init__(self) -> None:
        self.links: Links | None = None
        self.last_seen: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    def on_group_change(self, shard: str, group: str) -> None:
        link = self.links.get(shard) if self.links is not None else None
        if link is not None and group in link.groups:
            self.last_seen.put_nowait((link.groups[group].size, time.monotonic()))


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as name:
        home = Path(name)
        bucket = home / "bucket"
        server = _Server(home, ("--storage=file", f"--bucket={bucket}"))
        put_config(bucket, server)
        k8s_port = ports.free_base([0])
        started: list[asyncio.subprocess.Process] = []
        environment = {"NSTANCE_ENCRYPTION_KEY": KEY}
        kube = HttpKube(Access(server=f"http://127.0.0.1:{k8s_port}"), SystemClock())
        try:
            await server.start("a", environment)
            started.append(await _start(home, "nstance.dev.k8s.main", f"--port={k8s_port}", f"--dir={home / 'k8s'}"))
            await server.until_acts("a")
            await _give(kube, bucket, environment)
            started.append(await _operator(home, server, k8s_port))
            took = await _measure(kube, server, bucket)
            yield Row(
                number="12",
                what="pool scaled in Kubernetes → server has it, p99",
                value=1000 * percentile(took, 0.99),
                unit="ms",
                goal=100.0,
                detail=spread([1000 * each for each in took], "ms"),
            )
        except TimeoutError:
            _show_ends(home)
            raise
        finally:
            await kube.close()
            for process in started:
                process.kill()
                await process.wait()
            await server.close()


def _show_ends(home: Path) -> None:
    for log in sorted(home.glob("*.log")):
        show_end(log)


async def _start(home: Path, module: str, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    with (home / f"{module}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=log, stderr=log, env={**os.environ, **environment}
        )


async def _give(kube: HttpKube, bucket: Path, environment: dict[str, str]) -> None:
    """What the operator needs: the CA and a nonce."""
    admin = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nstance.admin", "cluster", "nonce", "--key-provider=env"),
        *("--storage-provider=file", f"--storage-bucket={bucket}"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    token, _ = await admin.communicate()
    certificate = (bucket / "cluster/ca.crt").read_text()
    names = Environment()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await kube.list(kinds.NODE)
                break
            except errors.UnavailableError:
                await asyncio.sleep(0.05)
    for kind, name, data in (
        (kinds.CONFIG_MAP, names.ca_configmap, {"ca.crt": certificate}),
        (kinds.SECRET, names.nonce_secret, {"nonce.jwt": base64.b64encode(token.strip()).decode()}),
    ):
        await kube.create(kind, {"metadata": {"name": name}, "data": data}, namespace="default")


async def _operator(home: Path, server: Pair, k8s_port: int) -> asyncio.subprocess.Process:
    addresses = {f"{name}_addr": f"127.0.0.1:{server.port('a', name)}" for name in ("registration", "operator")}
    told = {"cluster_id": "bench", "tenant": "default", "shards": {SHARD: addresses}}
    (home / "operator.yaml").write_text(json.dumps(told))
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{k8s_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    access = {
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "c", "user": {}}],
        "current-context": "c",
    }
    (home / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **access}))
    return await _start(
        home,
        "nstance.operator.main",
        f"--config={home / 'operator.yaml'}",
        f"--kubeconfig={home / 'kubeconfig'}",
        "--disable-webhooks",
        "--health-probe-bind-address=0",
        NSTANCE_NAMESPACE="default",
    )


async def _measure(kube: HttpKube, server: Pair, bucket: Path) -> list[float]:
    async with asyncio.timeout(PATIENCE):
        await _imported(kube)
    kept = (await kube.get(kinds.SECRET, Environment().cert_secret, namespace="default"))["data"]
    shown = credentials.read(
        base64.b64decode(kept["tls.crt"]), base64.b64decode(kept["tls.key"]), (bucket / "cluster/ca.crt").read_bytes()
    )
    endpoints = Endpoints(registration=("127.0.0.1:1",), operator=(f"127.0.0.1:{server.port('a', NAMES[3])}",))
    configuration = Configuration(
        cluster=ClusterId("bench"), tenant=TenantId("default"), shards={ShardId(SHARD): endpoints}
    )
    ear = _Ear()
    links = ear.links = Links(
        configuration, credentials=lambda: shown, metrics=Metrics(), clock=SystemClock(), rng=SystemRng()
    )
    links.add_listener(ear)
    following = asyncio.create_task(links.run())
    try:
        return [await _scale(kube, ear, size) for size in _sizes()]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _sizes() -> list[int]:
    return [1 + number % 2 for number in range(SCALES)]


async def _imported(kube: HttpKube) -> None:
    while True:
        if (await kube.list(kinds.NSTANCE_SHARD_GROUP, namespace="default")).items:
            return
        await asyncio.sleep(0.05)


async def _scale(kube: HttpKube, ear: _Ear, size: int) -> float:
    while not ear.last_seen.empty():
        ear.last_seen.get_nowait()
    began = time.monotonic()
    await kube.patch(kinds.MACHINE_POOL, POOL, {"spec": {"replicas": size}}, namespace="default", subresource="scale")
    async with asyncio.timeout(PATIENCE):
        while True:
            last_seen, at = await ear.last_seen.get()
            if last_seen == size:
                return at - began
