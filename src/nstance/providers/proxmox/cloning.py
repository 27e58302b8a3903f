"""Clones of a template: of two clones to one VMID the cluster accepts one.

A VM has no name while it is cloned, and the cluster shows its memory some seconds after it was made. So a VMID that is taken
is only left for the next one when it is certain that another VM has it, and what was promised to a new VM counts for a while.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nstance.clock import Clock
from nstance.model.ids import InstanceId
from nstance.providers import errors, port
from nstance.providers.machine_size import MachineSize
from nstance.providers.port import CreateRequest
from nstance.providers.proxmox import ownership, vmids
from nstance.providers.proxmox.arguments import Arguments
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.faults import TakenError
from nstance.providers.proxmox.inventory import CloningError, Inventory, PveVm
from nstance.providers.proxmox.placement import Promise
from nstance.providers.proxmox.places import Place, Places
from nstance.providers.proxmox.settings import ProxmoxSettings

UNLOCK_SECONDS = 600.0  # for a clone that another call began
REPORT_SECONDS = 30.0  # until the cluster surely shows the memory of a new VM; nodes report every ten
STEP_SECONDS = 0.5


class Cloning:
    def __init__(
        self, scope: port.Scope, client: ProxmoxClient, clock: Clock, settings: ProxmoxSettings, inventory: Inventory
    ) -> None:
        self._scope, self._client, self._clock, self._settings = scope, client, clock, settings
        self._inventory = inventory
        self._places = Places(inventory, settings.iso_storage, settings.limits)
        self._in_flight: dict[InstanceId, tuple[Promise, float]] = {}  # and until when

    @contextmanager
    def promising(self, id: InstanceId) -> Iterator[None]:
        """What is promised to a VM within counts until the cluster shows it, or at once no more if it is not made."""
        try:
            yield
        except BaseException:
            self.forget(id)
            raise
        if id in self._in_flight:
            promise, _ = self._in_flight[id]
            self._in_flight[id] = promise, self._clock.monotonic() + REPORT_SECONDS

    def forget(self, id: InstanceId) -> None:
        self._in_flight.pop(id, None)

    async def settle(self, id: InstanceId) -> PveVm | None:
        """The VM of an ID, once it is certain whether there is one."""
        deadline = self._clock.monotonic() + UNLOCK_SECONDS
        while True:
            try:
                return await self._inventory.find(id)
            except CloningError as problem:
                if self._clock.monotonic() > deadline:
                    raise errors.UnknownOutcomeError(str(problem)) from problem
            await self._clock.sleep(STEP_SECONDS)

    async def clone(self, request: CreateRequest, args: Arguments, size: MachineSize) -> PveVm:
        vms = await self._inventory.vms()
        place = await self._places.choose(vms, args, size, self._promised)
        self._in_flight[request.id] = Promise(place.node, size.memory_mib, size.cpus), math.inf
        for vmid in vmids.draws(request.id, self._settings.vmids):
            if (made := await self._clone_to(vmid, request, args, place)) is not None:
                return made
        raise errors.NoCapacityError(
            f"expected a free VMID from {self._settings.vmids.start} to {self._settings.vmids.stop - 1}, found none in "
            f"{vmids.MAX_DRAWS} draws: give a wider option 'vmids'",
            scope=errors.CapacityScope.QUOTA,
            subject="VMIDs",
        )

    def _promised(self) -> Mapping[InstanceId, Promise]:
        """What the cluster does not show yet."""
        now = self._clock.monotonic()
        self._in_flight = {id: each for id, each in self._in_flight.items() if each[1] > now}
        return {id: promise for id, (promise, _) in self._in_flight.items()}

    async def _clone_to(self, vmid: int, request: CreateRequest, args: Arguments, place: Place) -> PveVm | None:
        """None if the VMID belongs to another VM."""
        deadline = self._clock.monotonic() + UNLOCK_SECONDS
        while True:
            try:
                upid = await self._begin_clone(vmid, request, args, place)
            except TakenError as problem:
                if (found := await self.settle(request.id)) is not None:
                    return found
                holder = await self._inventory.at(vmid)
                if holder is not None and not holder.is_unnamed:
                    return holder if holder.instance == request.id else None
                if self._clock.monotonic() > deadline:
                    raise errors.UnknownOutcomeError(f"VMID {vmid} is taken by a VM that cannot be seen") from problem
                await self._clock.sleep(STEP_SECONDS)
                continue
            try:
                await self._client.finish_task(upid, permission=f"Datastore.AllocateSpace on /storage/{place.storage}")
            except errors.UnavailableError as problem:
                raise half_made(request.id, problem) from problem
            return PveVm(vmid=vmid, name=request.id, node=place.node, status="stopped")

    async def _begin_clone(self, vmid: int, request: CreateRequest, args: Arguments, place: Place) -> str:
        """The task. Raises TakenError."""
        template = place.template
        upid = await self._client.change(
            "POST",
            f"{template.path}/clone",
            permission=f"VM.Clone on /vms/{template.vmid}",
            newid=vmid,
            name=request.id,
            description=ownership.notes(ownership.owner_of(self._scope, request), request),
            full=args.full_clone,
            storage=place.storage if args.full_clone else None,
            pool=args.pool or self._settings.pool or None,
            target=place.node if place.node != template.node else None,
        )
        return str(upid)


def half_made(id: InstanceId, problem: Exception) -> errors.UnknownOutcomeError:
    return errors.UnknownOutcomeError(f"create of {id}: {problem}; repeat it with the same ID")
