"""Thousands of light agents in this process, connected over real TLS to a server in another process.

    async with fleet.serving(fleet.Setup(groups=20, size=50)) as server:
        await server.connect_all()
        server.agents[0].notice(agent_pb2.Notice.SPOT_TERMINATION)

A light agent has a certificate, one connection and the three streams of a real one, and reconnects within the spread that
the server requested. It has no disk and no process of its own, so that the server is what is measured.
"""

import asyncio
import contextlib
import gc
import random
import resource
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from bench import ports
from bench.fleet_server import CLUSTER, SHARD, STANDBY_OFFSET, TIMEOUT_SECONDS, agent_key
from bench.measured import Measured, start
from bench.pair import SETTLE_SECONDS
from nstance.clock import SystemClock
from nstance.config.addresses import Service
from nstance.model.ids import DEFAULT_TENANT, InstanceId, ShardId
from nstance.pki import ca, keys, names
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import tls
from nstance.wire.channel import Channel, ExpectedServer

CLOCK = SystemClock()
CONNECTION_ERRORS = (GRPCError, StreamTerminatedError, ProtocolError, OSError)
BACK_OFF_SECONDS = 1.0
MAX_CONNECTING = 64


class LightAgent:
    def __init__(self, id: str, group: str, *, server: "Server") -> None:
        self.id, self.group = id, group
        self.connected = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.spread = 0.0
        self.connected_at: float | None = None
        self.refused = False  # the server denied its certificate
        self._server = server
        self._context: Any = None
        self._channel: Channel | None = None
        self._stream: Any = None
        self._sequence = 0
        self.config_hash = ""
        self._checks = agent_pb2.CheckConfig()
        self.failing = False  # its first check
        self._answered = asyncio.Event()
        self._responsive = asyncio.Event()
        self._responsive.set()

    def start(self) -> None:
        if self._context is None:
            self._context = self._server.context_for(self.id)
        self.task = asyncio.create_task(self._run())

    async def report(self) -> None:
        """Send a report and wait for its answer."""
        self._sequence += 1
        self._answered.clear()
        report = agent_pb2.HealthReport(
            instance_id=self.id,
            boot_id="boot",
            sequence=self._sequence,
            version="0.1.0",
            uptime_seconds=1000.0,
            cpu_percent=12.5,
            memory_percent=40.0,
            disk_percent=30.0,
            load1=0.5,
            config_hash=self.config_hash,
            received_hash=self.config_hash,
            checks_hash=self._checks.hash,
            checks=self._results(),
        )
        await self._stream.send_message(agent_pb2.AgentMessage(report=report))
        await self._answered.wait()

    def _results(self) -> list[agent_pb2.CheckResult]:
        return [
            agent_pb2.CheckResult(name=check.name, passing=not (self.failing and number == 0), since_unix_ms=1)
            for number, check in enumerate(self._checks.checks)
        ]

    async def notice(self, kind: "agent_pb2.Notice.Kind.ValueType") -> float:
        """Returns when it was sent."""
        at = time.monotonic()
        await self._stream.send_message(agent_pb2.AgentMessage(notice=agent_pb2.Notice(kind=kind)))
        return at

    def die(self, *, reset: bool) -> float:
        """Close as the kernel does for a killed process, with FIN or RST. Returns when."""
        assert self.task is not None
        assert self._channel is not None
        assert self._channel._protocol is not None
        wire = self._channel._protocol.transport.get_extra_info("socket")
        if reset:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.task.cancel()
        at = time.monotonic()
        self._channel.close()
        return at

    def hang(self) -> float:
        """Keep the connection open and send nothing, as a VM that swaps. Returns when."""
        assert self._channel is not None
        protocol = self._channel._protocol
        assert protocol is not None
        self._responsive.clear()
        protocol.transport.pause_reading()
        if protocol._timer is not None:
            protocol._timer.cancel()
        return time.monotonic()

    def recover(self) -> None:
        """Connect again after a hang."""
        assert self._channel is not None
        self._responsive.set()
        self._channel.close()

    async def _run(self) -> None:
        while True:
            lost = self.connected.is_set()
            self.connected.clear()
            await self._responsive.wait()
            wait = random.uniform(0.0, self.spread) if lost else 0.0
            while True:
                await asyncio.sleep(wait)
                try:
                    async with self._server.connecting:
                        await self._connect()
                    break
                except CONNECTION_ERRORS as problem:
                    self._close()
                    if isinstance(problem, GRPCError) and problem.status is Status.PERMISSION_DENIED:
                        self.refused = True
                        return
                    wait = random.uniform(0.2, BACK_OFF_SECONDS)
            assert self._channel is not None
            stub = agent_grpc.AgentServiceStub(self._channel)
            streams = [
                asyncio.create_task(stream) for stream in (self._receive_files(stub), self._receive_key_requests(stub))
            ]
            try:
                while (answer := await self._stream.recv_message()) is not None:
                    self._on_answer(answer)
                    self._answered.set()
            except CONNECTION_ERRORS:
                pass
            finally:
                for task in streams:
                    task.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
                self._close()

    async def _connect(self) -> None:
        self._channel = self._server.channel(self._context)
        stub = agent_grpc.AgentServiceStub(self._channel)
        self._stream = stub.SubmitHealthReport.open()
        await self._stream.__aenter__()
        self._sequence += 1
        report = agent_pb2.HealthReport(
            boot_id="boot",
            sequence=self._sequence,
            config_hash=self.config_hash,
            received_hash=self.config_hash,
            checks_hash=self._checks.hash,
            checks=self._results(),
        )
        await self._stream.send_message(agent_pb2.AgentMessage(report=report))
        answer = await self._stream.recv_message()
        if answer is None:
            raise ConnectionAbortedError("the server closed the stream")
        self._on_answer(answer)
        self.connected_at = time.monotonic()
        self.connected.set()

    def _on_answer(self, answer: agent_pb2.HealthAnswer) -> None:
        self.spread = answer.reconnect_spread_ms / 1000
        if answer.HasField("checks"):
            self._checks = answer.checks

    async def _receive_files(self, stub: agent_grpc.AgentServiceStub) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with stub.ReceiveFiles.open() as stream:
                request = agent_pb2.ReceiveFilesRequest(config_hash=self.config_hash)
                await stream.send_message(request, end=True)
                while (message := await stream.recv_message()) is not None:
                    if message.WhichOneof("kind") == "commit":
                        self.config_hash = message.commit.config_hash

    async def _receive_key_requests(self, stub: agent_grpc.AgentServiceStub) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with stub.ReceiveKeyRequests.open() as stream:
                await stream.send_message(agent_pb2.ReceiveKeyRequestsRequest(), end=True)
                while await stream.recv_message() is not None:
                    pass

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()


