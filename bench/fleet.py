"""Thousands of light agents in this process, over real TLS, and the server process that they belong to.

    async with fleet.serving(groups=20, size=50) as server:
        await server.connect_all()
        server.agents[0].notice(agent_pb2.Notice.SPOT_TERMINATION)

A light agent has a certificate, one connection, the three streams of a real one, and comes back after a loss within the
spread that the server asked for. It has no disk and no process of its own, so that the server is what is measured.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from bench import ports
from bench.fleet_server import CLUSTER, PATIENCE, SHARD, STANDBY_OFFSET, agent_key
from nstance.clock import SystemClock
from nstance.config.addresses import Service
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.pki import ca, keys, names
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import tls
from nstance.wire.channel import Channel

CLOCK = SystemClock()
LOST = (GRPCError, StreamTerminatedError, ProtocolError, OSError)
BACK_OFF = 1.0
ENTERING_AT_ONCE = 64
QUIET = 0.05  # seconds of processor time in half a second


class LightAgent:
    def __init__(self, id: str, group: str, *, server: "Server") -> None:
        self.id, self.group = id, group
        self.connected = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.spread = 0.0
        self.back: float | None = None  # when it was connected last
        self.refused = False  # the server does not want it any more
        self._server = server
        self._context: Any = None
        self._channel: Channel | None = None
        self._stream: Any = None
        self._sequence = 0
        self._config_hash = ""
        self._answered = asyncio.Event()
        self._voice = asyncio.Event()
        self._voice.set()

    def start(self) -> None:
        if self._context is None:
            self._context = self._server.context_for(self.id)
        self.task = asyncio.create_task(self._live())

    async def report(self) -> None:
        """One report, and its answer."""
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
            config_hash=self._config_hash,
        )
        await self._stream.send_message(agent_pb2.AgentMessage(report=report))
        await self._answered.wait()

    async def notice(self, kind: "agent_pb2.Notice.Kind.ValueType") -> float:
        """When it was sent."""
        at = time.monotonic()
        await self._stream.send_message(agent_pb2.AgentMessage(notice=agent_pb2.Notice(kind=kind)))
        return at

    def die(self, *, reset: bool) -> float:
        """As a process that is killed, by the kernel's FIN or, with unread data, its RST; when."""
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

    def fall_silent(self) -> float:
        """Its connection stays open, and nothing comes out of it any more: a VM that swaps itself to death."""
        assert self._channel is not None
        protocol = self._channel._protocol
        assert protocol is not None
        self._voice.clear()
        protocol.transport.pause_reading()
        if protocol._timer is not None:
            protocol._timer.cancel()
        return time.monotonic()

    def come_back(self) -> None:
        """From silence, with a new connection."""
        assert self._channel is not None
        self._voice.set()
        self._channel.close()

    async def _live(self) -> None:
        while True:
            lost = self.connected.is_set()
            self.connected.clear()
            await self._voice.wait()
            wait = random.uniform(0.0, self.spread) if lost else 0.0
            while True:
                await asyncio.sleep(wait)
                try:
                    async with self._server.entering:
                        await self._enter()
                    break
                except LOST as problem:
                    self._close()
                    if isinstance(problem, GRPCError) and problem.status is Status.PERMISSION_DENIED:
                        self.refused = True
                        return
                    wait = random.uniform(0.2, BACK_OFF)
            assert self._channel is not None
            stub = agent_grpc.AgentServiceStub(self._channel)
            streams = [asyncio.create_task(stream) for stream in (self._files(stub), self._keys(stub))]
            try:
                while (answer := await self._stream.recv_message()) is not None:
                    self.spread = answer.reconnect_spread_ms / 1000
                    self._answered.set()
            except LOST:
                pass
            finally:
                for task in streams:
                    task.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
                self._close()

    async def _enter(self) -> None:
        self._channel = self._server.channel(self._context)
        stub = agent_grpc.AgentServiceStub(self._channel)
        self._stream = stub.SubmitHealthReport.open()
        await self._stream.__aenter__()
        self._sequence += 1
        report = agent_pb2.HealthReport(boot_id="boot", sequence=self._sequence, config_hash=self._config_hash)
        await self._stream.send_message(agent_pb2.AgentMessage(report=report))
        answer = await self._stream.recv_message()
        if answer is None:
            raise ConnectionAbortedError("the server ended the stream")
        self.spread = answer.reconnect_spread_ms / 1000
        self.back = time.monotonic()
        self.connected.set()

    async def _files(self, stub: agent_grpc.AgentServiceStub) -> None:
        with contextlib.suppress(*LOST):
            async with stub.ReceiveFiles.open() as stream:
                request = agent_pb2.ReceiveFilesRequest(config_hash=self._config_hash)
                await stream.send_message(request, end=True)
                while (message := await stream.recv_message()) is not None:
                    if message.WhichOneof("kind") == "commit":
                        self._config_hash = message.commit.config_hash

    async def _keys(self, stub: agent_grpc.AgentServiceStub) -> None:
        with contextlib.suppress(*LOST):
            async with stub.ReceiveKeyRequests.open() as stream:
                await stream.send_message(agent_pb2.ReceiveKeyRequestsRequest(), end=True)
                while await stream.recv_message() is not None:
                    pass

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()


