"""What the wire tests share: a real CA, real certificates, real sockets, and scripted services."""

import asyncio
import functools
import inspect
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import uvloop

from nstance import clock
from nstance.pki import ca, fields, keys, names
from nstance.v1 import agent_grpc, agent_pb2, registration_grpc, registration_pb2
from nstance.wire import channel, dispatch, limits, listener, tls

CHANCE = clock.SystemRng()
CLOCK = clock.SystemClock()
CLUSTER = "demo"
SHARD = "zone-a"
AGENT_ID = "knc-01jw51srryegh9snf9cmeh3k4q"
OPERATOR_ID = "opr-01jw51srryegh9snf9cmeh3k4q"
SECONDS = 60.0  # for what must happen; nothing here waits that long unless it fails


@dataclass(frozen=True)
class Paper:
    """A certificate and its key."""

    certificate_pem: str
    key_pem: bytes


class World:
    """The CA of one cluster and the certificates that it issues."""

    def __init__(self, cluster: str = CLUSTER) -> None:
        self.cluster = cluster
        now = time.time()
        self.ca = ca.new_ca(names.ClusterId(cluster), now=now, rng=CHANCE)
        self.now = now

    def server(self, shard: str = SHARD, id: str = "server-1") -> Paper:
        identity = names.Server(names.ClusterId(self.cluster), names.ShardId(shard), names.ServerId(id))
        return self._issue(self.ca.issue_server, identity)

    def agent(self, id: str = AGENT_ID, tenant: str = "default") -> Paper:
        identity = names.Agent(names.ClusterId(self.cluster), names.TenantId(tenant), names.InstanceId(id))
        return self._issue(self.ca.issue_client, identity)

    def operator(self) -> Paper:
        tenant, id = names.TenantId("default"), names.OperatorId(OPERATOR_ID)
        return self._issue(self.ca.issue_client, names.Operator(names.ClusterId(self.cluster), tenant, id))

    def expired(self) -> Paper:
        identity = names.Agent(names.ClusterId(self.cluster), names.TenantId("default"), names.InstanceId(AGENT_ID))
        return self._issue(self.ca.issue_client, identity, issued=self.now - 1000, expires=self.now - 100)

    def workload(self, *usages: ca.Usage) -> Paper:
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
        given = {"expect": channel.ExpectedServer(self.cluster, SHARD), "clock": CLOCK, **more}
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


def table(*services: Any, **more: Any) -> dispatch.Table:
    return dispatch.Table(methods=dispatch.methods_of(services), **{"limits": limits.Limits(), **more})


@asynccontextmanager
async def listening(world: World, *services: Any, **more: Any) -> AsyncIterator[listener.Listener]:
    """By default an agent port."""
    refused: list[str] = []
    context = world.server_context()
    given = {"context": lambda: context, "clock": CLOCK, "on_refused": refused.append}
    given |= {key: more.pop(key) for key in given.keys() & more.keys()}
    of_agents = {"role": names.Role.AGENT, "cluster": world.cluster, **more}
    made = listener.Listener(table(*(services or (agents(),)), **of_agents), **given)
    made.refused = refused  # type: ignore[attr-defined]
    await made.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The two event loops differ in their TLS and in their timers. Errors that only a loop hears of fail the test too."""

    @functools.wraps(test)
    def run(*, loop: str, **given: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(2 * SECONDS):
                await test(**given)

        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(watched())
        assert not complaints, complaints

    shape = inspect.signature(test)
    extra = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = shape.replace(parameters=[*shape.parameters.values(), extra])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", LOOPS)(run)


HEADERS = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
KEYS = "/nstance.v1.AgentService/SubmitPublicKeys"
HEALTH = "/nstance.v1.AgentService/SubmitHealthReport"
FILES = "/nstance.v1.AgentService/ReceiveFiles"


class Raw:
    """A client that speaks HTTP/2 and none of our manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        self.events: list[h2.events.Event] = []
        self.gone = False

    def send(self, data: bytes = b"") -> None:
        """Send pending HTTP/2 frames, then these bytes."""
        self.writer.write(self.h2.data_to_send() + data)

    def request(self, path: str, *more: tuple[str, str], end: bool = False) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*HEADERS, (":path", path), *more], end_stream=end)
        self.send()
        return stream

    def data(self, stream: int, body: bytes, *, end: bool = False) -> None:
        self.h2.send_data(stream, body, end_stream=end)
        self.send()

    async def receive(self) -> None:
        """One read's worth of events."""
        try:
            data = await self.reader.read(65536)
        except OSError:
            data = b""
        if not data:
            self.gone = True
            return
        self.events += self.h2.receive_data(data)
        if self.h2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
            self.send()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                assert not self.gone, "the server closed the connection first"
                await self.receive()

    async def until_gone(self) -> None:
        async with asyncio.timeout(SECONDS):
            while not self.gone:
                await self.receive()

    def headers(self, stream: int) -> dict[str, str]:
        """All headers and trailers of this stream."""
        headers: dict[str, str] = {}
        for event in self.events:
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived) and event.stream_id == stream:
                headers |= dict(event.headers)
        return headers

    async def status(self, stream: int) -> tuple[int, str]:
        await self.until(lambda: "grpc-status" in self.headers(stream))
        headers = self.headers(stream)
        return int(headers["grpc-status"]), headers.get("grpc-message", "")

    def goodbye(self) -> int | None:
        """The code with which the server ended the connection."""
        return next((int(e.error_code) for e in self.events if isinstance(e, h2.events.ConnectionTerminated)), None)


@asynccontextmanager
async def raw(world: World, port: int, paper: Paper | None = None, *, preface: bool = True) -> AsyncIterator[Raw]:
    context = world.client_context(paper)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
    try:
        made = Raw(reader, writer)
        if preface:
            made.h2.initiate_connection()
            made.send()
        yield made
    finally:
        writer.transport.abort()


def framed(body: bytes, *, size: int | None = None, compressed: bool = False) -> bytes:
    return bytes([compressed]) + (len(body) if size is None else size).to_bytes(4, "big") + body


class Pipe:
    """A TCP relay that can be frozen, as a network that loses every packet without a word."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Pipe":
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        self._flowing.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
            await self._flowing.wait()
            sink.close()
        except OSError:
            sink.transport.abort()
