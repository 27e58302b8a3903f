"""What the wire tests share: a real CA, real certificates, real sockets, and services that do as they are told."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nstance import clock
from nstance.pki import ca, keys, names
from nstance.v1 import agent_grpc, agent_pb2, registration_grpc, registration_pb2
from nstance.wire import channel, limits, listener, tls

CHANCE = clock.SystemChance()
CLOCK = clock.SystemClock()
CLUSTER = "demo"
SHARD = "zone-a"
AGENT_ID = "knc-01jw51srryegh9snf9cmeh3k4q"
OPERATOR_ID = "opr-01jw51srryegh9snf9cmeh3k4q"
SECONDS = 10.0  # for what must happen; nothing here waits that long unless it fails


@dataclass(frozen=True)
class Paper:
    """A certificate and its key."""

    certificate_pem: str
    key_pem: bytes


class World:
    """One cluster's CA and everybody it vouches for."""

    def __init__(self, cluster: str = CLUSTER) -> None:
        self.cluster = cluster
        now = time.time()
        self.ca = ca.new_ca(names.ClusterId(cluster), now=now, chance=CHANCE)
        self.now = now

    def server(self, shard: str = SHARD, id: str = "server-1") -> Paper:
        identity = names.Server(names.ClusterId(self.cluster), names.ShardId(shard), names.ServerId(id))
        return self._issue(self.ca.issue_server, identity, dns=(), ip=())

    def agent(self, id: str = AGENT_ID, tenant: str = "default") -> Paper:
        identity = names.Agent(names.ClusterId(self.cluster), names.TenantId(tenant), names.InstanceId(id))
        return self._issue(self.ca.issue_agent, identity)

    def operator(self) -> Paper:
        tenant, id = names.TenantId("default"), names.OperatorId(OPERATOR_ID)
        return self._issue(self.ca.issue_operator, names.Operator(names.ClusterId(self.cluster), tenant, id))

    def expired(self) -> Paper:
        identity = names.Agent(names.ClusterId(self.cluster), names.TenantId("default"), names.InstanceId(AGENT_ID))
        return self._issue(self.ca.issue_agent, identity, issued=self.now - 1000, expires=self.now - 100)

    def workload(self, *usages: ca.Usage) -> Paper:
        from nstance.pki import fields

        spec = ca.WorkloadSpec(usages=frozenset(usages), subject=fields.Subject(cn="server"))
        key = keys.generate(CHANCE)
        issued = self.ca.issue_workload(spec, keys.public_bytes(key), serial=ca.new_serial(CHANCE), issued=self.now)
        return Paper(issued.pem, keys.private_to_pem(key).encode())

    def _issue(self, issue: Callable[..., ca.Issued], identity: Any, **more: Any) -> Paper:
        key = keys.generate(CHANCE)
        given = {"issued": self.now, "expires": self.now + 86400, **more}
        issued = issue(identity, keys.public_bytes(key), serial=ca.new_serial(CHANCE), **given)
        return Paper(issued.pem, keys.private_to_pem(key).encode())

    def server_context(self, paper: Paper | None = None, *, clients: bool = True) -> ssl.SSLContext:
        paper = paper or self.server()
        return tls.server_context(
            certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=self.ca.pem if clients else None
        )

    def client_context(self, paper: Paper | None = None) -> ssl.SSLContext:
        if paper is None:
            return tls.client_context(ca_pem=self.ca.pem)
        return tls.client_context(ca_pem=self.ca.pem, certificate_pem=paper.certificate_pem, key_pem=paper.key_pem)

    def channel(self, port: int, paper: Paper | None = None, **more: Any) -> channel.Channel:
        given = {"expect_cluster": self.cluster, "expect_shard": SHARD, "clock": CLOCK, **more}
        return channel.Channel(f"127.0.0.1:{port}", context=self.client_context(paper), **given)


class Agents(agent_grpc.AgentServiceBase):
    """Each method does what the test put in its place."""

    def __init__(self, **methods: Callable[[Any], Awaitable[None]]) -> None:
        self.methods = methods
        self.entered: list[Any] = []

    async def _do(self, name: str, stream: Any) -> None:
        self.entered.append(stream)
        await self.methods[name](stream)

    async def ReceiveKeyRequests(self, stream: Any) -> None:
        await self._do("ReceiveKeyRequests", stream)

    async def SubmitPublicKeys(self, stream: Any) -> None:
        await self._do("SubmitPublicKeys", stream)

    async def ReceiveFiles(self, stream: Any) -> None:
        await self._do("ReceiveFiles", stream)

    async def SubmitHealthReport(self, stream: Any) -> None:
        await self._do("SubmitHealthReport", stream)

    async def RenewCertificate(self, stream: Any) -> None:
        await self._do("RenewCertificate", stream)


class Registrations(registration_grpc.RegistrationServiceBase):
    async def RegisterAgent(self, stream: Any) -> None:
        request = await stream.recv_message()
        await stream.send_message(registration_pb2.RegisterResponse(certificate_pem=request.nonce))

    async def RegisterOperator(self, stream: Any) -> None:
        await self.RegisterAgent(stream)


async def answer_keys(stream: Any) -> None:
    await stream.recv_message()
    await stream.send_message(agent_pb2.SubmitPublicKeysResponse())


async def answer_health(stream: Any) -> None:
    async for message in stream:
        await stream.send_message(agent_pb2.HealthAnswer(sequence=message.report.sequence))


async def wait_for_ever(stream: Any) -> None:
    await asyncio.Event().wait()


def agents(**methods: Callable[[Any], Awaitable[None]]) -> Agents:
    return Agents(**{"SubmitPublicKeys": answer_keys, "SubmitHealthReport": answer_health, **methods})


@asynccontextmanager
async def listening(world: World, *services: Any, **more: Any) -> AsyncIterator[listener.Listener]:
    """An agent port, unless told otherwise."""
    refused: list[str] = []
    context = world.server_context()
    given = {
        "context": lambda: context,
        "limits": limits.Limits(),
        "clock": CLOCK,
        "role": names.Role.AGENT,
        "cluster": world.cluster,
        "on_refused": refused.append,
        **more,
    }
    made = listener.Listener(services or (agents(),), **given)
    made.refused = refused  # type: ignore[attr-defined]
    await made.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Waits for a thing, with a deadline."""
    try:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come") from None
