"""A server for agents, for tests: real TLS, real certificates, real gRPC, and behavior that a test can script.

It registers agents with a nonce that it signed, and records what they send. `scripts` hold what the next calls shall meet; an
empty script means that the server behaves well.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from grpclib.exceptions import GRPCError

from nstance.clock import SystemClock, SystemRng
from nstance.model import ids
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ServerId, ShardId, TenantId
from nstance.pki import ca, keys, names, nonce, proof
from nstance.v1 import agent_grpc, agent_pb2, registration_grpc, registration_pb2
from nstance.wire import limits, peer, status, tls
from nstance.wire.dispatch import Table, methods_of
from nstance.wire.listener import Listener

CLUSTER = ClusterId("test-cluster")
SHARD = ShardId("dev-1")
TENANT = TenantId("default")
DAY = 86400.0

T = TypeVar("T")


@dataclass
class Received:
    """What agents have sent, in order."""

    registrations: list[registration_pb2.RegisterAgentRequest] = field(default_factory=list)
    connections: int = 0  # health streams opened
    messages: list[agent_pb2.AgentMessage] = field(default_factory=list)
    keys: list[dict[str, str]] = field(default_factory=list)
    file_requests: list[agent_pb2.ReceiveFilesRequest] = field(default_factory=list)
    key_streams: int = 0
    renewals: int = 0

    @property
    def reports(self) -> list[agent_pb2.HealthReport]:
        return [message.report for message in self.messages if message.WhichOneof("kind") == "report"]

    @property
    def notices(self) -> list[agent_pb2.Notice]:
        return [message.notice for message in self.messages if message.WhichOneof("kind") == "notice"]

    @property
    def goodbyes(self) -> list[agent_pb2.Goodbye]:
        return [message.goodbye for message in self.messages if message.WhichOneof("kind") == "goodbye"]


@dataclass
class Scripts:
    """What the next calls meet: an error to raise, or None for a call that goes well."""

    register: deque[GRPCError | None] = field(default_factory=deque)
    lose_register_replies: int = 0  # registered, but the connection breaks before the answer
    health: deque[GRPCError | None] = field(default_factory=deque)
    files: deque[GRPCError | None] = field(default_factory=deque)
    key_requests: deque[GRPCError | None] = field(default_factory=deque)
    submit_keys: deque[GRPCError | None] = field(default_factory=deque)
    renew: deque[GRPCError | None] = field(default_factory=deque)
    silent: bool = False  # answers no health report


def _meet(script: deque[GRPCError | None]) -> None:
    if script and (error := script.popleft()) is not None:
        raise error


class AgentServer:
    def __init__(self, *, cluster: ClusterId = CLUSTER, shard: ShardId = SHARD) -> None:
        self.rng, self.clock = SystemRng(), SystemClock()
        self.shard = shard
        self.ca = ca.new_ca(cluster, now=self.clock.wall(), rng=self.rng)
        self.cluster = cluster
        self.nonce_key = keys.generate(self.rng)
        self.kid = nonce.key_id(keys.public_bytes(self.nonce_key))
        self.last_seen, self.scripts = Received(), Scripts()
        self.renewal_bundle = ""  # other than the CA
        self.registered_age = 0.0  # how old a certificate is when it is issued at registration
        self.agent_life = 30 * DAY
        self.report_interval, self.reconnect_spread = 0.0, 0.0
        self.hold_goodbyes: asyncio.Event | None = None  # a health stream is not ended after a goodbye before this
        self.checks: agent_pb2.CheckConfig | None = None  # with the next answer
        self.key_names: Sequence[str] = ()
        self.sets: list[agent_pb2.FileMessage] = []  # sent to each new stream, and pushed by `push`
        self._bound: dict[str, tuple[bytes, registration_pb2.RegisterResponse]] = {}
        self._file_streams: set[asyncio.Queue[list[agent_pb2.FileMessage]]] = set()
        self._key_streams: set[asyncio.Queue[Sequence[str]]] = set()
        self._ports = (0, 0)
        self._ids = ids.IdMaker(wall=self.clock.wall, bits=self.rng.bits)

    # Running.

    async def start(self) -> None:
        """On the same ports as before, if it was started before."""
        key = keys.generate(self.rng)
        issued = self.ca.issue_server(
            names.Server(self.cluster, self.shard, ServerId("srv-1")),
            keys.public_bytes(key),
            serial=ca.new_serial(self.rng),
            issued=self.clock.wall(),
            expires=self.clock.wall() + DAY,
        )
        pem, key_pem = issued.pem, keys.private_to_pem(key).encode()
        self.registration = Listener(
            Table(methods=methods_of([_Registration(self)]), limits=limits.REGISTRATION),
            context=lambda: tls.server_context(certificate_pem=pem, key_pem=key_pem, ca_pem=None),
            clock=self.clock,
        )
        self.agents = Listener(
            Table(
                methods=methods_of([_Agents(self)]), limits=limits.AGENT, role=names.Role.AGENT, cluster=self.cluster
            ),
            context=lambda: tls.server_context(certificate_pem=pem, key_pem=key_pem, ca_pem=self.ca.pem),
            clock=self.clock,
        )
        await self.registration.start("127.0.0.1", self._ports[0])
        await self.agents.start("127.0.0.1", self._ports[1])
        self._ports = (self.registration.port, self.agents.port)

    async def stop(self) -> None:
        await self.agents.close()
        await self.registration.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["AgentServer"]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    # What a provider does for a new instance.

    def new_instance(self) -> InstanceId:
        return self._ids.make(Kind("etc"))

    def nonce(self, instance: InstanceId) -> str:
        now = int(self.clock.wall())
        claims = nonce.AgentClaims(
            jti=nonce.new_jti(self.rng),
            cluster=self.cluster,
            tenant=TENANT,
            instance=instance,
            shard=self.shard,
            group=GroupName("test"),
            on_demand=False,
            config_hash="sha256:0",
            issued=now,
            expires=now + 300,
        )
        return nonce.sign(claims, self.nonce_key, self.kid)

    def prepare(self, home: Path, instance: InstanceId) -> dict[str, str]:
        """Write what userdata writes; returns the agent's environment."""
        (home / "identity").mkdir(parents=True)
        (home / "identity" / "ca.crt").write_text(self.ca.pem)
        (home / "identity" / "nonce.jwt").write_text(self.nonce(instance) + "\n")
        return {
            "NSTANCE_SERVER_REGISTRATION_ADDR": f"127.0.0.1:{self._ports[0]}",
            "NSTANCE_SERVER_AGENT_ADDR": f"127.0.0.1:{self._ports[1]}",
            "NSTANCE_INSTANCE_ID": instance,
            "NSTANCE_IDENTITY_DIR": str(home / "identity"),
            "NSTANCE_KEYS_DIR": str(home / "keys"),
            "NSTANCE_RECV_DIR": str(home / "recv"),
            "NSTANCE_PROVIDER": "none",  # wherever the tests run
        }

    # What a leader does.

    def file_set(
        self, files: dict[str, bytes], config_hash: str, *, count: int | None = None
    ) -> list[agent_pb2.FileMessage]:
        return [
            *(agent_pb2.FileMessage(file=agent_pb2.File(name=name, content=body)) for name, body in files.items()),
            agent_pb2.FileMessage(
                commit=agent_pb2.Commit(config_hash=config_hash, files=len(files) if count is None else count)
            ),
        ]

    def push(self, files: dict[str, bytes], config_hash: str, *, count: int | None = None) -> None:
        """To the agents that are connected, and to those that connect later."""
        self.sets = self.file_set(files, config_hash, count=count)
        for queue in self._file_streams:
            queue.put_nowait(self.sets)

    def ask_keys(self, wanted: Sequence[str]) -> None:
        self.key_names = wanted
        for queue in self._key_streams:
            queue.put_nowait(wanted)

    def cut(self) -> None:
        """End every agent's connection as a crash would."""
        for connection in self.agents.connections:
            connection.abort()

    def issue(
        self, instance: InstanceId, public_key: bytes, *, age: float = 0.0, bundle: str = ""
    ) -> registration_pb2.RegisterResponse:
        begin = self.clock.wall() - age
        issued = self.ca.issue_client(
            names.Agent(self.cluster, TENANT, instance),
            public_key,
            serial=ca.new_serial(self.rng),
            issued=begin,
            expires=begin + self.agent_life,
        )
        return registration_pb2.RegisterResponse(
            certificate_pem=issued.pem, expires_unix=issued.expires, ca_bundle_pem=bundle or self.ca.pem
        )


