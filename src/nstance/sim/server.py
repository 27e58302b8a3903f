"""One simulated server: the product's parts, wired as `server.wiring` wires them, over simulated ports."""

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from nstance import points
from nstance.authority.keyset import Authority
from nstance.authority.open import Places, open_authority
from nstance.authority.operators import Operators
from nstance.config import storage_keys
from nstance.model.ids import InstanceId
from nstance.objects import errors, journal, lease, memory, slots
from nstance.objects.port import ObjectStore
from nstance.providers.port import Scope
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.store_latency import TimedStore
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.context import Advertised, TermContext
from nstance.server.leader.history import History
from nstance.server.leader.leader import Leader, LeaderParts, Port
from nstance.server.state.follower import Follower
from nstance.sim.agents import AgentPort
from nstance.sim.desired_groups import CLUSTER, SHARD
from nstance.sim.loop import Machine
from nstance.sim.operator_port import OperatorPort
from nstance.sim.rng import SeededRng
from nstance.sim.watched_ports import WatchedProvider
from nstance.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from nstance.sim.world import World

ADVERTISED = Advertised(registration="10.255.0.1:8992", agent="10.255.0.1:8994", operator="", hosts=frozenset())


class Unkept:
    """A `server.leader.history.Keeper` that keeps nothing."""

    def retain_instances(self, instances: Collection[InstanceId]) -> None:
        return

    def remove_instance(self, id: InstanceId) -> None:
        return

    def put_events(self, *told: object, **more: object) -> None:
        return


