"""A whole operator in this process, between whole shards and a Kubernetes.

    async with operating(tmp_path, kubernetes, {"zone-a": {"web": 2}}) as cluster:
        await cluster.until(lambda: cluster.get(kinds.MACHINE_POOL, "nstance-web"))

The shards are real servers over a cloud in memory (`whole_server`). The Kubernetes is one of `KUBERNETES`: in memory, dev-k8s
over HTTP, or the real API server that NSTANCE_TEST_KUBECONFIG leads to (`make test-kube`). Each test has a namespace of its
own. Every running VM becomes a Node, as the cloud's own software would have it.
"""

import asyncio
import base64
import contextlib
import os
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from component.whole_server import CLUSTER, World, config, states
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.dev.k8s import main as dev_k8s
from nstance.kube import crds, errors, kinds, kubeconfig, memory
from nstance.kube.http import HttpKube
from nstance.kube.kinds import Kind
from nstance.kube.kubeconfig import Access
from nstance.kube.memory import MemoryKube
from nstance.kube.port import Kube, Object
from nstance.model.ids import InstanceId, ShardId, TenantId
from nstance.operator.options import Environment, Options, Waits
from nstance.operator.shards.links import Links
from nstance.operator.wiring import Host, Operator
from support import real_kube
from support.eventually import eventually

SECONDS = 60.0
REAL = "NSTANCE_TEST_KUBECONFIG"
T = TypeVar("T")

KUBERNETES = (
    "memory",
    "dev-k8s",
    pytest.param(
        "real", marks=pytest.mark.skipif(not os.environ.get(REAL), reason=f"{REAL} is not set: make test-kube")
    ),
)


@contextlib.asynccontextmanager
async def kubernetes_of(name: str, dir: Path) -> AsyncIterator[Access]:
    """Access to a Kubernetes of that name; for `memory` it only says so."""
    if name == "real":
        yield kubeconfig.load([Path(os.environ[REAL])])
    elif name == "dev-k8s":
        async with dev_k8s.serving(dir / "dev-k8s", port=0) as port:
            yield Access(server=f"http://127.0.0.1:{port}")
    else:
        yield Access(server="http://memory.invalid")


