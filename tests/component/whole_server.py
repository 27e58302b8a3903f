"""Whole servers in this process: real election, real TLS on loopback, real gRPC, over storage and a cloud in memory.

    async with World(tmp_path) as world:
        server = await world.start("a")            # leads when this returns
        operator = await world.operator("default")  # registered with a nonce, over the wire
        await operator.call("ListGroups")

Every VM of the cloud gets a light agent, which registers, keeps its health stream open and comes back after a loss
(`agents=False`: VMs stay dumb). Start a second server under another name for fail-overs. Ports are free ones.
"""

import asyncio
import contextlib
import hashlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.authority.operators import Operators
from nstance.clock import AnchoredClock, SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.model import ids
from nstance.model.ids import ClusterId, InstanceId, ServerId, ShardId, TenantId
from nstance.model.roles import Role
from nstance.objects.memory import Fate, MemoryStore, Verb
from nstance.pki import keys, names, proof
from nstance.pki import peer as certificates
from nstance.providers.memory import MemoryProvider
from nstance.providers.memory_behavior import Script
from nstance.providers.memory_cloud import MemoryCloud
from nstance.providers.port import CreateRequest, Instances, Scope, Vm
from nstance.server.config.active_config import ActiveConfig
from nstance.server.leader.context import TermContext
from nstance.server.options import Options
from nstance.server.server import Server
from nstance.server.state.follower import Follower
from nstance.server.state.shard import Shard
from nstance.server.waits import WAITS
from nstance.server.wiring import ServerProcess
from nstance.telemetry.tracing import Tracing
from nstance.v1 import agent_grpc, agent_pb2, operator_grpc, operator_pb2, registration_grpc, registration_pb2
from nstance.wire import tls
from nstance.wire.call import call
from nstance.wire.channel import Channel, ExpectedServer
from support import ports
from support.eventually import eventually

CLUSTER = ClusterId("demo")
SHARD = ShardId("zone-a")
SECONDS = 60.0  # for what must happen; nothing waits that long unless it fails
PORT_STEP = 10
# A busy machine that lets an event loop wait for a second or two ends no term. Failovers after a crash are as fast as ever.
PATIENT = {"promise": "10s", "unreachable": {"lease": "5s"}}
# For `config(leader_election=…)` of a test whose only server crashes: the next one waits for its lease.
SHORT_LEASE = {"alone": {"lease": "3s", "renewal": "500ms"}}

T = TypeVar("T")
Json = dict[str, Any]


def config(
    *,
    groups: Json | None = None,
    tenants: tuple[str, ...] = ("acme", "globex"),
    leader_election: Json | None = None,
    **shard: Any,
) -> Json:
    """A small shard: the template `web` (kind web), the tenants, and the static groups that are given."""
    return {
        "cluster": {"id": CLUSTER, "secrets": {"encryption_key": {"provider": "env", "source": "NO_SUCH_KEY"}}},
        "shard": {
            "infra": {"provider": "memory", "region": "here", "zone": "a"},
            "subnet_pools": {"main": ["subnet-1"]},
            "default_drain_timeout": "30s",
            "leader_election": PATIENT | (leader_election or {}),
            **shard,
        },
        "tenants": {tenant: {} for tenant in tenants},
        "templates": {
            "web": {
                "kind": "web",
                "arch": "amd64",
                "instance_type": "small",
                "files": {"motd": {"kind": "string", "template": "{{ .Vars.greeting }}"}},
                "vars": {"greeting": "hello"},
            }
        },
        "groups": groups or {},
    }


