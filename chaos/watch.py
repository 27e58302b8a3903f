"""Samples the shard from outside a few times a second: metrics, the lease in the bucket, processes, VMs.

The trap: a stopped server does not answer, and one that is cut off from storage keeps its ports open and claims to lead,
although it does nothing. So what counts is which server *acts*: whose provider calls increase.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp

from chaos.world import World

SAMPLE_SECONDS = 0.25
VMS_SECONDS = 1.0
DUPLICATES_SECONDS = 10.0
GRACE_SECONDS = 2.0  # after a fence, for calls that were in flight


@dataclass(frozen=True, slots=True)
class Server:
    """The metrics of one server."""

    leads: bool
    epoch: int
    connected: int
    changes: int  # create and delete calls to the provider that have ended
    running: int  # instances, according to this server
    kilobytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    epoch: int
    holder: str
    servers: dict[str, Server]  # those that answered
    busy: frozenset[str]  # those that accept connections and were too slow to answer

    @property
    def leader(self) -> str:
        """The leader that can be reached, or empty."""
        leading = [(s.epoch, name) for name, s in self.servers.items() if s.leads]
        return max(leading)[1] if leading else ""

    @property
    def leaderless(self) -> bool:
        """No server leads. A lease holder that is only too busy to answer leads."""
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
    running: int = 0  # VMs
    _superseded: dict[str, float] = field(default_factory=dict)  # incarnations, and when a later epoch was seen
    _reported: set[str] = field(default_factory=set)

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2.0)
        vms_at = duplicates_at = 0.0
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.monotonic()
                await self._sample(session)
                self._check_processes()
                if began - vms_at >= VMS_SECONDS:
                    vms_at = began
                    self.world.vms.look()
                    self.running = len(self.world.vms.running())
                if began - duplicates_at >= DUPLICATES_SECONDS:
                    duplicates_at = began
                    for id in self.world.vms.duplicate_vms():
                        self._report(f"I2: two agents run for {id}")
                await asyncio.sleep(max(0.05, SAMPLE_SECONDS - (time.monotonic() - began)))

    # ---- one sample

    async def _sample(self, session: aiohttp.ClientSession) -> None:
        epoch, holder = self.world.lease()
        names = [name for name, child in self.world.servers.items() if child.answers]
        answers = await asyncio.gather(*(self._ask(session, name) for name in names))
        servers = {name: server for name, server in zip(names, answers, strict=True) if server is not None}
        busy = frozenset(name for name in names if name not in servers and self.world.accepts(name, "health"))
        sample = Sample(time.time(), epoch, holder, servers, busy)
        if self.samples:
            self._check_single_actor(self.samples[-1], sample)
            if epoch < self.samples[-1].epoch:
                self._report(f"I5: the lease went from epoch {self.samples[-1].epoch} back to {epoch}")
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

    def _check_single_actor(self, before: Sample, now: Sample) -> None:
        """I5: a server whose epoch is over begins no call to the provider."""
        for name, server in now.servers.items():
            life = self.world.servers[name].life
            if server.epoch >= now.epoch:
                self._superseded.pop(life.name, None)
                continue
            since = self._superseded.setdefault(life.name, now.at)
            woke = max((end for _, end in life.stops), default=0.0)
            earlier = before.servers.get(name)
            if earlier is None or before.at < max(since, woke) + GRACE_SECONDS or earlier.epoch != server.epoch:
                continue
            if server.changes > earlier.changes:
                self._report(
                    f"I5: {life.name} called the provider {now.at - since:.1f} s after its epoch {server.epoch} was over"
                )

    def _check_processes(self) -> None:
        for child in (self.world.s3, *self.world.servers.values()):
            for life in child.lives:
                if not life.is_end_expected and not life.runs and life.name not in self._reported:
                    self._reported.add(life.name)
                    self._report(f"{life.name} ended by itself with status {life.process.returncode}")

    def _report(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


@contextlib.asynccontextmanager
async def watching(world: World) -> AsyncIterator[Watch]:
    watch = Watch(world)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