class _Registration(registration_grpc.RegistrationServiceBase):
    def __init__(self, owner: AgentServer) -> None:
        self._owner = owner

    async def RegisterAgent(self, stream: Any) -> None:
        owner = self._owner
        request = await stream.recv_message()
        owner.last_seen.registrations.append(request)
        _meet(owner.scripts.register)
        try:
            claims = nonce.verify_agent(
                request.nonce,
                keys={owner.kid: keys.public_bytes(owner.nonce_key)},
                now=owner.clock.wall(),
                cluster=owner.cluster,
                shard=owner.shard,
            )
            public = keys.public_key_from_pem(request.public_key_pem)
            proof.check_registration(request.proof, public_key=public, cluster=owner.cluster, nonce=request.nonce)
        except ValueError as error:
            raise status.unauthenticated("invalid registration nonce") from error
        holder, response = owner._bound.setdefault(
            claims.jti, (public, owner.issue(claims.instance, public, age=owner.registered_age))
        )
        if holder != public:
            raise status.unauthenticated("invalid registration nonce")
        if owner.scripts.lose_register_replies:
            owner.scripts.lose_register_replies -= 1
            peer.connection_of(stream).abort()
            return
        await stream.send_message(response)

    async def RegisterOperator(self, stream: Any) -> None:
        raise status.unimplemented("this server is for agents")


