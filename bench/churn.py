"""Row 24: what a leader keeps of VMs that are gone, in bytes for each VM ever made. `make soak` is the long version.

Each VM has the life of a real one: its agent registers over a connection of its own, connects over TLS with its three
streams, and is killed with its VM, which the shard then replaces. The retention of deleted records is short here, so that
it is over in every sample. Nothing is collected by force before a sample: what waits for a collection counts.
"""

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bench import fleet
from bench.registering import registration
from bench.rows import Row
from nstance.config.addresses import Service
from nstance.v1 import registration_grpc
from nstance.wire import tls
from nstance.wire.call import call

GROUPS, SIZE = 4, 5
AT_ONCE = 4  # VMs that are replaced side by side
PATIENCE = 5.0  # seconds for each VM
RETENTION = 2.0
SETTLING = 3.0  # seconds in which records and timers of the last VMs end
WARM_UP, ROUNDS, EACH = 500, 6, 100  # VMs before the first sample; samples; VMs between two of them
NOISE = 256.0  # bytes per VM: buffers that happen to be full or empty, over some hundred VMs


@dataclass(frozen=True, slots=True)
class Sample:
    made: int  # VMs ever made
    used: int  # bytes
    rss: int
    records: int

    def __str__(self) -> str:
        used, rss = self.used / 1e6, self.rss / 1e6
        return f"{self.made:6,} VMs made: {used:7.2f} MB in use, {rss:6.1f} MB resident, {self.records} records"


class Churn:
    def __init__(self, server: fleet.Server) -> None:
        self.made = 0
        self._server = server
        self._context = tls.client_context(ca_pem=server.ca.pem)

    async def replace(self, count: int) -> None:
        """So many VMs, the oldest first, each by one that has connected when this returns."""
        agents, goal = self._server.agents, self.made + count
        async with asyncio.timeout(PATIENCE * count):
            while self.made < goal:
                ended, agents[:AT_ONCE] = agents[:AT_ONCE], []
                for agent in ended:
                    await self._server.ask("stop", id=agent.id)
                    agent.die(reset=False)
                size = len(agents) + len(ended)
                while len(agents) < size:
                    booted = (await self._server.ask("booted"))["booted"]
                    await asyncio.gather(*(self._enter(*each) for each in booted))
                    await asyncio.sleep(0.002)
                self.made += len(ended)

    async def _enter(self, id: str, group: str, nonce: str) -> None:
        server = self._server
        channel = server.channel(self._context, Service.REGISTRATION)
        try:
            request = registration(server.told["seed"], id, nonce)
            await call(registration_grpc.RegistrationServiceStub(channel).RegisterAgent, request, timeout=30)
        finally:
            channel.close()
        made = fleet.LightAgent(id, group, server=server)
        await server.connect([made])
        server.agents.append(made)

    async def sample(self) -> Sample:
        await asyncio.sleep(RETENTION + SETTLING)
        return Sample(made=self.made, **await self._server.ask("memory"))


@contextlib.asynccontextmanager
async def churning() -> AsyncIterator[Churn]:
    async with fleet.serving(groups=GROUPS, size=SIZE, files=True, retention=RETENTION, exact_memory=True) as server:
        await server.connect_all()
        yield Churn(server)


def kept(samples: list[Sample]) -> float:
    """Bytes for each VM ever made: the slope through the samples, so that no single one decides."""
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
        what="memory kept for each VM ever made, retention over",
        value=max(0.0, kept(samples)),
        unit="bytes",
        goal=NOISE,
        detail=f"{first.used / 1e6:.2f} MB in use after {first.made:,} VMs, {last.used / 1e6:.2f} after {last.made:,}",
    )
