"""A Kubernetes API server (dev-k8s) and the operator as processes, beside shards that run.

    async with operator_site.running(dir, bucket, {"one": addresses}) as site:
        await site.scale("nstance-web", 3)

`observe` connects to the shards with the operator's own certificate and records when they report a size.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from bench import ports
from bench.fleet_server import CLUSTER, TIMEOUT_SECONDS
from bench.pair import print_log_tail
from nstance.clock import SystemClock, SystemRng
from nstance.kube import errors, kinds
from nstance.kube.http import HttpKube
from nstance.kube.kubeconfig import Access
from nstance.model.ids import ShardId, TenantId
from nstance.operator.config_file import Configuration, Endpoints
from nstance.operator.metrics import Metrics
from nstance.operator.options import Environment
from nstance.operator.shards.links import Links
from nstance.operator.shards.ports import Listener
from nstance.wire import credentials

NAMESPACE = "default"


class Sizes(Listener):
    """Records when a shard reported the size of a group."""

    def __init__(self) -> None:
        self.links: Links
        self._reported: asyncio.Queue[tuple[str, str, int, float]] = asyncio.Queue()

    def on_group_change(self, shard: str, group: str) -> None:
        link = self.links.get(shard)
        if link is not None and group in link.groups:
            self._reported.put_nowait((shard, group, link.groups[group].size, time.monotonic()))

    def clear(self) -> None:
        while not self._reported.empty():
            self._reported.get_nowait()

    async def wait(self, group: str, sizes: Mapping[str, int]) -> float:
        """When the last one of these shards reported its size of the group."""
        missing, at = dict(sizes), 0.0
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while missing:
                shard, of, size, at = await self._reported.get()
                if of == group and missing.get(shard) == size:
                    del missing[shard]
        return at


class Site:
    def __init__(self, dir: Path, bucket: Path, shards: Mapping[str, str]) -> None:
        self._dir = dir
        self._bucket = bucket
        self._shards = shards  # the address of the registration service of each; the operator service has the next port
        self._k8s_port, self._metrics_port = ports.free_base([0]), ports.free_base([0])
        self._processes: list[asyncio.subprocess.Process] = []
        self.kube = HttpKube(Access(server=f"http://127.0.0.1:{self._k8s_port}"), SystemClock())

    @property
    def operator_pid(self) -> int:
        return self._processes[-1].pid

    async def start(self) -> None:
        await self._start("nstance.dev.k8s.main", f"--port={self._k8s_port}", f"--dir={self._dir / 'k8s'}")
        await self._create_inputs()
        (self._dir / "operator.yaml").write_text(
            json.dumps({"cluster_id": CLUSTER, "tenant": "default", "shards": self._addresses()})
        )
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._k8s_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        access = {"clusters": [cluster], "contexts": [context], "users": [{"name": "c", "user": {}}]}
        kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "c", **access}
        (self._dir / "kubeconfig").write_text(json.dumps(kubeconfig))
        await self._start(
            "nstance.operator.main",
            f"--config={self._dir / 'operator.yaml'}",
            f"--kubeconfig={self._dir / 'kubeconfig'}",
            "--leader-elect",
            "--disable-webhooks",
            "--health-probe-bind-address=0",
            f"--metrics-bind-address=127.0.0.1:{self._metrics_port}",
            NSTANCE_NAMESPACE=NAMESPACE,
        )

    async def close(self) -> None:
        await self.kube.close()
        for process in self._processes:
            process.kill()
            await process.wait()

    def print_logs(self) -> None:
        for log in sorted(self._dir.glob("*.log")):
            print_log_tail(log)

    async def scale(self, pool: str, replicas: int) -> float:
        """As `kubectl scale` does. Returns when it was sent."""
        at = time.monotonic()
        change = {"spec": {"replicas": replicas}}
        await self.kube.patch(kinds.MACHINE_POOL, pool, change, namespace=NAMESPACE, subresource="scale")
        return at

    def metrics(self) -> dict[str, float]:
        """Of the operator."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=5) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    @contextlib.asynccontextmanager
    async def observe(self) -> AsyncIterator[Sizes]:
        """After the operator has imported the pools."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (await self.kube.list(kinds.NSTANCE_SHARD_GROUP, namespace=NAMESPACE)).items:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        secret = (await self.kube.get(kinds.SECRET, Environment().cert_secret, namespace=NAMESPACE))["data"]
        identity = credentials.read(
            base64.b64decode(secret["tls.crt"]),
            base64.b64decode(secret["tls.key"]),
            (self._bucket / "cluster/ca.crt").read_bytes(),
        )
        endpoints = {
            ShardId(name): Endpoints(registration=("127.0.0.1:1",), operator=(addresses["operator_addr"],))
            for name, addresses in self._addresses().items()
        }
        configuration = Configuration(cluster=CLUSTER, tenant=TenantId("default"), shards=endpoints)
        sizes = Sizes()
        sizes.links = Links(
            configuration, credentials=lambda: identity, metrics=Metrics(), clock=SystemClock(), rng=SystemRng()
        )
        sizes.links.add_listener(sizes)
        following = asyncio.create_task(sizes.links.run())
        try:
            yield sizes
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def _addresses(self) -> dict[str, dict[str, str]]:
        found = {}
        for name, address in self._shards.items():
            host, _, port = address.rpartition(":")
            found[name] = {"registration_addr": address, "operator_addr": f"{host}:{int(port) + 1}"}
        return found

    async def _start(self, module: str, *arguments: str, **environment: str) -> None:
        with (self._dir / f"{module}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *arguments, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        self._processes.append(process)

    async def _create_inputs(self) -> None:
        """Create what the operator needs: the CA and a nonce."""
        storage = ("--storage-provider=file", f"--storage-bucket={self._bucket}", "--insecure-dev")
        admin = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nstance.admin", "cluster", "nonce", *storage), stdout=asyncio.subprocess.PIPE
        )
        token, _ = await admin.communicate()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                try:
                    await self.kube.list(kinds.NODE)
                    break
                except errors.UnavailableError:
                    await asyncio.sleep(0.05)
        names = Environment()
        for kind, name, data in (
            (kinds.CONFIG_MAP, names.ca_configmap, {"ca.crt": (self._bucket / "cluster/ca.crt").read_text()}),
            (kinds.SECRET, names.nonce_secret, {"nonce.jwt": base64.b64encode(token.strip()).decode()}),
        ):
            await self.kube.create(kind, {"metadata": {"name": name}, "data": data}, namespace=NAMESPACE)


@contextlib.asynccontextmanager
async def running(dir: Path, bucket: Path, shards: Mapping[str, str]) -> AsyncIterator[Site]:
    """`shards`: by name, the address of the registration service."""
    site = Site(dir, bucket, shards)
    try:
        await site.start()
        yield site
    except BaseException:
        site.print_logs()
        raise
    finally:
        await site.close()
