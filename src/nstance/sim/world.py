"""A whole shard in virtual time: servers, storage, a cloud, agents and an operator.

A world is stepped with `advance`, by the nemesis, a test or a state machine. One seed is one world: everything that happens
is hashed, and a second run of the seed gives the same hash.
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
from nstance.objects import journal, slots
from nstance.providers import port
from nstance.secretstore import memory as secrets
from nstance.server.state.commits import Committed
from nstance.sim import operator
from nstance.sim.agent import SimAgent
from nstance.sim.agent_port import AgentPort
from nstance.sim.audit.auditor import Auditor
from nstance.sim.audit.quiescence import find_unrest
from nstance.sim.desired_groups import SHARD, DesiredGroups
from nstance.sim.fault_model import ProviderFaults, StorageFaults
from nstance.sim.loop import Machine, VirtualLoop
from nstance.sim.network import Network
from nstance.sim.server import SimServer, authority
from nstance.sim.setup import Setup
from nstance.sim.watched_ports import WatchedCloud, WatchedStore

T = TypeVar("T")

CONFIG = storage_keys.config(SHARD)
STALE_SECONDS = 4.0  # of storage's past that a stale listing may show
# Struck ten times as often: 2,000 seeds must strike all of them.
_POINT = points.Point
RARE_POINTS = {_POINT.BEFORE_COMPACTION, _POINT.BEFORE_SNAPSHOT, _POINT.AFTER_SNAPSHOT, _POINT.BEFORE_RELEASE}
REST_SECONDS = 4.0  # for which a shard at rest must stay at rest


class World:
    def __init__(self, seed: int, setup: Setup, *, on_trace: Callable[[str], None] | None = None) -> None:
        authority()
        self.seed = seed
        self.setup = setup
        self.desired_groups: DesiredGroups = setup.desired_groups
        self.random = random.Random(f"world-{seed}")
        self.loop = VirtualLoop(seed)
        self.loop.set_exception_handler(lambda loop, context: self._on_unhandled(context))
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.faults_stopped = False
        self.planting = False  # the nemesis is creating a VM
        self.crashes: list[tuple[points.Point, int, str]] = []  # scripted: (point, its n-th visit, "crash" or "pause")
        self.visits: Counter[points.Point] = Counter()
        self._trace = hashlib.sha256()
        self._on_trace = on_trace
        self._agents: dict[ProviderId, SimAgent] = {}
        self._agents_made = 0
        self.spoils_boots = False  # agents of VMs that boot from now on never register
        self.bad_generations: set[int] = set()  # of templates whose instances never become ready
        self.secrets = secrets.MemoryStore()
        self.agents_shut_out_until = 0.0
        self.clones_until = 0.0  # until then second agents with one identity may be alive
        self.servers_down = False  # all are stopped and must not boot: a backup is being restored
        self.on_moment: Callable[[str], None] = lambda moment: None
        self.began = 0.0  # the shard's time at the world's second 0
        self._agent_ports: dict[str, AgentPort] = {}
        r, now = self.random, self.loop.time
        self.auditor = Auditor(self)
        self.storage_faults = StorageFaults(r, setup, now, self.count)
        self.provider_faults = ProviderFaults(r, setup, now, self.count)
        self.cloud_clock = Machine("cloud", self.loop)
        remember = STALE_SECONDS if setup.stale_lists else 0.0
        self.storage = WatchedStore(Machine("store", self.loop), remember=remember)
        self.storage.watcher = self.auditor
        self.cloud = WatchedCloud(
            self.cloud_clock, behavior=self.provider_faults, on_boot=self._on_boot, on_end=self._on_end
        )
        self.cloud.watcher = self.auditor
        self.cloud.is_full = self.provider_faults.is_full
        self.cloud.find_exhausted = lambda offer: None if self.planting else self.provider_faults.find_exhausted(offer)
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
        """Seconds since a time in a record, by the fastest clock of all servers."""
        return self.began + self.now * (1 + 2 * self.setup.drift) - since

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def do(self, act: Callable[..., T], *args: Any) -> T:
        """Call something that needs a running loop."""

        async def call() -> T:
            return act(*args)

        return self.run(call())

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """The world calls it, not the current machine, which may be dead by then."""
        self.loop.call_later(seconds, act, *args, context=contextvars.Context())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=contextvars.Context())

    # ---- the trace

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def log(self, *parts: object) -> None:
        self._trace.update(repr((round(self.now, 6), *parts)).encode())
        if self._on_trace is not None:
            self._on_trace(f"{self.now:9.3f}  {'  '.join(map(str, parts))}")

    def violation(self, text: str) -> None:
        if self.loop.ending:
            return
        self.log("VIOLATION", text)
        self.violations.append(f"at {self.now:.3f} s: {text}")

    def _on_unhandled(self, context: dict[str, Any]) -> None:
        self.violation(f"unhandled error: {context.get('exception') or context.get('message')!r}")

    def hash(self) -> str:
        return self._trace.hexdigest()

    def committed(self, server: SimServer, committed: Committed) -> None:
        self.auditor.on_reasons(committed.reasons)
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
        """`power`: its host keeps power, and resets the connections of the dead process."""
        if not server.machine.alive:
            return
        self.log("kill", server.name)
        if not power:
            self.network.dark.add(server.name)
        server.machine.kill()
        self._close_ports(server)
        self.later(self.random.uniform(1.0, 5.0) if back is None else back, self._boot, server)

    def _boot(self, server: SimServer) -> None:
        self.network.dark.discard(server.name)
        server.boot()

    def ended(self, server: SimServer) -> None:
        """Its program ended by itself: it is started again."""
        self.log("ended", server.name)
        server.machine.kill()
        self._close_ports(server)
        self.later(self.random.uniform(0.5, 3.0), server.boot)

    def _close_ports(self, server: SimServer) -> None:
        self.network.on_kill(server.machine)
        port = self._agent_ports.pop(server.name, None)
        if port is not None:
            port.reset()

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
        machine, elector = server.machine, server.elector
        if elector is not None and machine.alive and not machine.stopped and elector.term is not None:
            self.count("resigned")
            server.later(0.0, elector.stop)

    def visit(self, server: SimServer, point: points.Point) -> bool:
        """A server has reached a named point. Returns whether it is killed or paused there."""
        self.visits[point] += 1
        for target, number, fate in self.crashes:
            if target is point and number == self.visits[point]:
                return self._strike(server, point, fate)
        if self.faults_stopped:
            return False
        draw = self.random.random() / (10.0 if point in RARE_POINTS else 1.0)
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

    def configure(self, desired_groups: DesiredGroups) -> None:
        """Write a configuration; the leader reads it at once, as after a change by the admin tool."""
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
        self.auditor.desired.note()
        await server.active_config.refresh()

    # ---- agents

    def on_port_open(self, port: AgentPort) -> None:
        self._agent_ports[port.server.name] = port

    def on_port_close(self, port: AgentPort) -> None:
        if self._agent_ports.get(port.server.name) is port:
            del self._agent_ports[port.server.name]

    def find_agent_port(self) -> AgentPort | None:
        ports = list(self._agent_ports.values())
        return self.random.choice(ports) if ports else None

    def agents(self) -> list[SimAgent]:
        return list(self._agents.values())

    def agents_of(self, id: InstanceId) -> list[SimAgent]:
        """Of all VMs that carry or carried this ID."""
        return [a for a in self._agents.values() if a.id == id]

    def _on_boot(self, request: port.CreateRequest, vm: port.Vm) -> None:
        if not request.nonce or vm.provider_id in self._agents:
            return
        self._agents_made += 1
        mute = self.spoils_boots or (not self.faults_stopped and self.random.random() < self.setup.bad_boots)
        broken = not self.faults_stopped and (
            self.random.random() < self.setup.broken_boots or request.args.get("generation") in self.bad_generations
        )
        self._agents[vm.provider_id] = SimAgent(self, request, vm, number=self._agents_made, mute=mute, broken=broken)
        if mute or broken:
            self.count("bad boot" if mute else "broken boot")

    def _on_end(self, request: port.CreateRequest, vm: port.Vm) -> None:
        self.log("vm ended", request.id)
        self.auditor.on_vm_end(request.id)
        self.on_moment("end of a vm")
        agent = self._agents.get(vm.provider_id)
        if agent is not None:
            agent.die(reset=self.random.random() < 0.5)

    # ---- the end of the faults

    def stop_faults(self) -> None:
        """Repair everything; from now on everything works."""
        self.faults_stopped = True
        self.on_moment = lambda moment: None
        self.log("faults stopped")
        storage, provider = self.storage_faults, self.provider_faults
        storage.stopped = provider.stopped = True
        storage.cut.clear()
        storage.brown_until = storage.slow = 0.0
        provider.brown_until = provider.throttled_until = provider.partial_until = 0.0
        provider.full.clear()
        provider.exhausted.clear()
        self.network.cut.clear()
        self.network.rejected.clear()
        self.agents_shut_out_until = 0.0
        self.configure(self.desired_groups.without_expiry())
        self.restore_secrets()
        for agent in self.agents():
            agent.fail_checks(False)
            agent.heal()

    def settle(self, within: float) -> None:
        """Wait for rest, check that it lasts (I4), and that the journal reads the same (I6)."""
        until = self.now + within
        while (unrest := find_unrest(self)) and self.now < until:
            self._resume_rollouts()
            self.advance(2.0)
        if unrest:
            self.violation(f"I4: no rest {within:.0f} s after the faults stopped: {unrest}")
            return
        self.log("rest")
        calls = self.counts["calls create"], self.counts["calls delete"]
        self.advance(REST_SECONDS)
        if (self.counts["calls create"], self.counts["calls delete"]) != calls:
            self.violation("I4: VMs are created or deleted although everything was at rest")
        self.run(self._reread())
        self.auditor.finish()

    def _resume_rollouts(self) -> None:
        """Resume rollouts that wait for a person."""
        leader = self.leader()
        if leader is None or leader.operator_port is None:
            return
        for key, record in self.auditor.rollouts.groups.items():
            if record.current is not None and record.current.outcome in rollout.HELD:
                leader.spawn(leader.operator_port.resume(key))

    async def _reread(self) -> None:
        reader = journal.Journal(
            self.storage.view(None),
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=self.cloud_clock,
        )
        try:
            state, alarms = await reader.load()
        except slots.DamagedError as damage:
            self.violation(f"I6: failed to read the journal again: {damage}")
            return
        if alarms or state.instances != self.auditor.records or state.groups != self.auditor.rollouts.groups:
            self.violation(f"I6: reading the journal again gives other records {alarms}")


@contextmanager
def world(seed: int, setup: Setup, *, on_trace: Callable[[str], None] | None = None) -> Iterator[World]:
    """A world whose loop and processes are disposed of afterwards."""
    made = World(seed, setup, on_trace=on_trace)
    asyncio.set_event_loop(made.loop)
    log = logging.getLogger("nstance")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    if setup.audited:
        gc.disable()  # a collection at another moment must not change what happens
    try:
        yield made
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # pending coroutines are dropped here
            made.loop.finish()
        asyncio.set_event_loop(None)
        log.setLevel(level)
        gc.enable()
