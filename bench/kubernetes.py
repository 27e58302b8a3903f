"""Row 12: the time from scaling a pool in Kubernetes until the shard has the new size.

Real processes: a server (with storage in files), dev-k8s, the operator. Measured from before the PATCH of the scale
subresource is sent (as `kubectl scale` does) until the server reports the new size of the group to its watchers.
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
from bench.pair import NAMES, SHARD, TIMEOUT_SECONDS, Pair, print_log_tail, put_config
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


class _SizeListener(Listener):
    """Records when a size was reported."""

    def __init__(self) -> None:
        self.links: Links | None = None
        self.sizes: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    def on_group_change(self, shard: str, group: str) -> None:
        link = self.links.get(shard) if self.links is not None else None
        if link is not None and group in link.groups:
            self.sizes.put_nowait((link.groups[group].size, time.monotonic()))


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as name:
        dir = Path(name)
        bucket = dir / "bucket"
        server = _Server(dir, ("--storage=file", f"--bucket={bucket}"))
        put_config(bucket, server)
        k8s_port = ports.free_base([0])
        started: list[asyncio.subprocess.Process] = []
        environment = {"NSTANCE_ENCRYPTION_KEY": KEY}
        kube = HttpKube(Access(server=f"http://127.0.0.1:{k8s_port}"), SystemClock())
        try:
            await server.start("a", environment)
            started.append(await _start(dir, "nstance.dev.k8s.main", f"--port={k8s_port}", f"--dir={dir / 'k8s'}"))
            await server.until_acts("a")
            await _create_inputs(kube, bucket, environment)
            started.append(await _operator(dir, server, k8s_port))
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
            _print_logs(dir)
            raise
        finally:
            await kube.close()
            for process in started:
                process.kill()
                await process.wait()
            await server.close()


def _print_logs(dir: Path) -> None:
    for log in sorted(dir.glob("*.log")):
        print_log_tail(log)


async def _start(dir: Path, module: str, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    with (dir / f"{module}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=log, stderr=log, env={**os.environ, **environment}
        )


async def _create_inputs(kube: HttpKube, bucket: Path, environment: dict[str, str]) -> None:
    """Create what the operator needs: the CA and a nonce."""
    admin = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nstance.admin", "cluster", "nonce", "--key-provider=env"),
        *("--storage-provider=file", f"--storage-bucket={bucket}"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    token, _ = await admin.communicate()
    certificate = (bucket / "cluster/ca.crt").read_text()
    names = Environment()
    async with asyncio.timeout(TIMEOUT_SECONDS):
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


async def _operator(dir: Path, server: Pair, k8s_port: int) -> asyncio.subprocess.Process:
    addresses = {f"{name}_addr": f"127.0.0.1:{server.port('a', name)}" for name in ("registration", "operator")}
    settings = {"cluster_id": "bench", "tenant": "default", "shards": {SHARD: addresses}}
    (dir / "operator.yaml").write_text(json.dumps(settings))
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{k8s_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    access = {
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "c", "user": {}}],
        "current-context": "c",
    }
    (dir / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **access}))
    return await _start(
        dir,
        "nstance.operator.main",
        f"--config={dir / 'operator.yaml'}",
        f"--kubeconfig={dir / 'kubeconfig'}",
        "--disable-webhooks",
        "--health-probe-bind-address=0",
        NSTANCE_NAMESPACE="default",
    )


async def _measure(kube: HttpKube, server: Pair, bucket: Path) -> list[float]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await _wait_imported(kube)
    secret = (await kube.get(kinds.SECRET, Environment().cert_secret, namespace="default"))["data"]
    identity = credentials.read(
        base64.b64decode(secret["tls.crt"]),
        base64.b64decode(secret["tls.key"]),
        (bucket / "cluster/ca.crt").read_bytes(),
    )
    endpoints = Endpoints(registration=("127.0.0.1:1",), operator=(f"127.0.0.1:{server.port('a', NAMES[3])}",))
    configuration = Configuration(
        cluster=ClusterId("bench"), tenant=TenantId("default"), shards={ShardId(SHARD): endpoints}
    )
    listener = _SizeListener()
    links = listener.links = Links(
        configuration, credentials=lambda: identity, metrics=Metrics(), clock=SystemClock(), rng=SystemRng()
    )
    links.add_listener(listener)
    following = asyncio.create_task(links.run())
    try:
        return [await _scale(kube, listener, size) for size in _sizes()]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _sizes() -> list[int]:
    return [1 + number % 2 for number in range(SCALES)]


async def _wait_imported(kube: HttpKube) -> None:
    while True:
        if (await kube.list(kinds.NSTANCE_SHARD_GROUP, namespace="default")).items:
            return
        await asyncio.sleep(0.05)


async def _scale(kube: HttpKube, listener: _SizeListener, size: int) -> float:
    while not listener.sizes.empty():
        listener.sizes.get_nowait()
    began = time.monotonic()
    await kube.patch(kinds.MACHINE_POOL, POOL, {"spec": {"replicas": size}}, namespace="default", subresource="scale")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            reported, at = await listener.sizes.get()
            if reported == size:
                return at - began
