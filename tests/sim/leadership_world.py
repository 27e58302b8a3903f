"""Two or three servers that run the product's election and journal over a faulty store, in virtual time.

The work is the smallest that can go wrong: each entry takes the next number of a counter that lives in the journal, and is
"acted upon" afterwards. The audit finds lost and duplicate entries, two actors, and epochs that fall.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from nstance import points
from nstance.core.election import Timings
from nstance.model.ids import GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.objects import errors, journal, journal_writer, memory, slots
from nstance.objects.lease import Holder
from nstance.objects.port import Key
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.store_latency import TimedStore
from nstance.server.election.term import Term
from nstance.sim.loop import Machine, VirtualLoop
from nstance.sim.network import Network
from nstance.sim.rng import SeededRng


@dataclass
class Setup:
    servers: int = 2
    seconds: float = 90.0
    freezes: bool = False
    drift: float = 0.001
    crash_points: float = 0.01
    faults: bool = True
    stale: float = 0.0
    latency: float = 1.0  # of storage, as a multiple of a cloud's
    slow: float = 0.0  # seconds that each request to storage takes, from the beginning
    slowness: bool = False  # storage becomes slow and fast again
    cold: bool = False  # standbys do not read along
    timings: Timings = field(default_factory=Timings)
    limits: journal.Limits = journal.LIMITS


class World:
    def __init__(self, seed: int, setup: Setup) -> None:
        self.setup = setup
        self.random = random.Random(seed)
        self.loop = VirtualLoop(seed)
        self.machines: list[Machine] = []
        self.electors: dict[str, Elector] = {}
        self.network = Network()
        self.storage = memory.MemoryStore(Machine("store", self.loop), remember=5.0)
        self.cut_storage: set[str] = set()
        self.brown_until = 0.0
        self.slow = setup.slow  # seconds that each request to storage takes longer
        self.trace = hashlib.sha256()
        self.violations: list[str] = []
        self.acked: dict[str, int] = {}
        self.acting: dict[str, Term] = {}
        self.counts: dict[str, int] = {}
        self.failovers: list[float] = []
        self.down_at: float | None = None
        self.quiet = False

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def log(self, *what: object) -> None:
        self.trace.update(repr((round(self.loop.time(), 6), *what)).encode())

    def faults(self, machine: Machine) -> memory.Faults:
        r = self.random

        async def fate(verb: memory.Verb, key: str) -> memory.Fate:
            self.count(str(verb))
            latency = r.lognormvariate(-3.58, 0.7) + (r.uniform(0.5, 2.5) if r.random() < 0.001 else 0.0)
            latency *= self.setup.latency
            brown = self.loop.time() < self.brown_until
            if brown:
                latency = latency * 8 + r.uniform(0, 0.6)
            latency += self.slow
            before, after = latency * 0.6, latency * 0.4
            if machine.name in self.cut_storage:
                return memory.Fate(before=5.0, error=errors.UnavailableError("cut off"))
            p = 0.2 if brown else (0.002 if self.setup.faults and not self.quiet else 0.0)
            draw = r.random()
            if draw < p:
                return memory.Fate(before=before, error=errors.UnavailableError("503"))
            if draw < 2 * p:
                return memory.Fate(before=before, after=after, lost=True)
            if draw < 3 * p:
                return memory.Fate(before=before, after=after, late=r.uniform(0.1, 8.0))
            stale = r.uniform(0, 3) if self.setup.stale and r.random() < self.setup.stale else 0.0
            return memory.Fate(before=before, after=after, stale=stale)

        return fate

    def later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        """The world does it, not the machine that happens to run: it may be dead by then."""
        self.loop.call_later(seconds, act, *args, context=contextvars.Context())

    # ---- a server

    def boot(self, machine: Machine) -> None:
        if not machine.alive:
            self.network.dark.discard(machine.name)
            machine.run(lambda: self.server(machine))

    async def server(self, machine: Machine) -> None:
        if self.setup.crash_points:
            points.hook.set(lambda point: self.at_point(machine, point))
        rng = SeededRng(f"{machine.name}-{machine.life}-{self.random.getrandbits(32)}")
        store = TimedStore(self.storage.view(self.faults(machine)), machine)
        books = journal.Journal(
            store,
            journal_prefix="journal/",
            snapshot_prefix="snapshot/",
            clock=machine,
            timeout=lambda: max(2.0, store.latency().timeout),
            limits=self.setup.limits,
        )
        me = Holder(
            server=machine.name,
            incarnation=f"{machine.name}.{machine.life}",
            addresses=(machine.name,),
            fingerprint=f"key-{machine.name}-{machine.life}",
        )
        book: journal.JournalState | None = None
        reading = asyncio.Lock()

        async def read_along() -> None:
            nonlocal book
            async with reading:
                if book is None:
                    book, _ = await books.load()
                else:
                    await books.follow(book)

        async def lead(term: Term) -> None:
            nonlocal book
            async with reading:
                mine, book = book, None
                if mine is None:
                    mine, _ = await books.load()
                writer = journal_writer.Writer(
                    books,
                    mine,
                    epoch=term.epoch,
                    guard=term.ready,
                    rng=rng,
                    on_append=lambda slot: elector.set_tail(slot.number),
                )
                lease = elector.held
                await writer.fence()
                assert lease is not None
                if mine.tail < lease.tail:
                    raise slots.DamagedError("the journal is shorter than the lease says")
            self.log("lead", machine.name, term.epoch)
            self.count("terms")
            if self.down_at is not None:
                self.failovers.append(self.loop.time() - self.down_at)
                self.down_at = None
            self.acting[machine.name] = term
            writing = asyncio.create_task(writer.run())
            try:
                await self.work(machine, term, writer, mine, writing)
            finally:
                self.acting.pop(machine.name, None)
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

        async def floor() -> int:
            loaded, _ = await books.load()
            return loaded.epoch

        elector = Elector(
            ElectionContext(
                store=store,
                key=Key("leader.json"),
                me=me,
                timings=self.setup.timings,
                clock=machine,
                rng=rng,
                latency=store.latency,
            ),
            dialer=self.network.dialer(machine, me.fingerprint),
            tail=lambda: book.tail if book is not None else 0,
            floor=floor,
        )
        self.electors[machine.name] = elector
        self.network.listen(machine, me.fingerprint, elector.accept)

        async def along() -> None:
            while True:
                await machine.sleep(rng.uniform(1.0, 5.0))
                if elector.term is None and not self.setup.cold:
                    with contextlib.suppress(errors.StorageError):
                        await read_along()

        tailing = asyncio.create_task(along())
        try:
            await elector.run(lead)
        finally:
            tailing.cancel()
        machine.kill()
        self.network.on_kill(machine)
        self.later(self.random.uniform(1, 5), self.boot, machine)

    async def work(
        self,
        machine: Machine,
        term: Term,
        writer: journal_writer.Writer,
        book: journal.JournalState,
        writing: asyncio.Task[None],
    ) -> None:
        number = 0
        while not term.closing.is_set():
            if writing.done():
                writing.result()
            await machine.sleep(self.random.uniform(0.05, 0.4))
            if not term.leading():
                continue
            number += 1
            name = InstanceId(f"{machine.name}-{machine.life}-{term.epoch}-{number}")
            record = Instance(
                id=name, tenant=TenantId("t"), group=GroupName("g"), state=State.PENDING, created=machine.steady()
            )
            if name in book.instances:
                self.violations.append(f"duplicate {name}")
            await writer.commit(slots.Entry(id=f"{term.epoch}-{number}", changes=(Put(record),)))
            self.acked[name] = term.epoch
            self.log("acked", name)
            if term.leading():
                self.acts(machine, term)
            if writer.is_snapshot_due():
                await writer.snapshot()
                self.count("snapshots")
        await writer.wait_durable()

    def acts(self, machine: Machine, term: Term) -> None:
        """A side effect starts. Nobody else may be able to start one."""
        self.count("acts")
        for name, other in self.acting.items():
            elsewhere = next(m for m in self.machines if m.name == name)
            if name != machine.name and elsewhere.alive and not elsewhere.stopped and other.leading():
                self.violations.append(f"two actors: {machine.name} in {term.epoch}, {name} in {other.epoch}")

    # ---- faults

    async def at_point(self, machine: Machine, point: points.Point) -> None:
        self.count("points")
        if self.quiet:
            return
        if self.random.random() < self.setup.crash_points:
            self.count(f"crash {point.value}")
            self.kill(machine)
            await asyncio.sleep(0)
        elif self.random.random() < self.setup.crash_points:
            self.stop(machine, self.random.uniform(0.2, 6.0))
            await asyncio.sleep(0)

    def kill(self, machine: Machine, back: float | None = None, *, power: bool = True) -> None:
        if not machine.alive:
            return
        self.count("kills" if power else "power cuts")
        self.log("kill", machine.name)
        self.acting.pop(machine.name, None)
        if not power:
            self.network.dark.add(machine.name)
        machine.kill()
        self.network.on_kill(machine)
        delay = self.random.uniform(1, 5) if back is None else back
        self.later(delay, self.boot, machine)

    def stop(self, machine: Machine, seconds: float) -> None:
        if machine.stopped or not machine.alive:
            return
        freeze = self.setup.freezes and self.random.random() < 0.3
        self.count("freezes" if freeze else "stops")
        self.log("stop", machine.name)
        machine.stop()
        life = machine.life
        self.later(seconds, lambda: machine.life == life and machine.resume(frozen_for=seconds if freeze else 0.0))

    async def nemesis(self, until: float) -> None:
        r = self.random
        while self.loop.time() < until:
            await asyncio.sleep(r.expovariate(1 / 2.5))
            leaders = [m for m in self.machines if m.name in self.acting]
            machine = r.choice(leaders) if leaders and r.random() < 0.7 else r.choice(self.machines)
            self.count("faults")
            match r.randrange(10 if self.setup.slowness else 9):
                case 0:
                    self.kill(machine, power=r.random() < 0.7)
                case 1 | 2:
                    self.stop(machine, r.uniform(0.3, 8))
                case 3:
                    self.cut_storage.add(machine.name)
                    self.later(r.uniform(0.5, 6), self.cut_storage.discard, machine.name)
                case 4:
                    self.brown_until = self.loop.time() + r.uniform(0.5, 4)
                case 5:
                    machine.jump(r.choice((-1, 1)) * r.uniform(1, 3600))
                case 6:
                    pair = frozenset(m.name for m in r.sample(self.machines, 2))
                    self.network.cut.add(pair)
                    self.later(r.uniform(0.5, 8), self.network.cut.discard, pair)
                case 7:
                    elector = self.electors.get(machine.name)
                    if elector is not None and machine.alive and elector.term is not None:
                        self.count("resignations")
                        elector.stop()
                case 8:
                    here, there = r.sample(self.machines, 2)
                    seems_dead = (here.name, machine.name if machine is not here else there.name)
                    self.count("rejections")
                    self.network.rejected.add(seems_dead)
                    self.later(r.uniform(0.5, 8), self.network.rejected.discard, seems_dead)
                case 9:
                    self.slow = r.choice((0.0, 0.8, 2.0, 5.0))

    def start(self) -> None:
        r, drift = self.random, self.setup.drift
        self.machines = [
            Machine(f"s{n}", self.loop, rate=1 + r.uniform(-drift, drift), wall=1.7e9 + r.uniform(-5, 5))
            for n in range(self.setup.servers)
        ]
        for machine in self.machines:
            self.boot(machine)

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def do(self, act: Callable[..., object], *args: object) -> None:
        """Something that needs the loop to run, at once."""

        async def now() -> None:
            act(*args)

        self.loop.run_until_complete(now())

    async def scenario(self) -> None:
        self.start()
        await self.nemesis(self.setup.seconds)
        self.quiet = True
        self.brown_until, self.slow = 0.0, self.setup.slow
        self.cut_storage.clear()
        self.network.cut.clear()
        self.network.rejected.clear()
        await asyncio.sleep(60 + 30 * self.setup.slow)
        self.audit()

    def audit(self) -> None:
        if not any(t.leading() for t in self.acting.values()):
            self.violations.append("no leader after the faults have stopped")
        contents = self.storage.contents()
        numbers = sorted(int(k[8:-5]) for k in contents if k.startswith("journal/"))
        last, found = 0, set()
        oldest = [int(k[9:-5]) for k in contents if k.startswith("snapshot/")]
        for number in numbers:
            slot = slots.decode_slot(number, contents[f"journal/{number:020d}.json"])
            if slot.epoch < last:
                self.violations.append(f"epoch falls at slot {number}")
            last = slot.epoch
            found |= {c.instance.id for e in slot.entries for c in e.changes if isinstance(c, Put)}
        for number in oldest:
            snapshot = slots.decode_snapshot(number, contents[f"snapshot/{number:020d}.json"])
            found |= set(snapshot.instances)
        for name in self.acked:
            if name not in found:
                self.violations.append(f"acknowledged and lost: {name}")


def run(seed: int, setup: Setup) -> World:
    world = World(seed, setup)
    asyncio.set_event_loop(world.loop)
    try:
        world.loop.run_until_complete(world.scenario())
    finally:
        world.loop.finish()
        asyncio.set_event_loop(None)
    return world


@contextlib.contextmanager
def run_calm(seed: int, setup: Setup) -> Iterator[World]:
    """A world in which nothing happens but what is done to it, step by step."""
    world = World(seed, replace(setup, faults=False, crash_points=0.0))
    asyncio.set_event_loop(world.loop)
    try:
        world.start()
        yield world
    finally:
        world.loop.finish()
        asyncio.set_event_loop(None)
