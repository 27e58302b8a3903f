"""A cloud account in memory, shared by the servers, shards and clusters that have a `MemoryProvider` on it.

It is deterministic: time comes from a clock, everything else from a `Behavior`. A VM's status is a function of time, so
a lagging answer is the status of some seconds ago. The trap: a sent call is applied even if its caller is cancelled,
times out or crashes, as in a real cloud; that work belongs to the cloud's own tasks.
"""

import asyncio
import contextvars
import copy
import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nstance import clock as clocks
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId
from nstance.model.offer import Offer
from nstance.providers import errors, memory_offers, port
from nstance.providers.cloud_answers import check_owner
from nstance.providers.memory_behavior import Behavior, Call, Life, Outcome, Script
from nstance.tasks import background

_REMEMBERED = 100_000  # deleted IDs

T = TypeVar("T")
Hook = Callable[[port.CreateRequest, port.Vm], None]


@dataclass(slots=True)
class _Machine:
    request: port.CreateRequest
    provider_id: ProviderId
    ip4: str
    life: Life
    created_at: float
    cluster: ClusterId | None
    shard: ShardId | None
    tenant: TenantId | None
    group: GroupName | None
    stopped_at: float | None = None
    deleted_at: float | None = None
    dead_at: float | None = None
    console: str = ""

    def status(self, at: float) -> port.Status | None:
        """The status at a time; None if the VM is not shown."""
        if at < self.created_at:
            return None
        if self.dead_at is not None and at >= self.dead_at:
            return port.Status.DELETED if at < self.dead_at + self.life.linger else None
        if self.deleted_at is not None and at >= self.deleted_at:
            return port.Status.DELETING
        if self.stopped_at is not None and at >= self.stopped_at:
            return port.Status.STOPPED
        return port.Status.RUNNING if at >= self.created_at + self.life.boot else port.Status.PENDING

    def show(self, status: port.Status) -> port.Vm:
        return port.Vm(
            id=self.request.id,
            provider_id=self.provider_id,
            status=status,
            ip4=self.ip4,
            hostname=self.request.id,
            cluster=self.cluster,
            shard=self.shard,
            tenant=self.tenant,
            group=self.group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    id: str
    created: float
    owner: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


class MemoryCloud:
    """One account. `on_boot` is called when a VM starts to run, `on_end` when it no longer runs, for any reason."""

    def __init__(
        self,
        clock: clocks.Clock,
        *,
        behavior: Behavior | None = None,
        subnets: Mapping[str, int] | None = None,
        offers: Mapping[Offer, int] | None = None,
        on_boot: Hook | None = None,
        on_end: Hook | None = None,
    ) -> None:
        self.behavior: Behavior = behavior or Script()
        self.subnets = dict(subnets or {})  # addresses in each; a subnet that is not listed is unlimited
        self.offers = dict(offers or {})  # VMs in each pattern, see `memory_offers`
        self.images: list[Image] = []
        self.calls: Counter[Call] = Counter()
        self.mismatched: list[InstanceId] = []  # creates repeated with another request, which is a bug of the caller
        self.leader_networks: dict[port.Scope, str] = {}
        self.load_balancers: dict[str, list[ProviderId]] = {}
        self._clock = clock
        self._on_boot = on_boot
        self._on_end = on_end
        self._machines: dict[ProviderId, _Machine] = {}
        self._by_id: dict[InstanceId, list[ProviderId]] = {}
        self._deleted: dict[InstanceId, None] = {}
        self._created = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Hooks and delayed work run in the cloud's own context, not in the calling server's.
        self._context = contextvars.copy_context()

    # What a person does in the cloud's console, or the cloud does by itself.

    def vms(self) -> list[port.Vm]:
        """All VMs of all scopes as they are now, without lag."""
        now = self._clock.monotonic()
        return [m.show(status) for m in self._machines.values() if (status := m.status(now)) is not None]

    def stop(self, id: InstanceId) -> None:
        """The VM stops, but is not deleted."""
        for machine in self._running(id):
            machine.stopped_at = self._clock.monotonic()
            self._end(machine)

    def destroy(self, id: InstanceId) -> None:
        """Deleted by a person: gone at once."""
        for machine in self._machines_of(id):
            self._kill(machine, after=0.0)

    def strip_tags(self, id: InstanceId) -> None:
        """A person removed its tags."""
        for machine in self._machines_of(id):
            machine.cluster = machine.shard = machine.tenant = machine.group = None

    def duplicate_vm(self, id: InstanceId) -> ProviderId:
        """A second VM with the same ID, as in clouds without idempotent creates."""
        first = self._machines_of(id)[0]
        return self._boot(first.request, cluster=first.cluster, shard=first.shard).provider_id

    def write_console(self, id: InstanceId, text: str) -> None:
        for machine in self._machines_of(id):
            machine.console = (machine.console + text)[-port.MAX_CONSOLE_BYTES :]

    async def close(self) -> None:
        """Cancel delayed work."""
        await background.end(self._tasks)

    # Called by providers.

    async def call(
        self,
        call: Call,
        id: InstanceId | None,
        work: Callable[[Outcome], T],
        *,
        pretend: Callable[[], T] | None = None,
    ) -> T:
        """One call from a server, counted, with the outcome that the behavior decides. `pretend` gives the answer of a call
        that reports success and does nothing."""
        self.calls[call] += 1
        outcome = self.behavior.outcome(call, id)
        applied: asyncio.Future[tuple[T, None] | tuple[None, errors.ProviderError]]
        applied = asyncio.get_running_loop().create_future()

        def apply() -> None:
            try:
                applied.set_result((work(outcome), None))
            except errors.ProviderError as error:
                applied.set_result((None, error))
            except Exception as error:  # a bug, for example in a hook: the caller must see it
                applied.set_exception(error)

        if outcome.applied:
            self._run_later(outcome.before + outcome.late, apply)
        if outcome.applied and not outcome.late:
            await asyncio.shield(applied)
            await self._clock.sleep(outcome.after)
        else:
            await self._clock.sleep(outcome.before + outcome.after)
        if outcome.error is not None:
            raise copy.copy(outcome.error)  # one outcome may serve many calls
        if not outcome.applied:
            assert pretend is not None, f"a {call.value} that is not applied needs an error"
            return pretend()
        match applied.result():
            case (None, errors.ProviderError() as error):
                raise error
            case (result, _):
                return result

    def create(self, scope: port.Scope, request: port.CreateRequest) -> port.Vm:
        may_exist, request = request.may_exist, replace(request, may_exist=False)
        existing = self._machines_of(request.id)
        machine = next((m for m in existing if m.deleted_at is None), None)
        if machine is None:
            if existing or request.id in self._deleted:
                raise errors.deleted(request.id)
            free = self.free(request.subnet)
            if free is not None and free <= 0:
                raise errors.NoCapacityError(
                    f"subnet {request.subnet!r} has no free address",
                    scope=errors.CapacityScope.SUBNET,
                    subject=request.subnet,
                )
            if (lack := self.find_lack(request)) is not None:
                raise lack
            machine = self._boot(request, cluster=scope.cluster, shard=scope.shard)
        check_owner(scope, machine.request.id, machine.cluster, machine.shard)
        if not may_exist and machine.request != request:
            self.mismatched.append(request.id)
        status = machine.status(self._clock.monotonic())
        assert status is not None, "a machine that was not deleted is shown"
        return machine.show(status)

    def delete(self, scope: port.Scope, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        machines = self._machines_of(id, provider_id)
        for machine in machines:
            check_owner(scope, machine.request.id, machine.cluster, machine.shard)
        for machine in machines:
            self._kill(machine, after=machine.life.dying)
        now = self._clock.monotonic()
        # A VM of an unknown ID may still be created: only a known one can be positively gone.
        known = bool(machines) or id in self._deleted
        gone = known and all(machine.dead_at is not None and machine.dead_at <= now for machine in machines)
        return port.Status.DELETED if gone else port.Status.DELETING

    def get(self, scope: port.Scope, id: InstanceId, provider_id: ProviderId | None) -> port.Vm:
        now = self._clock.monotonic()
        for machine in self._machines_of(id, provider_id):
            check_owner(scope, machine.request.id, machine.cluster, machine.shard)
            status = machine.status(now - machine.life.get_lag)
            if status is not None:
                return machine.show(status)
        raise errors.NotFoundError(f"there is no VM {id}")

    def listing(self, scope: port.Scope) -> list[port.Vm]:
        now = self._clock.monotonic()
        return [
            machine.show(status)
            for machine in self._machines.values()
            if (machine.cluster, machine.shard) == (scope.cluster, scope.shard)
            and (status := machine.status(now - machine.life.list_lag)) is not None
        ]

    def console(self, scope: port.Scope, id: InstanceId, provider_id: ProviderId | None) -> str:
        self.get(scope, id, provider_id)
        return self._machines_of(id, provider_id)[0].console

    def free(self, subnet: str) -> int | None:
        if subnet not in self.subnets:
            return None
        now = self._clock.monotonic()
        used = sum(
            m.request.subnet == subnet and (m.dead_at is None or m.dead_at > now) for m in self._machines.values()
        )
        return self.subnets[subnet] - used

    def find_lack(self, request: port.CreateRequest) -> errors.NoCapacityError | None:
        now = self._clock.monotonic()
        running = (m.request for m in self._machines.values() if m.dead_at is None or m.dead_at > now)
        return memory_offers.find_lack(self.offers, request, running) if self.offers else None

    def find_image(self, query: port.ImageQuery) -> str:
        matching = [image for image in self.images if _is_match(image, query)]
        if not matching:
            raise errors.NotFoundError(f"no image fits {dict(query.filters)}")

        def rank(image: Image) -> tuple[str, float]:
            return image.attributes.get(query.sort, ""), image.created

        return (max if query.order == "desc" else min)(matching, key=rank).id

    def register(self, name: str, provider_id: ProviderId) -> None:
        machine = self._machines.get(provider_id)
        if machine is None or machine.dead_at is not None:
            raise errors.NotFoundError(f"there is no VM {provider_id} to register with {name!r}")
        members = self.load_balancers.setdefault(name, [])
        if provider_id not in members:
            members.append(provider_id)

    def deregister(self, name: str, provider_id: ProviderId) -> None:
        members = self.load_balancers.get(name, [])
        if provider_id in members:
            members.remove(provider_id)

    # Internals.

    def _machines_of(self, id: InstanceId, provider_id: ProviderId | None = None) -> list[_Machine]:
        known = self._by_id.get(id, [])
        return [self._machines[each] for each in known if provider_id in (None, each)]

    def _running(self, id: InstanceId) -> Iterator[_Machine]:
        now = self._clock.monotonic()
        return (m for m in self._machines_of(id) if m.status(now) in (port.Status.PENDING, port.Status.RUNNING))

    def _boot(self, request: port.CreateRequest, *, cluster: ClusterId | None, shard: ShardId | None) -> _Machine:
        self._created += 1
        number = self._created
        machine = _Machine(
            request=request,
            provider_id=ProviderId(f"memory-{number:06}"),
            ip4=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            life=self.behavior.life(request),
            created_at=self._clock.monotonic(),
            cluster=cluster,
            shard=shard,
            tenant=request.tenant,
            group=request.group,
        )
        self._machines[machine.provider_id] = machine
        self._by_id.setdefault(request.id, []).append(machine.provider_id)
        if self._on_boot is not None:
            self._run_later(machine.life.boot, lambda: self._booted(machine))
        return machine

    def _booted(self, machine: _Machine) -> None:
        if self._on_boot is not None and machine.stopped_at is None and machine.deleted_at is None:
            self._on_boot(machine.request, machine.show(port.Status.RUNNING))

    def _kill(self, machine: _Machine, *, after: float) -> None:
        now = self._clock.monotonic()
        if machine.deleted_at is None:
            machine.deleted_at = now
        dead_at = now + after
        if machine.dead_at is None or dead_at < machine.dead_at:
            machine.dead_at = dead_at
            self._run_later(after, lambda: self._died(machine, dead_at))

    def _died(self, machine: _Machine, dead_at: float) -> None:
        if machine.dead_at != dead_at:
            return  # it was destroyed earlier
        if machine.stopped_at is None:
            machine.stopped_at = dead_at
            self._end(machine)
        id = machine.request.id
        self._deleted[id] = None
        if len(self._deleted) > _REMEMBERED:
            del self._deleted[next(iter(self._deleted))]
        for name in self.load_balancers:
            self.deregister(name, machine.provider_id)
        shown = machine.life.linger + max(machine.life.get_lag, machine.life.list_lag)
        self._run_later(shown, lambda: self._forget(machine))

    def _forget(self, machine: _Machine) -> None:
        del self._machines[machine.provider_id]
        siblings = self._by_id[machine.request.id]
        siblings.remove(machine.provider_id)
        if not siblings:
            del self._by_id[machine.request.id]

    def _end(self, machine: _Machine) -> None:
        if self._on_end is not None:
            self._on_end(machine.request, machine.show(port.Status.STOPPED))

    def _run_later(self, delay: float, work: Callable[[], None]) -> None:
        context = self._context.copy()
        if delay <= 0:
            context.run(work)
            return

        async def wait() -> None:
            await self._clock.sleep(delay)
            work()

        task = asyncio.get_running_loop().create_task(wait(), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_match(image: Image, query: port.ImageQuery) -> bool:
    if query.owners and image.owner not in query.owners:
        return False
    return all(
        any(fnmatch.fnmatchcase(image.attributes.get(name, ""), pattern) for pattern in patterns)
        for name, patterns in query.filters.items()
    )
