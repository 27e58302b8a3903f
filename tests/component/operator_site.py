"""A whole operator between a server and a Kubernetes in memory."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from component.whole_server import CLUSTER, SHARD, World, config
from nstance.config.addresses import Service
from nstance.kube import errors, kinds, memory
from nstance.kube.kubeconfig import Access
from nstance.kube.lease import LeaseTimes
from nstance.kube.memory import MemoryKube
from nstance.kube.port import Kube, Object
from nstance.model.ids import TenantId
from nstance.operator.controllers.clusters import Clusters
from nstance.operator.options import BindAddress, Options, Waits
from nstance.operator.wiring import Build, Host, Operator
from nstance.telemetry.tracing import Tracing
from support.eventually import eventually

NAME = "demo--default"
LOOPBACK = BindAddress("127.0.0.1", 0)
TENANT = TenantId("default")


WAITS = Waits(config_poll=0.02, kube_retry=0.01)


class Site:
    """A shard, a Kubernetes prepared for it, and operators between them."""

    def __init__(self, world: World, dir: Path) -> None:
        self.world = world
        self.dir = dir
        self.api = memory.cluster(world.clock, world.rng)
        self.kube = MemoryKube(self.api, world.clock)
        self.others: dict[str, MemoryKube] = {}  # by server
        (dir / "kubeconfig").write_text(
            json.dumps(
                {
                    "current-context": "x",
                    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x", "namespace": "default"}}],
                    "clusters": [{"name": "x", "cluster": {"server": "https://10.0.0.1:6443"}}],
                    "users": [{"name": "x", "user": {"token": "t"}}],
                }
            )
        )

    async def prepare(self) -> None:
        world = self.world
        token = world.operators().new_nonce(world.leader.lead_now.issuer.authority, tenant=TENANT)
        await self.kube.create(
            kinds.CONFIG_MAP,
            {"metadata": {"name": "nstance-cluster-ca"}, "data": {"ca.crt": world.ca_pem}},
            namespace="default",
        )
        await self.secret("nstance-operator-nonce", {"nonce.jwt": token})
        await self.kube.create(
            kinds.SERVICE_ACCOUNT, {"metadata": {"name": "nstance-capi-workload"}}, namespace="default"
        )
        self.configure()

    async def secret(self, name: str, content: dict[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        await self.kube.create(kinds.SECRET, {"metadata": {"name": name}, "data": data}, namespace="default")

    def configure(self, **more: str) -> None:
        base = self.world.servers["a"].base
        ports = {service: base + number for number, service in enumerate(Service)}
        shards = {
            SHARD: {
                "registration_addr": f"127.0.0.1:{ports[Service.REGISTRATION]}",
                "operator_addr": f"127.0.0.1:{ports[Service.OPERATOR]}",
            }
        }
        shards |= {name: {"registration_addr": address, "operator_addr": address} for name, address in more.items()}
        text = yaml.safe_dump({"cluster_id": CLUSTER, "tenant": "default", "shards": shards}, sort_keys=False)
        (self.dir / "config.yaml").write_text(text)

    def connect(self, access: Access) -> Kube:
        return self.others.get(access.server) or MemoryKube(self.api, self.world.clock)

    def operator(
        self, *, build: Build = lambda context: [Clusters(context)], tracing: Tracing | None = None, **more: Any
    ) -> Operator:
        times = LeaseTimes(renew=0.1, retry=0.1)
        flags: dict[str, Any] = {"health": LOOPBACK, "metrics": LOOPBACK, "webhook": None}
        flags |= {"lease_times": times, "waits": WAITS, **more}
        options = Options(config=self.dir / "config.yaml", kubeconfig=str(self.dir / "kubeconfig"), **flags)
        return Operator(
            options,
            clock=self.world.clock,
            rng=self.world.rng,
            host=Host(variables={}, home=self.dir, service_account=self.dir / "none", tracing=tracing or Tracing()),
            connect=self.connect,
            build=build,
        )

    async def find(self, kind: kinds.Kind, name: str = NAME) -> Object | None:
        try:
            return await self.kube.get(kind, name, namespace="default")
        except errors.NotFoundError:
            return None

    async def until(self, kind: kinds.Kind, right: Callable[[Object], Any], name: str = NAME) -> Object:
        async def find() -> Object | None:
            found = await self.find(kind, name)
            return found if found is not None and right(found) else None

        return await eventually(find)


@contextlib.asynccontextmanager
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with World(tmp_path / "server", config(), agents=False) as world:
        await world.start()
        made = Site(world, tmp_path)
        await made.prepare()
        yield made


@contextlib.asynccontextmanager
async def running(operator: Operator) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(operator.run())
    try:
        yield task
    finally:
        operator.stop()
        await asyncio.wait({task}, timeout=60)
        assert task.done()
        if not task.cancelled():
            task.exception()


async def get(operator: Operator, path: str) -> tuple[int, str]:
    listener = operator.metrics_server.listener if path == "/metrics" else operator.probe_server.listener
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{listener.port}{path}") as answer:
        return answer.status, await answer.text()


def ready(found: Object) -> Object:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Ready"), {})


def is_ready(operator: Operator) -> bool:
    return operator.unready_reason is None
