"""Looks at everything, a few times a second, from the outside: metrics, the lease in the bucket, processes, VMs.

The trap: a server that is stopped does not answer, and one that is cut off from storage keeps its ports open and says
that it leads, although it does nothing. So what counts is who *acts*: whose provider calls go up.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp

from chaos.world import World

EVERY = 0.25
VMS_EVERY = 1.0
DOUBLES_EVERY = 10.0
GRACE = 2.0  # seconds after a fence in which calls that were in flight may end


@dataclass(frozen=True, slots=True)
class Server:
    """What one server says of itself."""

    leads: bool
    epoch: int
    connected: int
    changes: int  # create and delete calls to the provider that have ended
    running: int  # instances, as it believes
    kilobytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    epoch: int
    holder: str
    servers: dict[str, Server]  # those that answered
    busy: frozenset[str]  # those that run and were too slow to answer

    @property
    def leader(self) -> str:
        """Who leads and can be reached, or nothing."""
        told = [(s.epoch, name) for name, s in self.servers.items() if s.leads]
        return max(told)[1] if told else ""

    @property
    def leaderless(self) -> bool:
        """Nobody leads; a holder of the lease that is only too busy to say so does."""
        return not self.leader and self.holder not in self.busy

    @property
    def connected(self) -> int:
        return sum(s.connected for s in self.servers.values())


@dataclass
class Watch:
    world: World
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    most_kilobytes: int = 0
    running: int = 0  # VMs, as they are
    _superseded: dict[str, float] = field(default_factory=dict)  # incarnations, and when a later epoch was seen
    _noticed: set[str] = field(default_factory=set)

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2.0)
        vms_at = doubles_at = 0.0
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.monotonic()
                await self._look(session)
                self._lives()
                if began - vms_at >= VMS_EVERY:
                    vms_at = began
                    self.world.vms.look()
                    self.running = len(self.world.vms.running())
                if began - doubles_at >= DOUBLES_EVERY:
                    doubles_at = began
                    for id in self.world.vms.duplicate_vms():
                        self._problem(f"I2: two agents run for {id}")
                await asyncio.sleep(max(0.05, EVERY - (time.monotonic() - began)))

    # ---- one look

    async def _look(self, session: aiohttp.ClientSession) -> None:
        epoch, holder = self.world.lease()
        names = [name for name, child in self.world.servers.items() if child.answers]
        told = await asyncio.gather(*(self._ask(session, name) for name in names))
        servers = {name: server for name, server in zip(names, told, strict=True) if server is not None}
        busy = frozenset(name for name in names if name not in servers and self.world.accepts(name, "health"))
        sample = Sample(time.time(), epoch, holder, servers, busy)
        if self.samples:
            self._one_actor(self.samples[-1], sample)
            if epoch < self.samples[-1].epoch:
                self._problem(f"I5: the lease went from epoch {self.samples[-1].epoch} back to {epoch}")
        self.samples.append(sample)
        self.most_kilobytes = max([self.most_kilobytes, *(s.kilobytes for s in servers.values())])

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> Server | None:
        child = self.world.servers[name]
        url = f"http://127.0.0.1:{self.world.port(name, 'health')}/metrics"
        try:
            async with session.get(url) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        values = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if line[:1] != "#"}

        def total(matches: Callable[[str], bool]) -> int:
            return int(sum(float(value) for key, value in values.items() if matches(key)))

        return Server(
            leads=total(lambda key: key == "nstance_leader") == 1,
            epoch=total(lambda key: key == "nstance_leader_epoch"),
            connected=total(lambda key: key == "nstance_agents_connected"),
            changes=total(
                lambda key: (
                    key.startswith("nstance_provider_requests_total")
                    and ('op="create"' in key or 'op="delete"' in key)
                    and 'code="cancelled"' not in key
                )
            ),
            running=total(lambda key: key.startswith("nstance_instances{") and 'state="running"' in key),
            kilobytes=child.kilobytes(),
        )

    def _one_actor(self, before: Sample, now: Sample) -> None:
        """I5: a server whose epoch is over calls the provider no more, beyond what was in flight."""
        for name, server in now.servers.items():
            life = self.world.servers[name].life
            if server.epoch >= now.epoch:
                self._superseded.pop(life.name, None)
                continue
            since = self._superseded.setdefault(life.name, now.at)
            woke = max((end for _, end in life.stops), default=0.0)
            earlier = before.servers.get(name)
            if earlier is None or before.at < max(since, woke) + GRACE or earlier.epoch != server.epoch:
                continue
            if server.changes > earlier.changes:
                self._problem(
                    f"I5: {life.name} called the provider {now.at - since:.1f} s after its epoch {server.epoch} was over"
                )

    def _lives(self) -> None:
        for child in (self.world.s3, *self.world.servers.values()):
            for life in child.lives:
                if not life.meant and not life.runs and life.name not in self._noticed:
                    self._noticed.add(life.name)
                    self._problem(f"{life.name} ended by itself with status {life.process.returncode}")

    def _problem(self, what: str) -> None:
        if what not in self.problems:
            self.problems.append(what)


@contextlib.asynccontextmanager
async def watching(world: World) -> AsyncIterator[Watch]:
    watch = Watch(world)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