class Server:
    """The process with the server in it, and its fleet."""

    def __init__(self, process: asyncio.subprocess.Process, base: int, seed: str) -> None:
        self.agents: list[LightAgent] = []
        self.creates: list[tuple[float, str, str]] = []  # when, which instance, of which group
        self.deletes: dict[str, float] = {}
        self.base, self.seed = base, seed
        self.entering = asyncio.Semaphore(ENTERING_AT_ONCE)
        self.ca: ca.CertificateAuthority
        self._process = process
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._ended: RuntimeError | None = None
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())
        self._greeted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        async with asyncio.timeout(PATIENCE):
            fleet = await self._greeted
            led = await self.ask("lead", name="a")
        self.ca = ca.load_ca(led["ca"], led["ca_key"])
        self.agents = [LightAgent(id, group, server=self) for id, group in fleet]

    async def ask(self, do: str, **words: Any) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        self._asked += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies[self._asked] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": self._asked, "do": do, **words}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def quiet(self) -> dict[str, Any]:
        """Wait until the server has done what it had to do; its usage then."""
        before = await self.ask("usage")
        while True:
            await asyncio.sleep(0.5)
            after = await self.ask("usage")
            if after["cpu"] - before["cpu"] < QUIET:
                return after
            before = after

    async def connect(self, agents: Iterable[LightAgent]) -> None:
        chosen = list(agents)
        for number, agent in enumerate(chosen):
            agent.start()
            if number % 50 == 49:
                await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(agent.connected.wait() for agent in chosen))

    async def connect_all(self) -> None:
        await self.connect(self.agents)

    async def created(self, group: str, since: float, *, seconds: float = 10.0) -> float:
        """When a VM of the group was asked for, after that moment."""
        async with asyncio.timeout(seconds), self._news:
            while True:
                for at, _, of in reversed(self.creates):
                    if at < since:
                        break
                    if of == group:
                        return at
                await self._news.wait()

    async def count_created(self, count: int) -> None:
        """Until so many VMs have been asked for."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.creates) >= count)

    async def deleted(self, id: str, *, seconds: float) -> float:
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: id in self.deletes)
            return self.deletes[id]

    def context_for(self, id: str) -> Any:
        key = agent_key(self.seed, id)
        now = CLOCK.wall()
        issued = self.ca.issue_agent(
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
        port = self.base + list(Service).index(service)
        return Channel(
            [f"127.0.0.1:{port}", f"127.0.0.1:{port + STANDBY_OFFSET}"],
            context=context,
            expect_cluster=CLUSTER,
            expect_shard=SHARD,
            clock=CLOCK,
        )

    async def close(self) -> None:
        tasks = [agent.task for agent in self.agents if agent.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "agents" in said and "reply" not in said:
                self._greeted.set_result(said["agents"])
            elif "reply" in said:
                self._reply(said)
            else:
                await self._hear(said)
        self._ended = RuntimeError("the measured server ended; its log says why")
        for waiting in [self._greeted, *self._replies.values()]:
            if not waiting.done():
                waiting.set_exception(self._ended)

    def _reply(self, said: dict[str, Any]) -> None:
        waiting = self._replies.pop(said.pop("reply"))
        if "error" in said:
            waiting.set_exception(RuntimeError(said["error"]))
        elif not waiting.done():
            waiting.set_result(said)

    async def _hear(self, said: dict[str, Any]) -> None:
        async with self._news:
            if said["event"] == "create":
                self.creates.append((said["at"], said["id"], said["group"]))
            else:
                self.deletes.setdefault(said["id"], said["at"])
            self._news.notify_all()


@contextlib.asynccontextmanager
async def serving(*, groups: int, size: int, settled: bool = True, profile: str = "") -> AsyncIterator[Server]:
    """`settled`: the groups are already at their size; otherwise the server has yet to fill them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        base, seed = _free_base(), f"{random.getrandbits(64):x}"
        told = {"groups": groups, "size": size, "settled": settled, "base": base, "seed": seed, "dir": folder}
        log = Path(folder, "server.log")
        process = await _start({**told, "profile": profile}, log)
        server = Server(process, base, seed)
        try:
            await server.ready()
            yield server
        except BaseException:
            _show_end(log)
            raise
        finally:
            await server.close()


def _show_end(log: Path) -> None:
    print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)


async def _start(told: dict[str, Any], log: Path) -> asyncio.subprocess.Process:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.fleet_server",
            json.dumps(told),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=descriptor,
            limit=1 << 24,
        )
    finally:
        os.close(descriptor)


def _free_base() -> int:
    numbers = range(len(Service))
    return ports.free_base([*numbers, *(STANDBY_OFFSET + number for number in numbers)])
