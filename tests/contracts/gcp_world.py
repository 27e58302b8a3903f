"""Google Cloud as a place where VMs live: a stand-in that Google's own description of its API checks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from nstance.clock import SystemClock
from nstance.model.ids import InstanceId
from nstance.providers import port
from nstance.providers.gcp.provider import GcpProvider, GcpSettings, open_gcp
from nstance.providers.port import FixedAddress, LoadBalancer
from support.gcp.cloud import Cloud, google_cloud
from support.gcp.compute import Rules
from support.gcp.stand_in import OUTAGE, PROJECT, ZONE

TYPE = "e2-small"
IMAGE = f"projects/{PROJECT}/global/images/debian-12-v20260101"
ARGS = {"SourceImage": IMAGE}
LEADER_IP = "10.0.0.250"
ADDRESS = FixedAddress(ip4=LEADER_IP)
LIST = "compute.instances.list"


class GcpWorld:
    capabilities = (True, True, True, True)
    has_console = True
    knows_addresses = True

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.stand_in, self.compute = cloud.stand_in, cloud.compute
        self._doors: list[GcpProvider] = []

    def door(self, of: port.Scope) -> GcpProvider:
        return self.open(of)

    def open(
        self,
        of: port.Scope,
        *,
        environment: dict[str, str] | None = None,
        settings: GcpSettings | None = None,
        address: FixedAddress | None = ADDRESS,
    ) -> GcpProvider:
        provider = open_gcp(
            of,
            settings or GcpSettings(zone=ZONE),
            address,
            clock=SystemClock(),
            environment=environment or self.stand_in.environment(),
        )
        self._doors.append(provider)
        create = provider.create

        async def create_with_defaults(request: port.CreateRequest) -> port.Vm:
            return await create(
                replace(request, args=request.args or ARGS, instance_type=request.instance_type or TYPE)
            )

        provider.create = create_with_defaults  # type: ignore[method-assign]
        return provider

    async def close(self) -> None:
        for door in self._doors:
            await door.close()

    async def tick(self) -> None:
        await asyncio.sleep(0.02)

    def count(self, id: InstanceId) -> int:
        return sum(name == id for name in self.compute.living())

    def hostname(self, vm: port.Vm) -> str:
        return f"{vm.id}.{ZONE}.c.{PROJECT}.internal"

    def end_by_hand(self, id: InstanceId) -> None:
        self.compute.stop(id)

    def spoil(self, id: InstanceId) -> None:
        labels = self.compute.instances[ZONE, id]["labels"]
        for name in ("cluster-id", "shard", "tenant", "group"):
            del labels[f"nstance-{name}"]

    def write_console(self, id: InstanceId, text: str) -> None:
        self.compute.console[id] = text

    @contextlib.contextmanager
    def broken_listing(self) -> Iterator[None]:
        self.stand_in.always[LIST] = OUTAGE
        yield
        self.stand_in.heal()

    def balancer(self) -> LoadBalancer:
        self.compute.groups["web"] = set()
        return LoadBalancer("lb", instance_group_name="web")


@contextlib.asynccontextmanager
async def gcp_world(rules: Rules | None = None) -> AsyncIterator[GcpWorld]:
    async with google_cloud(rules or Rules(page_size=2)) as cloud:
        world = GcpWorld(cloud)
        yield world
        await world.close()