class _Then:
    """The clock of the moment at which the cluster's CA was made."""

    def monotonic(self) -> float:
        return 0.0

    def boot(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1.7e9 - 86_400.0

    def steady(self) -> float:
        return self.wall()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits while a CA is made in memory")


@functools.cache
def authority() -> Authority:
    """One CA for all runs: making it is not what is tested here."""
    clock = _Then()
    opening = open_authority(
        memory.MemoryStore(clock),
        Places("cluster/"),
        keyring=None,
        cluster=CLUSTER,
        clock=clock,
        rng=SeededRng("authority"),
        create=True,
        insecure_dev=True,
    )
    with asyncio.Runner() as runner:
        return runner.run(opening)


@functools.cache
def metrics(name: str) -> Metrics:
    """Nobody reads them here, and making them takes longer than a second of virtual time."""
    return Metrics()


class SimServer:
    active_config: ActiveConfig
    leader: Leader
    elector: Elector | None = None
    rng: SeededRng
    store: ObjectStore
    operators: Operators

    def __init__(self, world: "World", machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.door: AgentPort | None = None
        self.office: OperatorPort | None = None
        self._context = contextvars.Context()

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def lead(self) -> TermContext | None:
        """What it leads with, if it does."""
        return self.leader.lead if self.machine.alive and self.elector is not None else None

    @property
    def leading(self) -> bool:
        term = self.elector.term if self.elector is not None else None
        return self.machine.alive and term is not None and term.leading()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of its process."""
        return self.machine.loop.create_task(work, context=self._context.copy())

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Happens in its process: not if that is dead by then."""
        self.machine.loop.call_later(seconds, act, *args, context=self._context.copy())

    def boot(self) -> None:
        if self.world.servers_down:
            self.world.later(1.0, self.boot)
        elif not self.machine.alive:
            self.elector = None
            self.machine.run(self._program)

    async def _program(self) -> None:
        try:
            await self._main()
        except Exception as problem:
            self.world.violation(f"{self.name} ended with {problem!r}")
            raise

    async def _main(self) -> None:
        world, machine = self.world, self.machine
        points.hook.set(self._at_point)
        self._context = contextvars.copy_context()
        rng = self.rng = SeededRng(f"{self.name}-{machine.life}-{world.random.getrandbits(32)}")
        store = self.store = world.storage.view(world.storage_faults.faults(machine))
        timed = TimedStore(store, machine)
        configuration = await self._configuration(store)
        books = journal.Journal(
            timed,
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=machine,
            timeout=lambda: max(journal.TIMEOUT, timed.latency().timeout),
        )
        follower = Follower(books, machine, leading=lambda: elector.term is not None)
        self.operators = Operators(store, prefix="cluster/", cluster=CLUSTER, clock=machine, rng=rng)
        provider = WatchedProvider(
            Scope(cluster=CLUSTER, shard=SHARD), world.cloud_clock, cloud=world.cloud, server=self.name
        )
        measured = metrics(self.name)
        active_config = self.active_config = ActiveConfig(configuration, store=store, shard=SHARD, clock=machine)
        self.leader = Leader(
            LeaderParts(
                name=SHARD,
                cluster=CLUSTER,
                store=store,
                active_config=active_config,
                books=books,
                follower=follower,
                provider=provider,
                issuer=Issuer(authority(), shard=SHARD, clock=machine, rng=rng),
                secret_store=world.secrets,
                advertised=ADVERTISED,
                ports=self._ports,
                held=lambda: elector.held,
                wrote=lambda tail: elector.wrote(tail),
                watch=lambda term, length: contextlib.nullcontext(),
                history=History(Unkept(), measured, machine),
                metrics=measured,
                clock=machine,
                rng=rng,
            )
        )
        me = lease.Holder(
            server=self.name,
            incarnation=f"{self.name}.{machine.life}",
            addresses=(self.name,),
            fingerprint=f"key-{self.name}-{machine.life}",
        )

        async def floor() -> int:
            await follower.read()
            return follower.epoch

        elector = self.elector = Elector(
            ElectionContext(
                store=timed,
                key=storage_keys.lease(SHARD),
                me=me,
                timings=configurations.timings(configuration.settings),
                clock=machine,
                rng=rng,
                latency=timed.latency,
                anchor=machine.anchor,
            ),
            dialer=world.network.dialer(machine, me.fingerprint),
            lead=self._lead(self.leader.run),
            tail=lambda: follower.tail,
            floor=floor,
            heard_tail=follower.hint,
        )
        world.network.listen(machine, me.fingerprint, elector.accept)
        following = asyncio.create_task(follower.run())
        try:
            await elector.run()
        finally:
            following.cancel()
        world.ended(self)

    def _lead(self, run: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def lead(term: Any) -> None:
            self.world.log("term", self.name, term.epoch)
            self.world.count("terms")
            self.world.on_moment("term")
            try:
                await run(term)
            except (journal.DeposedError, errors.StorageError, TimeoutError) as problem:
                self.world.count(f"term ended by {type(problem).__name__}")
                raise
            except slots.DamagedError as problem:
                self.world.violation(f"{self.name} found the journal damaged: {problem}")
                raise
            except Exception as problem:
                self.world.violation(f"{self.name} failed while leading: {problem!r}")
                raise
            finally:
                if not self.machine.loop.ending:
                    self.world.log("term over", self.name, term.epoch)

        return lead

    async def _configuration(self, store: Any) -> Configuration:
        while True:
            try:
                return await configurations.read(store, SHARD)
            except (errors.StorageError, TimeoutError, configurations.NoConfigurationError):
                await self.machine.sleep(0.5)

    def _ports(self, lead: TermContext) -> list[Port]:
        lead.shard.observers.append(lambda committed: self.world.committed(self, committed))
        commit = lead.shard._writer.commit

        def watched(entry: slots.Entry) -> asyncio.Future[None]:
            self.world.auditor.decided(entry, door)
            return commit(entry)

        lead.shard._writer.commit = watched  # type: ignore[method-assign]
        door, office = self.door, self.office = AgentPort(self, lead), OperatorPort(self, lead)
        return [office, door]

    async def _at_point(self, point: points.Point) -> None:
        if self.world.visit(self, point):
            await asyncio.sleep(0)  # it is dead or stopped now: this comes back later, or never
