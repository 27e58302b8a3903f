"""The storage and the cloud of a simulated world, with an auditor that sees each change at the moment it is applied."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nstance import clock as clocks
from nstance.model.ids import InstanceId, ProviderId
from nstance.model.offer import Offer
from nstance.objects import memory
from nstance.objects.port import Version
from nstance.providers import memory_offers, port
from nstance.providers.errors import NoCapacityError
from nstance.providers.memory import MemoryProvider
from nstance.providers.memory_cloud import MemoryCloud

if TYPE_CHECKING:
    from nstance.sim.audit.auditor import Auditor


class WatchedStore(memory.MemoryStore):
    watcher: "Auditor"

    def view(self, faults: memory.Faults | None) -> "WatchedStore":
        other = WatchedStore(self._clock, faults=faults, ignores=self._ignores, remember=self._remember)
        other._objects = self._objects
        other.watcher = self.watcher
        return other

    def _set(self, key: str, body: bytes | None) -> Version:
        version = super()._set(key, body)
        self.watcher.on_store(key, body)
        return version


class WatchedCloud(MemoryCloud):
    watcher: "Auditor"
    is_full: Callable[[str], bool]
    find_exhausted: Callable[[Offer], NoCapacityError | None]

    def create(self, scope: port.Scope, request: port.CreateRequest) -> port.Vm:
        offer = memory_offers.offer_of(request)
        others = [m for m in self._machines_of(request.id) if m.deleted_at is None]
        if others and not request.may_exist and all(memory_offers.offer_of(m.request) != offer for m in others):
            # A real cloud's idempotency token names the offer: a call for another one finds no VM.
            self.watcher.on_second_vm(request.id)
        vm = super().create(scope, request)  # a late call for an ID that was deleted creates nothing
        self.watcher.on_create(request.id, offer)
        return vm

    def find_lack(self, request: port.CreateRequest) -> NoCapacityError | None:
        return self.find_exhausted(memory_offers.offer_of(request)) or super().find_lack(request)

    def delete(self, scope: port.Scope, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        self.watcher.on_delete(id, provider_id)
        return super().delete(scope, id, provider_id)

    def register(self, name: str, provider_id: ProviderId) -> None:
        self.watcher.on_register_target(provider_id)
        super().register(name, provider_id)

    def free(self, subnet: str) -> int | None:
        return 0 if self.is_full(subnet) else super().free(subnet)

    def existing(self, id: InstanceId) -> list[port.Vm]:
        """The VMs that carry this ID and are not deleted, without any lag."""
        now = self._clock.monotonic()
        shown = [(m, m.status(now)) for m in self._machines_of(id)]
        return [m.show(s) for m, s in shown if s is not None and s is not port.Status.DELETED]


class WatchedProvider(MemoryProvider):
    def __init__(self, scope: port.Scope, clock: clocks.Clock, *, cloud: WatchedCloud, server: str) -> None:
        super().__init__(scope, clock, cloud=cloud, server=server)
        self._watcher = cloud.watcher

    async def create(self, request: port.CreateRequest) -> port.Vm:
        self._watcher.on_call(self._server, "create", request.id)
        self._watcher.on_create_call(self._server, request)
        try:
            return await super().create(request)
        except NoCapacityError as error:
            self._watcher.on_refused(self._server, request, error)
            raise

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        self._watcher.on_call(self._server, "delete", id)
        return await super().delete(id, provider_id)

    async def list(self) -> Sequence[port.Vm]:
        vms = await super().list()
        self._watcher.on_listing()
        return vms
