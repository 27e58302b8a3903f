"""Row 24: the memory that a leader keeps per VM that ever existed. `make soak` is the long version.

Each agent registers over a connection of its own, connects over TLS with three streams, and is killed with its VM, which the
shard then replaces. Deleted records are retained only for a moment, so that none is left in a sample. No garbage collection
is forced before a sample: what waits for a collection counts.
"""

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from bench import fleet
from bench.registering import registration
from bench.rows import Row
from nstance.config.addresses import Service
from nstance.v1 import registration_grpc
from nstance.wire import tls
from nstance.wire.call import call

GROUPS, SIZE = 4, 5
CONCURRENT = 4  # VMs that are replaced at a time
VM_TIMEOUT_SECONDS = 5.0
RETENTION_SECONDS = 2.0
SETTLE_SECONDS = 3.0  # until records and timers of the last VMs are gone
WARM_UP, ROUNDS, EACH = 500, 6, 100  # VMs before the first sample; samples; VMs between two of them
NOISE = 256.0  # bytes per VM, from buffers that happen to be full or empty


@dataclass(frozen=True, slots=True)
class Sample:
    made: int  # VMs so far
    used: int  # bytes
    rss: int
    records: int

    def __str__(self) -> str:
        used, rss = self.used / 1e6, self.rss / 1e6
        return f"{self.made:6,} VMs created: {used:7.2f} MB in use, {rss:6.1f} MB resident, {self.records} records"


class Churn:
    def __init__(self, server: fleet.Server) -> None:
        self.made = 0
        self._server = server
        self._context = tls.client_context(ca_pem=server.ca.pem)

    async def replace(self, count: int) -> None:
        """Replace this many VMs, the oldest first; the new ones are ready when this returns. A VM that ends before it is
        ready counts as a failure of its group, which then backs off."""
        agents, goal = self._server.agents, self.made + count
        async with asyncio.timeout(VM_TIMEOUT_SECONDS * count):
            while self.made < goal:
                ended, agents[:CONCURRENT] = agents[:CONCURRENT], []
                for agent in ended:
                    await self._server.ask("stop", id=agent.id)
                    agent.die(reset=False)
                size = len(agents) + len(ended)
                while len(agents) < size:
                    booted = (await self._server.ask("booted"))["booted"]
                    await self.register(booted)
                    await asyncio.sleep(0.002)
                self.made += len(ended)

    async def register(self, booted: Iterable[Sequence[str]]) -> None:
        """Run agents on VMs that booted, until they are ready."""
        await asyncio.gather(*(self._register(*each) for each in booted))

    async def _register(self, id: str, group: str, nonce: str) -> None:
        server = self._server
        channel = server.channel(self._context, Service.REGISTRATION)
        try:
            request = registration(server.settings["seed"], id, nonce)
            await call(registration_grpc.RegistrationServiceStub(channel).RegisterAgent, request, timeout=30)
        finally:
            channel.close()
        made = fleet.LightAgent(id, group, server=server)
        await server.connect([made])
        await become_ready(made)
        server.agents.append(made)

    async def sample(self) -> Sample:
        await asyncio.sleep(RETENTION_SECONDS + SETTLE_SECONDS)
        return Sample(made=self.made, **await self._server.ask("memory"))


async def become_ready(agent: fleet.LightAgent) -> None:
    """Report once its files are installed."""
    while not agent.config_hash:  # noqa: ASYNC110 -- the agent has no event for it, and thousands of them need none
        await asyncio.sleep(0.002)
    await agent.report()


@contextlib.asynccontextmanager
async def churning() -> AsyncIterator[Churn]:
    async with fleet.serving(
        fleet.Setup(groups=GROUPS, size=SIZE, files=True, retention=RETENTION_SECONDS, exact_memory=True)
    ) as server:
        await server.connect_all()
        await asyncio.gather(*map(become_ready, server.agents))
        yield Churn(server)


def bytes_kept(samples: list[Sample]) -> float:
    """Bytes kept per VM: the slope of a line through all samples."""
    return statistics.linear_regression([s.made for s in samples], [s.used for s in samples]).slope


async def run() -> AsyncIterator[Row]:
    async with churning() as churn:
        await churn.replace(WARM_UP)
        samples = [await churn.sample()]
        for _ in range(ROUNDS):
            await churn.replace(EACH)
            samples.append(await churn.sample())
    first, last = samples[0], samples[-1]
    yield Row(
        number="24",
        what="memory kept per VM that ever existed, after retention",
        value=max(0.0, bytes_kept(samples)),
        unit="bytes",
        goal=NOISE,
        detail=f"{first.used / 1e6:.2f} MB in use after {first.made:,} VMs, {last.used / 1e6:.2f} after {last.made:,}",
    )
