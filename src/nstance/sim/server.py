"""One simulated server: the product's `Server` over simulated ports."""

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from nstance import points
from nstance.authority.keyset import Authority
from nstance.authority.open import Places, open_authority, open_vault
from nstance.authority.operators import Operators
from nstance.model.ids import InstanceId
from nstance.objects import errors, journal, lease, memory, slots
from nstance.providers.port import Scope
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.advertised import Advertised
from nstance.server.config.configuration import Configuration
from nstance.server.election.elector import Elector
from nstance.server.election.term import Term
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.context import TermContext
from nstance.server.leader.environment import Environment, Observers, Port
from nstance.server.server import Server
from nstance.sim.agent_port import AgentPort
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

    def put_events(self, *events: object, **fields: object) -> None:
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
    rng = SeededRng("authority")
    vault = open_vault(memory.MemoryStore(clock), keyring=None, cluster=CLUSTER, rng=rng, insecure_dev=True)
    opening = open_authority(vault, Places("cluster/"), clock=clock, create=True)
    with asyncio.Runner() as runner:
        return runner.run(opening)


@functools.cache
def metrics(name: str) -> Metrics:
    """Nobody reads them here, and making them takes longer than a second of virtual time."""
    return Metrics()


OFTEN = journal.Limits(snapshot_slots=8, keep_seconds=24.0)  # snapshots, and compaction


class SimServer:
    server: Server
    env: Environment
    operators: Operators

    def __init__(self, world: "World", machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.elector: Elector | None = None  # while its process runs
        self.agent_port: AgentPort | None = None
        self.operator_port: OperatorPort | None = None
        self._context = contextvars.Context()

    @property
    def active_config(self) -> ActiveConfig:
        return self.server.active_config

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def lead(self) -> TermContext | None:
        """What it leads with, if it does."""
        return self.server.leader.context if self.machine.alive and self.elector is not None else None

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
        rng = SeededRng(f"{self.name}-{machine.life}-{world.random.getrandbits(32)}")
        store = world.storage.view(world.storage_faults.faults(machine))
        configuration = await self._configuration(store)
        self.operators = Operators(store, prefix="cluster/", cluster=CLUSTER, clock=machine, rng=rng)
        me = lease.Holder(
            server=self.name,
            incarnation=f"{self.name}.{machine.life}",
            addresses=(self.name,),
            fingerprint=f"key-{self.name}-{machine.life}",
        )
        self.env = Environment(
            cluster=CLUSTER,
            shard=SHARD,
            clock=machine,
            rng=rng,
            store=store,
            secret_store=world.secrets,
            provider=WatchedProvider(
                Scope(cluster=CLUSTER, shard=SHARD), world.cloud_clock, cloud=world.cloud, server=self.name
            ),
            issuer=Issuer(authority(), shard=SHARD, clock=machine, rng=rng),
            dialer=world.network.dialer(machine, me.fingerprint),
            advertised=ADVERTISED,
            ports=self._ports,
            history=Unkept(),
            metrics=metrics(self.name),
            journal_limits=OFTEN if world.setup.snapshots else journal.LIMITS,
            observers=Observers(
                term=self._watch_term,
                on_commit=self._on_commit,
                on_committed=lambda committed: world.committed(self, committed),
            ),
        )
        server = self.server = Server(self.env, me, configuration)
        self.elector = server.elector
        world.network.listen(machine, me.fingerprint, server.elector.accept)
        # Not `server.run()`: its wait for the end of the follower would be one more step of each schedule, and the seeds
        # that kill mutants would not be theirs any more.
        following = asyncio.create_task(server.follower.run(leading=lambda: server.elector.has_term))
        try:
            await server.elector.run(server.leader.run)
        finally:
            following.cancel()
        world.ended(self)

    @contextlib.contextmanager
    def _watch_term(self, term: Term) -> Iterator[None]:
        self.world.log("term", self.name, term.epoch)
        self.world.count("terms")
        self.world.on_moment("term")
        try:
            yield
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

    async def _configuration(self, store: Any) -> Configuration:
        while True:
            try:
                return await configurations.read(store, SHARD)
            except (errors.StorageError, TimeoutError, configurations.NoConfigurationError):
                await self.machine.sleep(0.5)

    def _on_commit(self, entry: slots.Entry) -> None:
        assert self.agent_port is not None
        self.world.auditor.decided(entry, self.agent_port)

    def _ports(self, context: TermContext) -> list[Port]:
        self.agent_port, self.operator_port = AgentPort(self, context), OperatorPort(self, context)
        return [self.operator_port, self.agent_port]

    async def _at_point(self, point: points.Point) -> None:
        if self.world.visit(self, point):
            await asyncio.sleep(0)  # it is dead or stopped now: this comes back later, or never