class Server(Measured):
    """The server process and its agents."""

    def __init__(self, process: asyncio.subprocess.Process, settings: dict[str, Any], log: Path) -> None:
        super().__init__(process, log)
        self.agents: list[LightAgent] = []
        self.settings = settings
        self.connecting = asyncio.Semaphore(MAX_CONNECTING)
        self.ca: ca.CertificateAuthority

    async def ready(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            agents = await self.agents_known
            answer = await self.ask("lead")
        self.ca = ca.load_ca(answer["ca"], answer["ca_key"])
        self.agents = [LightAgent(id, group, server=self) for id, group in agents]

    @contextlib.asynccontextmanager
    async def standby(self) -> AsyncIterator[Measured]:
        """A second server process that is a member of the lease. Both need a bucket that they can share."""
        log = self.log.with_name("standby.log")
        standby = Measured(await start({**self.settings, "standby": True}, log), log)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await standby.agents_known
                await self.ask("member")
            await asyncio.sleep(SETTLE_SECONDS)
            yield standby
        except BaseException:
            standby.print_log_tail()
            raise
        finally:
            await standby.close()

    async def connect(self, agents: Iterable[LightAgent]) -> None:
        chosen = list(agents)
        for number, agent in enumerate(chosen):
            agent.start()
            if number % 50 == 49:
                await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.gather(*(agent.connected.wait() for agent in chosen))

    async def connect_all(self) -> None:
        await self.connect(self.agents)

    def context_for(self, id: str) -> Any:
        key = agent_key(self.settings["seed"], id)
        now = CLOCK.wall()
        issued = self.ca.issue_client(
            names.Agent(CLUSTER, DEFAULT_TENANT, InstanceId(id)),
            keys.public_bytes(key),
            serial=random.getrandbits(120) + 1,
            issued=now,
            expires=now + 86400,
        )
        return tls.client_context(
            ca_pem=self.ca.pem, certificate_pem=issued.pem, key_pem=keys.private_to_pem(key).encode()
        )

    def channel(self, context: Any, service: Service = Service.AGENT) -> Channel:
        port = self.settings["base"] + list(Service).index(service)
        return Channel(
            [f"127.0.0.1:{port}", f"127.0.0.1:{port + STANDBY_OFFSET}"],
            context=context,
            expect=ExpectedServer(CLUSTER, ShardId(self.settings["shard"])),
            clock=CLOCK,
        )

    async def close(self) -> None:
        tasks = [agent.task for agent in self.agents if agent.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the server and its shard are made of."""

    groups: int
    size: int
    settled: bool = True  # the groups already have their size
    files: bool = False  # the bucket is a directory, which a standby can share, instead of memory
    checks: int = 0  # of each instance
    profile: str = ""
    retention: float = 1800.0
    exact_memory: bool = False  # the server reports its memory to the byte, and is slower
    instance_types: tuple[str, ...] = ("small",)
    capacity_retry: str = "3m"
    ec2: str = ""  # the URL of a `bench.ec2_endpoint` that is its cloud
    google: str = ""  # the URL of a `bench.gcp` that is
    shard: str = SHARD
    bucket: str = ""  # a directory that several shards share
    first_vm: int = 0  # clouds of several shards number their VMs from there


@contextlib.asynccontextmanager
async def serving(setup: Setup) -> AsyncIterator[Server]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        settings = {
            **asdict(setup),
            "base": _free_base(),
            "seed": f"{random.getrandbits(64):x}",
            "dir": folder,
            "bucket": setup.bucket or (f"{folder}/bucket" if setup.files else ""),
            "standby": False,
        }
        log = Path(folder, "server.log")
        server = Server(await start(settings, log), settings, log)
        gc.disable()  # a collection would stop all agents for seconds
        try:
            await server.ready()
            yield server
        except BaseException:
            server.print_log_tail()
            raise
        finally:
            await server.close()
            gc.enable()
            gc.collect()


def _free_base() -> int:
    numbers = range(len(Service))
    return ports.free_base([*numbers, *(STANDBY_OFFSET + number for number in numbers)])