@dataclass
class Cluster:
    kube: Kube
    connect: Callable[[Access], Kube]
    access: Access
    namespace: str
    dir: Path
    shards: dict[str, World]
    clock: SystemClock
    kubeconfig: str = dev_k8s.KUBECONFIG.format(port=1)  # what the operator reads; `connect` decides where it leads
    is_cloud_deleting_nodes: bool = True  # a cloud's own software does, where it runs
    waits: Waits = field(default_factory=lambda: Waits(call_settled=3.0, vm_gone_check=0.5))
    remove_cluster_api: Callable[[], Awaitable[None]] | None = None  # where its controllers run
    operators: dict[str, tuple[Operator, "asyncio.Task[None]"]] = field(default_factory=dict)

    # ---- the operator

    async def start(self, name: str = "one", **options: object) -> Operator:
        """Start an operator, and wait until it is ready."""
        config = self.dir / "operator.yaml"
        if not config.exists():
            self.configure(*self.shards)
        operator = Operator(
            Options(
                config=config,
                health=None,
                webhook=None,
                environment=Environment(namespace=self.namespace),
                waits=self.waits,
                **options,  # type: ignore[arg-type]
            ),
            clock=self.clock,
            rng=SystemRng(),
            host=Host(variables={"KUBECONFIG": str(self._kubeconfig())}),
            connect=lambda access: self.connect(self.access),
        )
        task = asyncio.create_task(operator.run())
        self.operators[name] = operator, task
        await self.until(lambda: self._ready(operator, task))
        return operator

    @staticmethod
    def _ready(operator: Operator, task: "asyncio.Task[None]") -> bool:
        if task.done():
            task.result()
            raise AssertionError("the operator has ended")
        return operator.unready_reason is None

    async def stop(self, name: str = "one") -> None:
        operator, task = self.operators.pop(name)
        operator.stop()
        await asyncio.wait_for(task, SECONDS)

    async def crash(self, name: str = "one") -> None:
        _, task = self.operators.pop(name)
        task.cancel()
        await asyncio.wait([task], timeout=SECONDS)

    def configure(self, *names: str) -> None:
        """The configuration file, with these shards in it."""
        ports = {service: number for number, service in enumerate(Service)}
        shards = {
            name: {
                key: ",".join(
                    f"127.0.0.1:{server.base + ports[service]}" for server in self.shards[name].servers.values()
                )
                for key, service in (("registration_addr", Service.REGISTRATION), ("operator_addr", Service.OPERATOR))
            }
            for name in names
        }
        (self.dir / "operator.yaml").write_text(
            yaml.safe_dump({"cluster_id": str(CLUSTER), "tenant": "default", "shards": shards}, sort_keys=False)
        )

    def _kubeconfig(self) -> Path:
        path = self.dir / "kubeconfig"
        path.write_text(self.kubeconfig)
        return path

    @property
    def links(self) -> Links:
        operator, _ = next(iter(self.operators.values()))
        assert operator.links is not None
        return operator.links

    # ---- looking

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.kube.get(kind, name, namespace=self.namespace if kind.namespaced else "")
        except errors.NotFoundError:
            return None

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.kube.list(kind, namespace=self.namespace if kind.namespaced else "")).items

    async def until(self, find: Callable[[], T | Awaitable[T]]) -> T:
        return await eventually(find, seconds=SECONDS)

    def running(self, shard: str, group: str) -> list[InstanceId]:
        """Instances of a group that run, as the shard's leader has them in mind."""
        return sorted(id for id, state in states(self.shards[shard], group).items() if state == "running")

    async def nodes(self) -> dict[str, Object]:
        """Of this test, by instance."""
        labelled = [node for node in await self.all(kinds.NODE) if (node["metadata"].get("labels") or {}).get("test")]
        return {
            node["metadata"]["labels"]["nstance.dev/instance-id"]: node
            for node in labelled
            if node["metadata"]["labels"]["test"] == self.namespace
        }

    # ---- doing

    async def scale(self, group: str, replicas: int) -> None:
        await self.until(lambda: self.get(kinds.MACHINE_POOL, f"nstance-{group}"))
        await self.kube.patch(
            kinds.MACHINE_POOL,
            f"nstance-{group}",
            {"spec": {"replicas": replicas}},
            namespace=self.namespace,
            subresource="scale",
        )

    async def pod(self, name: str, *, node: str = "", namespace: str = "", **metadata: object) -> Object:
        body: Object = {
            "metadata": {"name": name, **metadata},
            "spec": {"containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 0},
        }
        if node:
            body["spec"]["nodeName"] = node
        return await self.kube.create(kinds.POD, body, namespace=namespace or self.namespace)

    async def _follow_vms(self) -> None:
        """Nodes come and go with VMs, also while the API server is away for a moment."""
        known: set[InstanceId] = set()
        while True:
            with contextlib.suppress(errors.UnavailableError, errors.UnknownOutcomeError):
                await self._follow_once(known)
            await asyncio.sleep(0.01)

    async def _follow_once(self, known: set[InstanceId]) -> None:
        agents = {id: agent for world in self.shards.values() for id, agent in world.agents.items()}
        for id in {id for id, agent in agents.items() if agent.connected} - known:
            labels, taints = _kubelet_flags(agents[id].userdata)
            labels |= {"nstance.dev/instance-id": str(id), "test": self.namespace}
            with contextlib.suppress(errors.AlreadyExistsError):
                spec: Object = {"providerID": f"dev:///{id}", "taints": taints}
                body: Object = {"metadata": {"name": str(id), "labels": labels}, "spec": spec}
                # Kubelets register with it. A MachinePool whose nodes have another version is being upgraded.
                body["status"] = {"nodeInfo": {"kubeletVersion": f"v{real_kube.KUBERNETES}"}}
                await self.kube.create(kinds.NODE, body)
            known.add(id)
        alive = {id for id, agent in agents.items() if not agent.task.done()}
        for id in known - alive if self.is_cloud_deleting_nodes else ():
            with contextlib.suppress(errors.NotFoundError):
                await self.kube.delete(kinds.NODE, str(id))
            known.discard(id)


def _kubelet_flags(userdata: str) -> tuple[dict[str, str], list[Object]]:
    """Labels and taints that a kubelet registers with, if the userdata starts one."""
    flags = dict(each.split("=", 1) for each in userdata.split() if each.startswith(("--node-labels=", "--register-")))
    labels = filter(None, flags.get("--node-labels", "").split(","))
    taints = re.findall(r"([^,=]+)=([^:]*):([^,]+)", flags.get("--register-with-taints", ""))
    return dict(each.split("=", 1) for each in labels), [
        {"key": key, "effect": effect} | ({"value": value} if value else {}) for key, value, effect in taints
    ]


def with_template(**keys: object) -> Callable[..., World]:
    """Makes shards whose template has these keys too."""

    def make_world(dir: Path, settings: dict[str, Any], **more: Any) -> World:
        settings["templates"]["web"] |= keys
        return World(dir, settings, **more)

    return make_world


@contextlib.asynccontextmanager
async def operating(
    dir: Path,
    kubernetes: str,
    groups: dict[str, dict[str, int]],
    *,
    start: bool = True,
    drain_timeout: str = "30s",
    make_world: Callable[..., World] = World,
) -> AsyncIterator[Cluster]:
    """`groups`: for each shard its static groups with their sizes. `make_world`: for shards with other settings (see
    `with_template`), or that are not over a cloud in memory."""
    clock, rng = SystemClock(), SystemRng()
    async with contextlib.AsyncExitStack() as stack:
        access = await stack.enter_async_context(kubernetes_of(kubernetes, dir))
        kube, connect = _client(kubernetes, access, clock, rng)
        stack.push_async_callback(kube.close)
        shards: dict[str, World] = {}
        for name, sizes in groups.items():
            static = {
                group: {"template": "web", "size": size, "drain_timeout": drain_timeout}
                for group, size in sizes.items()
            }
            first = next(iter(shards.values()), None)
            world = make_world(dir / name, config(groups={"default": static}), shard=ShardId(name), beside=first)
            shards[name] = await stack.enter_async_context(world)
            await world.start()
        namespace = f"t-{uuid.uuid4().hex[:12]}"
        cluster = Cluster(kube, connect, access, namespace, dir, shards, clock)
        if kubernetes == "real":
            cluster.kubeconfig = _real_kubeconfig()
        await _prepare(cluster)
        following = asyncio.create_task(cluster._follow_vms())
        try:
            if start:
                await cluster.start()
            yield cluster
        finally:
            following.cancel()
            for name in list(cluster.operators):
                await cluster.crash(name)
            await asyncio.gather(following, return_exceptions=True)
            if kubernetes == "real":
                await _clear(cluster)


def _real_kubeconfig() -> str:
    return Path(os.environ[REAL]).read_text()


async def _clear(cluster: Cluster) -> None:
    """The API server is everybody's: a pod that still asks for a node would ask the next test's operator."""
    for pod in (await cluster.kube.list(kinds.POD)).items:
        if pod["metadata"]["namespace"].startswith(cluster.namespace):
            with contextlib.suppress(errors.NotFoundError):
                await cluster.kube.delete(kinds.POD, pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
    for node in (await cluster.nodes()).values():
        with contextlib.suppress(errors.NotFoundError):
            await cluster.kube.delete(kinds.NODE, node["metadata"]["name"])


def _client(
    kubernetes: str, access: Access, clock: SystemClock, rng: SystemRng
) -> tuple[Kube, Callable[[Access], Kube]]:
    if kubernetes == "memory":
        api = memory.cluster(clock, rng)
        return MemoryKube(api, clock), lambda access: MemoryKube(api, clock)
    return HttpKube(access, clock), lambda _: HttpKube(access, clock)


async def _prepare(cluster: Cluster) -> None:
    """A namespace with what the operator needs before it starts; our CRDs, so that their schemas count."""
    kube, world = cluster.kube, next(iter(cluster.shards.values()))
    for kind in crds.KINDS:
        with contextlib.suppress(errors.AlreadyExistsError):
            await kube.create(kinds.CUSTOM_RESOURCE_DEFINITION, crds.definition(kind))
    labels = {"nstance.dev/on-demand": "enabled"}
    await kube.create(kinds.NAMESPACE, {"metadata": {"name": cluster.namespace, "labels": labels}})
    await kube.create(
        kinds.SERVICE_ACCOUNT, {"metadata": {"name": "nstance-capi-workload"}}, namespace=cluster.namespace
    )
    await kube.create(
        kinds.CONFIG_MAP,
        {"metadata": {"name": "nstance-cluster-ca"}, "data": {"ca.crt": world.ca_pem}},
        namespace=cluster.namespace,
    )
    token = world.operators().new_nonce(world.leader.lead_now.issuer.authority, tenant=TenantId("default"))
    await kube.create(
        kinds.SECRET,
        {
            "metadata": {"name": "nstance-operator-nonce"},
            "data": {"nonce.jwt": base64.b64encode(token.encode()).decode()},
        },
        namespace=cluster.namespace,
    )
