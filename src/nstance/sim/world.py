"""A whole shard in virtual time: servers, storage, a cloud, agents, an operator, and somebody who breaks things.

A world is stepped (`advance`), so that a schedule, a test or a shrinking story can drive it alike. One seed is one world:
everything that happens is hashed, and running the seed again must give the same hash.
"""

import asyncio
import contextvars
import gc
import hashlib
import logging
import random
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from nstance import points
from nstance.config import storage_keys
from nstance.core import rollout
from nstance.model.ids import InstanceId, ProviderId
from nstance.objects import compaction, journal, slots
from nstance.providers import port
from nstance.secretstore import memory as secrets
from nstance.server.state.shard import Committed
from nstance.sim import operator
from nstance.sim.agents import AgentPort, SimAgent
from nstance.sim.auditor import Auditor
from nstance.sim.desired_groups import SHARD, DesiredGroups
from nstance.sim.fault_model import ProviderFaults, StorageFaults
from nstance.sim.loop import Machine, VirtualLoop
from nstance.sim.network import Network
from nstance.sim.server import SimServer, authority
from nstance.sim.setup import Setup
from nstance.sim.watched_ports import WatchedCloud, WatchedStore

T = TypeVar("T")

CONFIG = storage_keys.config(SHARD)
REMEMBER = 4.0  # seconds of storage's past, for stale listings
SELDOM = frozenset(  # struck ten times as often: a swarm of 2,000 must meet them
    {
        points.Point.BEFORE_COMPACTION,
        points.Point.BEFORE_SNAPSHOT,
        points.Point.AFTER_SNAPSHOT,
        points.Point.BEFORE_RELEASE,
    }
)
NOTHING_NEW = 4.0  # after this long without trouble the shard must still be at rest