class _Agents(agent_grpc.AgentServiceBase):
    def __init__(self, owner: AgentServer) -> None:
        self._owner = owner

    async def ReceiveKeyRequests(self, stream: Any) -> None:
        owner = self._owner
        await stream.recv_message()
        owner.last_seen.key_streams += 1
        _meet(owner.scripts.key_requests)
        queue: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        owner._key_streams.add(queue)
        try:
            if owner.key_names:
                queue.put_nowait(owner.key_names)
            while True:
                await stream.send_message(agent_pb2.KeyRequest(names=await queue.get()))
        finally:
            owner._key_streams.discard(queue)

    async def SubmitPublicKeys(self, stream: Any) -> None:
        request = await stream.recv_message()
        _meet(self._owner.scripts.submit_keys)
        self._owner.last_seen.keys.append({key.name: key.pem for key in request.keys})
        await stream.send_message(agent_pb2.SubmitPublicKeysResponse())

    async def ReceiveFiles(self, stream: Any) -> None:
        owner = self._owner
        owner.last_seen.file_requests.append(await stream.recv_message())
        _meet(owner.scripts.files)
        queue: asyncio.Queue[list[agent_pb2.FileMessage]] = asyncio.Queue()
        owner._file_streams.add(queue)
        try:
            if owner.sets:
                queue.put_nowait(owner.sets)
            while True:
                for message in await queue.get():
                    await stream.send_message(message)
        finally:
            owner._file_streams.discard(queue)

    async def SubmitHealthReport(self, stream: Any) -> None:
        owner = self._owner
        owner.last_seen.connections += 1
        _meet(owner.scripts.health)
        while (message := await stream.recv_message()) is not None:
            owner.last_seen.messages.append(message)
            if message.WhichOneof("kind") == "goodbye" and owner.hold_goodbyes is not None:
                await owner.hold_goodbyes.wait()
            if message.WhichOneof("kind") == "report" and not owner.scripts.silent:
                await stream.send_message(
                    agent_pb2.HealthAnswer(
                        sequence=message.report.sequence,
                        server_time_unix_ms=int(owner.clock.wall() * 1000),
                        report_interval_ms=int(owner.report_interval * 1000),
                        reconnect_spread_ms=int(owner.reconnect_spread * 1000),
                        checks=owner.checks,
                    )
                )

    async def RenewCertificate(self, stream: Any) -> None:
        owner = self._owner
        await stream.recv_message()
        owner.last_seen.renewals += 1
        _meet(owner.scripts.renew)
        connection = peer.connection_of(stream)
        identity = connection.identity
        assert isinstance(identity, names.Agent)
        tls_object = connection._transport.get_extra_info("ssl_object")
        public = _public_key_of(tls_object.getpeercert(True))
        await stream.send_message(owner.issue(identity.id, public, bundle=owner.renewal_bundle))


def _public_key_of(der: bytes) -> bytes:
    from cryptography import x509

    return keys.public_bytes(x509.load_der_x509_certificate(der).public_key())  # type: ignore[arg-type]