class World:
    """One shard: its storage, its cloud, its servers."""

    waits = WAITS  # of servers that are started from now on

    def __init__(
        self,
        dir: Path,
        settings: Json | None = None,
        *,
        agents: bool = True,
        shard: ShardId = SHARD,
        beside: "World | None" = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`beside`: another shard of the same cluster; storage is shared. `tracing`: of the servers."""
        self._tracing = tracing
        self.shard = shard
        self.dir = dir
        self.clock, self.rng = SystemClock(), SystemRng()
        self.behavior = Script()
        self.fate: Callable[[Verb, str], Fate] = lambda verb, key: Fate()  # what happens to the servers' storage calls
        self.store = beside.store if beside is not None else MemoryStore(self.clock)  # past all faults
        self.cloud = MemoryCloud(
            self.clock, behavior=self.behavior, on_boot=self._boot if agents else None, on_end=self._end
        )
        self.servers: dict[str, Running] = {}
        self.agents: dict[InstanceId, LightAgent] = {}
        self.agents_may_register = asyncio.Event()
        self.agents_may_register.set()
        self.agents_are_shut_out = False  # whether agents can register and then not connect
        self._ports = contextlib.ExitStack()
        self._base = self._ports.enter_context(ports.claimed())
        self._channels: list[Channel] = []
        self._watches: list[asyncio.Task[None]] = []
        self.configure(settings if settings is not None else config())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._ports:
            for watch in self._watches:
                watch.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)
            for channel in self._channels:
                channel.close()
            for agent in self.agents.values():
                agent.stop()
            await asyncio.gather(*(agent.task for agent in self.agents.values()), return_exceptions=True)
            for server in self.servers.values():
                await server.crash()

    def configure(self, settings: Json) -> None:
        """Put a configuration into the bucket, as a person does. The ports are filled in."""
        bind = {service.key: f"127.0.0.1:{self._base + number}" for number, service in enumerate(Service)}
        shard = {**settings["shard"], "bind": bind}
        self.store.tamper(f"shard/{self.shard}/config.jsonc", json.dumps({**settings, "shard": shard}).encode())

    async def start(
        self, name: str = "a", *, lead: bool = True, insecure_dev: bool = True, clock: AnchoredClock | None = None
    ) -> "Running":
        """Start a server, and wait until it leads, or with lead=False until the lease names it: a standby that it does
        not name would wait longer than any test does. After a crash it may also be the one that takes over.
        `clock`: its machine's own."""
        earlier = self.servers.get(name)
        offset = earlier.base - self._base if earlier is not None else PORT_STEP * len(self.servers)
        options = Options(
            id=ServerId(name),
            shard=self.shard,
            storage="memory",
            bucket="",
            prefix="",
            cachedir=self.dir / name,
            advertise_host="127.0.0.1",
            port_offset=offset,
            validate=None,
            debug=False,
            json_logs=False,
            insecure_dev=insecure_dev,
            waits=self.waits,
        )
        store = self.store.view(self._fated)
        server = ServerProcess(
            options,
            clock=clock or SystemClock(),
            rng=self.rng,
            store=store,
            provider=self.open_provider(name),
            tracing=self._tracing,
        )
        running = self.servers[name] = Running(server, asyncio.create_task(server.run()), self._base + offset)
        await running.until(lambda: running.lead is not None or (not lead and name in self._standbys()))
        return running

    def open_provider(self, name: str) -> Instances | None:
        """For a server; None: the one that the configuration names."""
        return MemoryProvider(Scope(cluster=CLUSTER, shard=self.shard), self.clock, cloud=self.cloud, server=name)

    def _standbys(self) -> set[str]:
        servers = (running.server.server for running in self.servers.values())
        held = (server.elector.held for server in servers if server is not None)
        return {member.server for lease in held if lease is not None for member in lease.members}

    @property
    def leader(self) -> "Running":
        return next(server for server in self.servers.values() if server.lead is not None)

    def operators(self) -> Operators:
        return Operators(self.store, prefix="cluster/", cluster=CLUSTER, clock=self.clock, rng=self.rng)

    async def operator(self, tenant: str = "default", role: Role = Role.OPERATOR) -> "Operator":
        """A new operator, registered at the leader over the wire."""
        authority = self.leader.lead_now.issuer.authority
        token = self.operators().new_nonce(authority, tenant=TenantId(tenant), role=role)
        key = keys.generate(self.rng)
        channel = self.channel(Service.REGISTRATION)
        request = registration_pb2.RegisterOperatorRequest(
            nonce=token,
            public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
            proof=proof.prove_registration(key, cluster=CLUSTER, nonce=token),
        )
        stub = registration_grpc.RegistrationServiceStub(channel)
        answer = await call(stub.RegisterOperator, request, timeout=SECONDS)
        return Operator(self, key, answer.certificate_pem)

    async def drainer(self, tenant: str = "default") -> "Operator":
        """A new operator that drains: its watch stays open, over changes of leaders too. It acknowledges nothing."""
        operator = await self.operator(tenant)
        task = asyncio.create_task(operator.keep_watching())
        self._watches.append(task)
        await eventually(lambda: self.leader.shard.drainers.last_seen(TenantId(tenant)) is not None)
        return operator

    def channel(
        self, service: Service, *, certificate_pem: str | None = None, key: Ed25519PrivateKey | None = None
    ) -> Channel:
        """To all servers, in turn; closed with the world."""
        number = list(Service).index(service)
        channel = Channel(
            [f"127.0.0.1:{server.base + number}" for server in self.servers.values()],
            context=tls.client_context(
                ca_pem=self.ca_pem,
                certificate_pem=certificate_pem,
                key_pem=keys.private_to_pem(key).encode() if key is not None else None,
            ),
            expect=ExpectedServer(CLUSTER, self.shard),
            clock=self.clock,
        )
        self._channels.append(channel)
        return channel

    @property
    def ca_pem(self) -> str:
        return self.store.contents()["cluster/ca.crt"].decode()

    def copy_bucket(self, directory: Path) -> None:
        """All objects as files, as the provider `file` reads them."""
        for key, body in self.store.contents().items():
            path = directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

    async def _fated(self, verb: Verb, key: str) -> Fate:
        return self.fate(verb, key)

    def _boot(self, request: CreateRequest, vm: Vm) -> None:
        agent = self.agents[request.id] = LightAgent(self, request, vm)
        agent.start()

    def _end(self, request: CreateRequest, vm: Vm) -> None:
        if request.id in self.agents:
            self.agents[request.id].stop()


@dataclass
class Running:
    """A server of the world."""

    server: ServerProcess
    task: "asyncio.Task[None]"
    base: int  # its first port

    @property
    def configured(self) -> Server:
        assert self.server.server is not None, "this server has no configuration yet"
        return self.server.server

    @property
    def follower(self) -> Follower:
        return self.configured.follower

    @property
    def active_config(self) -> ActiveConfig:
        return self.configured.active_config

    @property
    def lead(self) -> TermContext | None:
        return self.server.server.leader.context if self.server.server is not None else None

    @property
    def lead_now(self) -> TermContext:
        assert self.lead is not None, "this server does not lead"
        return self.lead

    @property
    def shard(self) -> Shard:
        return self.lead_now.shard

    async def until(self, find: Callable[[], T]) -> T:
        """Like `eventually`, but a server that ended is not waited for."""

        def found() -> T:
            if self.task.done():
                self.task.result()
                raise AssertionError("the server has ended")
            return find()

        return await eventually(found)

    async def stop(self) -> None:
        """Orderly."""
        self.server.stop()
        await asyncio.wait_for(self.task, SECONDS)

    async def crash(self) -> None:
        """At once, with nothing given back."""
        self.task.cancel()
        await asyncio.wait([self.task], timeout=SECONDS)


@dataclass
class Operator:
    """An operator with its certificate. Calls are spelled as in the proto: `call("UpsertGroup", key=..., config=...)`."""

    world: World
    key: Ed25519PrivateKey
    certificate_pem: str
    _channel: Channel | None = None

    @property
    def identity(self) -> names.Operator:
        found = certificates.identify(ssl.PEM_cert_to_DER_cert(self.certificate_pem))
        assert isinstance(found, names.Operator)
        return found

    @property
    def channel(self) -> Channel:
        if self._channel is None:
            self._channel = self.world.channel(Service.OPERATOR, certificate_pem=self.certificate_pem, key=self.key)
        return self._channel

    @property
    def stub(self) -> operator_grpc.OperatorServiceStub:
        return operator_grpc.OperatorServiceStub(self.channel)

    async def call(
        self, rpc: str, request: Any = None, /, *, metadata: Mapping[str, str] | None = None, **fields: Any
    ) -> Any:
        """One unary call, its request given whole or by its fields."""
        method = getattr(self.stub, rpc)
        return await call(method, request or method.request_type(**fields), timeout=SECONDS, metadata=metadata)

    async def refused(self, rpc: str, /, **fields: Any) -> GRPCError:
        """A call that must be refused: its error."""
        try:
            answer = await self.call(rpc, **fields)
        except GRPCError as error:
            return error
        raise AssertionError(f"{rpc} was answered with {answer}")

    async def keep_watching(self) -> None:
        """As one that drains, at whichever server leads. Until cancelled."""
        while True:
            fresh = type(self)(self.world, self.key, self.certificate_pem)  # servers may have been added
            with contextlib.suppress(GRPCError, StreamTerminatedError, ProtocolError, OSError):
                async with fresh.watch(drains=True) as watching:
                    while await watching.stream.recv_message() is not None:
                        pass
            fresh.channel.close()
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def watch(self, **kinds: bool) -> AsyncIterator["Watching"]:
        async with self.stub.Watch.open() as stream:
            await stream.send_message(operator_pb2.WatchRequest(**kinds), end=True)
            watching = Watching(stream)
            try:
                yield watching
            finally:
                with contextlib.suppress(StreamTerminatedError, ProtocolError):
                    await stream.cancel()


@dataclass
class Watching:
    stream: Any
    seen: list[operator_pb2.WatchMessage] = field(default_factory=list)

    async def next(self) -> operator_pb2.WatchMessage:
        # Not `wait_for`: before Python 3.12, a message that comes in time may hide a cancellation.
        async with asyncio.timeout(SECONDS):
            message: operator_pb2.WatchMessage | None = await self.stream.recv_message()
        assert message is not None, "the stream has ended"
        self.seen.append(message)
        return message

    async def until(self, wanted: Callable[[operator_pb2.WatchMessage], bool]) -> operator_pb2.WatchMessage:
        """The next message that is wanted; all are in `seen`."""
        while not wanted(message := await self.next()):
            pass
        return message

    async def have(self, wanted: Callable[[operator_pb2.WatchMessage], bool]) -> operator_pb2.WatchMessage:
        """A message that is wanted: one that was seen already, or a later one."""
        return next((m for m in self.seen if wanted(m)), None) or await self.until(wanted)

    async def end(self) -> GRPCError:
        """Why the stream ends."""
        try:
            async with asyncio.timeout(SECONDS):
                while await self.stream.recv_message() is not None:
                    pass
                await self.stream.recv_trailing_metadata()
        except GRPCError as error:
            return error
        raise AssertionError("the stream ended without an error")

    async def snapshot(self) -> list[operator_pb2.WatchMessage]:
        await self.until(lambda message: message.WhichOneof("kind") == "snapshot_end")
        return self.seen[:-1]


class LightAgent:
    """Registers with its nonce, keeps a health stream open, takes its files and says what its checks find, which is good
    unless `failing` says why not. `mute` takes it off the network, `speak` brings it back. It makes no keys: an instance
    whose files hold certificates does not become ready."""

    def __init__(self, world: World, request: CreateRequest, vm: Vm) -> None:
        self.world = world
        self.id = request.id
        self.connected = False
        self.knows_readiness = True  # otherwise it is an agent of an older version
        self.files: dict[str, bytes] = {}
        self.config_hash = ""
        self.checks = agent_pb2.CheckConfig()
        self.failing: dict[str, str] = {}  # by name of the check
        self.on_receive_problem = ""  # why the command after its files fails
        self._sequence = 0
        self._request = request
        self._vm = vm
        self.key = keys.generate(world.rng)
        self.certificate_pem = ""
        self._voice = asyncio.Event()
        self._voice.set()
        self._channel: Channel | None = None
        self._outgoing: asyncio.Queue[agent_pb2.AgentMessage] = asyncio.Queue()

    @property
    def userdata(self) -> str:
        return self._request.userdata.decode()

    def start(self) -> None:
        self.task = asyncio.create_task(self._live())

    def stop(self) -> None:
        self.task.cancel()

    def mute(self) -> None:
        self._voice.clear()
        if self._channel is not None:
            self._channel.close()

    def speak(self) -> None:
        self._voice.set()

    def notice(self, kind: "agent_pb2.Notice.Kind.ValueType", *, deadline_unix_ms: int = 0) -> None:
        self._outgoing.put_nowait(
            agent_pb2.AgentMessage(notice=agent_pb2.Notice(kind=kind, deadline_unix_ms=deadline_unix_ms))
        )

    def fail(self, check: str, why: str) -> None:
        """Empty: it passes again."""
        self.failing[check] = why
        self.report()

    def report(self) -> None:
        self._sequence += 1
        report = agent_pb2.HealthReport(
            instance_id=self.id, boot_id="boot", sequence=self._sequence, version="test", config_hash=self.config_hash
        )
        if self.knows_readiness:
            report.received_hash = "" if self.on_receive_problem else self.config_hash
            report.files_error, report.checks_hash = self.on_receive_problem, self.checks.hash
            report.checks.extend(
                agent_pb2.CheckResult(name=each.name, passing=not why, message=why, since_unix_ms=1000)
                for each in self.checks.checks
                for why in [self.failing.get(each.name, "")]
            )
        self._outgoing.put_nowait(agent_pb2.AgentMessage(report=report))

    async def _live(self) -> None:
        while True:
            await self._voice.wait()
            try:
                if not self.certificate_pem:
                    await self.world.agents_may_register.wait()
                    await self._register()
                if self.world.agents_are_shut_out:
                    raise OSError("the agent port is not reachable")
                await self._report()
            except (GRPCError, StreamTerminatedError, OSError):
                await asyncio.sleep(0.02)
            finally:
                self.connected = False
                if self._channel is not None:
                    self._channel.close()

    async def _register(self) -> None:
        token = self._request.nonce
        request = registration_pb2.RegisterAgentRequest(
            nonce=token,
            public_key_pem=keys.public_to_pem(keys.public_bytes(self.key)),
            proof=proof.prove_registration(self.key, cluster=CLUSTER, nonce=token),
            ipv4=self._vm.ip4,
            hostname=self._vm.hostname,
        )
        self._channel = self.world.channel(Service.REGISTRATION)
        stub = registration_grpc.RegistrationServiceStub(self._channel)
        self.certificate_pem = (await call(stub.RegisterAgent, request, timeout=SECONDS)).certificate_pem
        self._channel.close()

    async def _report(self) -> None:
        self._channel = self.world.channel(Service.AGENT, certificate_pem=self.certificate_pem, key=self.key)
        stub = agent_grpc.AgentServiceStub(self._channel)
        async with stub.SubmitHealthReport.open() as stream:
            await stream.send_request()
            self._outgoing = asyncio.Queue()
            self.report()
            beside = [asyncio.create_task(self._send(stream)), asyncio.create_task(self._receive(stub))]
            try:
                while (answer := await stream.recv_message()) is not None:
                    self.connected = True
                    if self.knows_readiness and answer.HasField("checks"):
                        self.checks = answer.checks
                        self.report()
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    async def _receive(self, stub: agent_grpc.AgentServiceStub) -> None:
        arriving: dict[str, bytes] = {}
        async with stub.ReceiveFiles.open() as stream:
            have = [
                agent_pb2.FileState(name=name, sha256=hashlib.sha256(content).hexdigest())
                for name, content in self.files.items()
            ]
            await stream.send_message(agent_pb2.ReceiveFilesRequest(config_hash=self.config_hash, files=have), end=True)
            while (message := await stream.recv_message()) is not None:
                if message.WhichOneof("kind") == "file":
                    arriving[message.file.name] = message.file.content
                else:
                    self.files, arriving = arriving, {}
                    self.config_hash = message.commit.config_hash
                    self.report()

    async def _send(self, stream: Any) -> None:
        while True:
            await stream.send_message(await self._outgoing.get())


def states(world: World, group: str, tenant: str = "default") -> Mapping[InstanceId, str]:
    """The instances of a group, as the leader has them in mind."""
    return {
        instance.id: instance.state.value
        for instance in world.leader.shard.instances.values()
        if (instance.tenant, instance.group) == (tenant, group)
    }


def ready(world: World, group: str, tenant: str = "default") -> int:
    """How many instances of a group are ready."""
    instances = world.leader.shard.instances
    return sum(world.leader.lead_now.readiness.is_ready(instances[id]) for id in states(world, group, tenant))


def new_uuid() -> str:
    """A UUIDv7 as callers of CreateInstance make them."""
    made = ids.IdMaker(wall=SystemClock().wall, bits=SystemRng().bits).make(ids.Kind("web"))
    return str(uuid.UUID(int=ids.uuid_of(made)))