class World:
    def __init__(self, seed: int, setup: Setup, *, tell: Callable[[str], None] | None = None) -> None:
        authority()
        self.seed = seed
        self.setup = setup
        self.desired_groups: DesiredGroups = setup.desired_groups
        self.random = random.Random(f"world-{seed}")
        self.loop = VirtualLoop(seed)
        self.loop.set_exception_handler(lambda loop, context: self._unhandled(context))
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.quiet = False  # the faults have stopped
        self.planting = False
        self.crashes: list[tuple[points.Point, int, str]] = []  # (point, its n-th visit, "crash" or "pause"): scripted
        self.visits: Counter[points.Point] = Counter()
        self._trace = hashlib.sha256()
        self._tell = tell
        self._agents: dict[ProviderId, SimAgent] = {}
        self._made = 0
        self._spoiled = False
        self.bad_generations: set[int] = set()  # of templates whose instances never become ready
        self.secrets = secrets.MemoryStore()
        self.agents_shut_out_until = 0.0
        self.servers_down = False  # somebody has stopped them all: none boots
        self.on_moment: Callable[[str], None] = lambda moment: None
        self.began = 0.0  # the shard's time when the world began
        self._doors: dict[str, AgentPort] = {}
        r, now = self.random, self.loop.time
        self.auditor = Auditor(self)
        self.storage_faults = StorageFaults(r, setup, now, self.count)
        self.provider_faults = ProviderFaults(r, setup, now, self.count)
        self.cloud_clock = Machine("cloud", self.loop)
        remember = REMEMBER if setup.stale_lists else 0.0
        self.storage = WatchedStore(Machine("store", self.loop), remember=remember)
        self.storage.watcher = self.auditor
        self.cloud = WatchedCloud(
            self.cloud_clock, behavior=self.provider_faults, on_boot=self._booted, on_end=self._ended
        )
        self.cloud.watcher = self.auditor
        self.cloud.is_full = self.provider_faults.is_full
        self.network = Network()
        self.servers = [
            SimServer(
                self,
                Machine(
                    f"s{number}",
                    self.loop,
                    rate=1.0 + r.uniform(-setup.drift, setup.drift),
                    wall=1.7e9 + r.uniform(-setup.apart, setup.apart),
                ),
            )
            for number in range(setup.servers)
        ]

    # ---- time

    @property
    def now(self) -> float:
        return self.loop.time()

    def steady(self, since: float) -> float:
        """Seconds since a time in a record, by the fastest clock of the world."""
        return self.began + self.now * (1 + 2 * self.setup.drift) - since

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def do(self, act: Callable[..., T], *args: Any) -> T:
        """Something that needs the loop to run, at once."""

        async def now() -> T:
            return act(*args)

        return self.run(now())

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """The world does it, not the machine that happens to run: that may be dead by then."""
        self.loop.call_later(seconds, act, *args, context=contextvars.Context())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=contextvars.Context())

    # ---- what is known of it

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def log(self, *what: object) -> None:
        self._trace.update(repr((round(self.now, 6), *what)).encode())
        if self._tell is not None:
            self._tell(f"{self.now:9.3f}  {'  '.join(map(str, what))}")

    def violation(self, what: str) -> None:
        if self.loop.ending:
            return
        self.log("VIOLATION", what)
        self.violations.append(f"at {self.now:.3f} s: {what}")

    def _unhandled(self, context: dict[str, Any]) -> None:
        self.violation(f"nobody handled {context.get('exception') or context.get('message')!r}")

    def hash(self) -> str:
        return self._trace.hexdigest()

    def committed(self, server: SimServer, committed: Committed) -> None:
        self.auditor.told(committed.reasons)
        for reason in committed.reasons:
            self.count(f"decided {reason.code.value}")
            self.log(server.name, reason.code.value, reason.message)

    def leader(self) -> SimServer | None:
        return next((s for s in self.servers if s.leading), None)

    # ---- servers

    def restore_secrets(self) -> None:
        for name in self.desired_groups.groups:
            self.secrets._values[f"token-{name}"] = b"secret"

    def begin(self) -> None:
        self.restore_secrets()
        self.storage.tamper(CONFIG, self.desired_groups.text())
        for server in self.servers:
            self.later(self.random.uniform(0.0, 1.0), server.boot)
        if self.setup.operator:
            self.start(operator.operate(self))

    def kill(self, server: SimServer, back: float | None = None, *, power: bool = True) -> None:
        """`power`: its host lives on and tells others that the process is gone."""
        if not server.machine.alive:
            return
        self.log("kill", server.name)
        if not power:
            self.network.dark.add(server.name)
        server.machine.kill()
        self._gone(server)
        self.later(self.random.uniform(1.0, 5.0) if back is None else back, self._boot, server)

    def _boot(self, server: SimServer) -> None:
        self.network.dark.discard(server.name)
        server.boot()

    def ended(self, server: SimServer) -> None:
        """Its program came to an end by itself: somebody starts it again."""
        self.log("ended", server.name)
        server.machine.kill()
        self._gone(server)
        self.later(self.random.uniform(0.5, 3.0), server.boot)

    def _gone(self, server: SimServer) -> None:
        self.network.killed(server.machine)
        door = self._doors.pop(server.name, None)
        if door is not None:
            door.reset()

    def stop(self, server: SimServer, seconds: float, *, freeze: bool = False) -> None:
        machine = server.machine
        if machine.stopped or not machine.alive:
            return
        self.log("freeze" if freeze else "stop", server.name, round(seconds, 3))
        machine.stop()
        life = machine.life

        def resume() -> None:
            if machine.life == life:
                machine.resume(frozen_for=seconds if freeze else 0.0)

        self.later(seconds, resume)

    def resign(self, server: SimServer) -> None:
        elector = server.elector
        if elector is not None and server.machine.alive and not server.machine.stopped and elector.term is not None:
            self.count("resigned")
            server.later(0.0, elector.stop)

    def visit(self, server: SimServer, point: points.Point) -> bool:
        """A server has reached a point; says whether something happens to it there."""
        self.visits[point] += 1
        for wanted, number, fate in self.crashes:
            if wanted is point and number == self.visits[point]:
                return self._strike(server, point, fate)
        if self.quiet:
            return False
        draw = self.random.random() / (10.0 if point in SELDOM else 1.0)
        if draw < self.setup.crash:
            return self._strike(server, point, "crash")
        if draw < self.setup.crash + self.setup.pause:
            return self._strike(server, point, "pause")
        return False

    def _strike(self, server: SimServer, point: points.Point, fate: str) -> bool:
        self.count(f"{fate} at {point.value}")
        self.log(fate, server.name, point.value)
        if fate == "crash":
            self.kill(server)
        else:
            self.stop(server, 5.0 if self.crashes else self.random.uniform(0.2, 6.0))
        return True

    def tell(self, desired_groups: DesiredGroups) -> None:
        """A new configuration; the leader hears of it at once, as it would from the admin tool."""
        self.desired_groups = desired_groups
        self.put_config(desired_groups.text())

    def config_version(self) -> str:
        return self.storage._objects.entries[CONFIG].version

    def put_config(self, body: bytes) -> None:
        self.storage.tamper(CONFIG, body)
        for server in self.servers:
            if server.leading:
                server.spawn(self._refresh(server))

    async def _refresh(self, server: SimServer) -> None:
        self.auditor.note_desired_groups()
        await server.active_config.refresh()

    # ---- agents

    def opened(self, door: AgentPort) -> None:
        self._doors[door.server.name] = door

    def closed(self, door: AgentPort) -> None:
        if self._doors.get(door.server.name) is door:
            del self._doors[door.server.name]

    def find_door(self) -> AgentPort | None:
        doors = list(self._doors.values())
        return self.random.choice(doors) if doors else None

    def agents(self) -> list[SimAgent]:
        return list(self._agents.values())

    def agents_of(self, id: InstanceId) -> list[SimAgent]:
        """Of all VMs that carry or carried this ID."""
        return [a for a in self._agents.values() if a.id == id]

    def spoil_boots(self, spoiled: bool) -> None:
        """Whether VMs that boot from now on have an agent that never speaks."""
        self._spoiled = spoiled

    def _booted(self, request: port.CreateRequest, vm: port.Vm) -> None:
        if not request.nonce or vm.provider_id in self._agents:
            return
        self._made += 1
        mute = self._spoiled or (not self.quiet and self.random.random() < self.setup.bad_boots)
        broken = not self.quiet and (
            self.random.random() < self.setup.broken_boots or request.args.get("generation") in self.bad_generations
        )
        self._agents[vm.provider_id] = SimAgent(self, request, vm, number=self._made, mute=mute, broken=broken)
        if mute or broken:
            self.count("bad boot" if mute else "broken boot")

    def _ended(self, request: port.CreateRequest, vm: port.Vm) -> None:
        self.log("vm over", request.id)
        self.auditor.ended(request.id)
        self.on_moment("end of a vm")
        agent = self._agents.get(vm.provider_id)
        if agent is not None:
            agent.die(reset=self.random.random() < 0.5)

    # ---- the end of the faults

    def calm(self) -> None:
        """Everything works from now on."""
        self.quiet = True
        self.on_moment = lambda moment: None
        self.log("calm")
        self.storage_faults.quiet = self.provider_faults.quiet = True
        self.storage_faults.cut.clear()
        self.storage_faults.brown_until = self.storage_faults.slow = 0.0
        fault_model = self.provider_faults
        fault_model.brown_until = fault_model.throttled_until = fault_model.lying_until = 0.0
        fault_model.full.clear()
        self.network.cut.clear()
        self.network.rejected.clear()
        self.agents_shut_out_until = 0.0
        self.put_config(self.desired_groups.text())
        self.restore_secrets()
        for agent in self.agents():
            agent.fail_checks(False)
            agent.heal()

    def settle(self, within: float) -> None:
        """I4: wait for rest, see that it lasts, and compare what a new reader of the journal would find."""
        until = self.now + within
        while (unrest := self.auditor.unrest()) and self.now < until:
            self._resume_rollouts()
            self.advance(2.0)
        if unrest:
            self.violation(f"I4: no rest {within:.0f} s after the faults stopped: {unrest}")
            return
        self.log("rest")
        calls = self.counts["calls create"], self.counts["calls delete"]
        self.advance(NOTHING_NEW)
        if (self.counts["calls create"], self.counts["calls delete"]) != calls:
            self.violation("I4: VMs are still made or deleted although everything was at rest")
        self.run(self._reread())
        self.auditor.finish()

    def _resume_rollouts(self) -> None:
        """Somebody sees to what waits for people."""
        leader = self.leader()
        if leader is None or leader.office is None:
            return
        for key, record in self.auditor.rollouts.groups.items():
            if record.current is not None and record.current.outcome in rollout.HELD:
                leader.spawn(leader.office.resume(key))

    async def _reread(self) -> None:
        books = journal.Journal(
            self.storage.view(None),
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=self.cloud_clock,
        )
        try:
            book, alarms = await books.load()
        except slots.DamagedError as damage:
            self.violation(f"I6: the journal cannot be read anew: {damage}")
            return
        if alarms or book.instances != self.auditor.fold or book.groups != self.auditor.rollouts.groups:
            self.violation(f"I6: reading the journal anew gives something else {alarms}")


@contextmanager
def world(seed: int, setup: Setup, *, tell: Callable[[str], None] | None = None) -> Iterator[World]:
    """A world that is disposed of afterwards, dead processes included."""
    made = World(seed, setup, tell=tell)
    asyncio.set_event_loop(made.loop)
    log = logging.getLogger("nstance")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    kept = journal.SNAPSHOT_SLOTS, compaction.KEEP_SECONDS
    if setup.snapshots:
        journal.SNAPSHOT_SLOTS, compaction.KEEP_SECONDS = 8, 24.0
    if setup.audited:
        gc.disable()  # a collection at another moment must not change what happens
    try:
        yield made
    finally:
        journal.SNAPSHOT_SLOTS, compaction.KEEP_SECONDS = kept
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is dropped here was never to be awaited
            made.loop.finish()
        asyncio.set_event_loop(None)
        log.setLevel(level)
        gc.enable()
