"""The provider over a cloud in memory: for tests, benchmarks and the simulator. See `memory_cloud` and `memory_behavior`."""

from collections.abc import Callable, Mapping, Sequence

from nstance import clock as clocks
from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import port
from nstance.providers.memory_behavior import Behavior, Call
from nstance.providers.memory_cloud import MemoryCloud
from nstance.providers.port import LoadBalancer


class MemoryProvider(
    port.Instances, port.LoadBalancers, port.Images, port.LeaderAddress, port.SubnetCapacity, port.Console
):
    """One server's access to a cloud. `server` is who gets the leader address."""

    def __init__(
        self,
        scope: port.Scope,
        clock: clocks.Clock,
        *,
        cloud: MemoryCloud | None = None,
        behavior: Behavior | None = None,
        server: str = "",
    ) -> None:
        self.scope = scope
        self.cloud = cloud or MemoryCloud(clock, behavior=behavior)
        self._server = server

    @property
    def traits(self) -> port.Traits:
        return port.Traits()

    async def create(self, request: port.CreateRequest) -> port.Vm:
        return await self.cloud.call(Call.CREATE, request.id, lambda _: self.cloud.create(self.scope, request))

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        return await self.cloud.call(
            Call.DELETE,
            id,
            lambda _: self.cloud.delete(self.scope, id, provider_id),
            pretend=lambda: port.Status.DELETING,
        )

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> port.Vm:
        return await self.cloud.call(Call.GET, id, lambda _: self.cloud.get(self.scope, id, provider_id))

    async def list(self) -> Sequence[port.Vm]:
        return await self.cloud.call(Call.LIST, None, lambda outcome: self.cloud.listing(self.scope)[: outcome.first])

    async def console_output(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        return await self.cloud.call(Call.CONSOLE, id, lambda _: self.cloud.console(self.scope, id, provider_id))

    async def free_addresses(self, subnet: str) -> int | None:
        return await self.cloud.call(Call.SUBNET_CAPACITY, None, lambda _: self.cloud.free(subnet))

    async def find_image(self, query: port.ImageQuery) -> str:
        return await self.cloud.call(Call.FIND_IMAGE, None, lambda _: self.cloud.find_image(query))

    async def assign_leader_address(self) -> None:
        def assign() -> None:
            self.cloud.leader_networks[self.scope] = self._server

        await self._change(Call.ASSIGN_LEADER_NETWORK, assign)

    async def release_leader_address(self) -> None:
        def release() -> None:
            if self.cloud.leader_networks.get(self.scope) == self._server:  # never the successor's
                del self.cloud.leader_networks[self.scope]

        await self._change(Call.RELEASE_LEADER_NETWORK, release)

    async def list_targets(self, balancer: LoadBalancer) -> Mapping[ProviderId, bool]:
        return await self.cloud.call(
            Call.LOAD_BALANCER_MEMBERS,
            None,
            lambda _: dict.fromkeys(self.cloud.load_balancers.get(balancer.name, ()), True),
        )

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        return False

    async def register_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        await self._change(Call.LOAD_BALANCER_REGISTER, lambda: self.cloud.register(balancer.name, provider_id))

    async def deregister_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        await self._change(Call.LOAD_BALANCER_DEREGISTER, lambda: self.cloud.deregister(balancer.name, provider_id))

    async def close(self) -> None:
        """The cloud stays."""

    async def _change(self, call: Call, work: Callable[[], None]) -> None:
        await self.cloud.call(call, None, lambda _: work(), pretend=lambda: None)
