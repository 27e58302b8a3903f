"""Simulated agents, and the door through which they reach a server that leads.

Behind the door is the product: real nonces and keys go to its registrar, health streams to its agent service. Only the
network in between is imitated: a line can be reset, or fall silent, which looks alike from the server until it asks.
"""

import asyncio
import contextlib
import functools
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.model.ids import InstanceId, ProviderId
from nstance.pki import keys, names, proof
from nstance.providers import port
from nstance.server.api.agent_service import AgentService
from nstance.server.api.registrar import Registrar
from nstance.server.leader.context import TermContext
from nstance.sim.desired_groups import CLUSTER, SUSPECT_AFTER
from nstance.sim.rng import SeededRng
from nstance.v1 import agent_pb2, registration_pb2

if TYPE_CHECKING:
    from nstance.sim.server import SimServer
    from nstance.sim.world import World

DELAY = 0.002
CALL_TIMEOUT = 5.0
REOPEN = 0.5
ELSEWHERE = "203.0.113.8"


@functools.lru_cache(maxsize=4096)
def key_pair(number: int) -> tuple[Ed25519PrivateKey, bytes, str]:
    key = keys.generate(SeededRng(f"agent-key-{number}"))
    public = keys.public_bytes(key)
    return key, public, keys.public_to_pem(public)


class Line:
    """A connection as the server sees it: what the product expects of `wire.peer.Connection`."""

    refusal = None

    def __init__(self, door: "AgentPort", agent: "SimAgent") -> None:
        self.door = door
        self.agent = agent
        self.address = agent.address
        self.since = door.server.machine.monotonic()
        self.identity = names.Agent(CLUSTER, agent.request.tenant, agent.id)
        self.closed = asyncio.Event()
        self.certificate = lambda: agent.certificate
        self.serving: list[asyncio.Task[None]] = []
        self._stream = SimpleNamespace(connection=SimpleNamespace(peer=self))
        self._inbox: asyncio.Queue[agent_pb2.AgentMessage] = asyncio.Queue()

    @property
    def last_seen(self) -> float:
        machine, silent = self.door.server.machine, self.agent.silent_for()
        return machine.monotonic() - silent * machine.rate

    def abort(self) -> None:
        """The server ends it."""
        self.closed.set()
        self.door.lines.pop(self, None)
        for task in self.serving:
            task.cancel()
        self.agent.world.later(DELAY, self.agent.lost, self)

    # ---- a stream of it

    @property
    def stream(self) -> Any:
        return self

    async def send_initial_metadata(self) -> None:
        return

    async def send_message(self, message: object) -> None:
        return

    async def recv_message(self) -> agent_pb2.AgentMessage:
        return await self._inbox.get()

    def say(self, message: agent_pb2.AgentMessage) -> None:
        if not self.closed.is_set():
            self.door.server.later(DELAY, self._inbox.put_nowait, message)


class FileStream:
    """The stream on which a line gets its files."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._stream = line._stream
        self._done = 0.0

    async def recv_message(self) -> agent_pb2.ReceiveFilesRequest:
        return agent_pb2.ReceiveFilesRequest(config_hash=self._line.agent.installed)

    async def send_message(self, message: agent_pb2.FileMessage) -> None:
        agent, world = self._line.agent, self._line.agent.world
        if message.WhichOneof("kind") == "commit":
            # In the order of their coming.
            self._done = max(self._done + DELAY, world.now + world.random.uniform(0.05, 0.5))
            world.later(self._done - world.now, agent.install, self._line, message.commit.config_hash)


class AgentPort:
    """A `server.leader.environment.Port`: open while its server leads."""

    def __init__(self, server: "SimServer", lead: TermContext) -> None:
        self.server = server
        self.lead = lead
        self.lines: dict[Line, None] = {}
        self.opened = 0.0
        env = server.env
        self._registrar = Registrar(lead, server.operators, env.advertised, env.metrics, env.clock)
        self._api = AgentService(lead, lead.vm_requests, lead.file_sets, env.cache, env.clock)

    async def open(self) -> None:
        self.opened = self.server.world.now
        self.server.world.opened(self)

    async def close(self) -> None:
        self.server.world.closed(self)
        for line in list(self.lines):
            line.abort()

    def reset(self) -> None:
        """The process is gone: its kernel says so to everybody."""
        for line in list(self.lines):
            line.agent.world.later(DELAY, line.agent.lost, line)
        self.lines.clear()

    async def register(self, request: registration_pb2.RegisterAgentRequest, address: str) -> str:
        """What the agent is told: a certificate, or the name of a refusal. Raises TimeoutError."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            try:
                told = (await self._registrar.register_agent(request, address)).certificate_pem
            except GRPCError as refusal:
                told = refusal.status.name
            self.server.world.later(DELAY, lambda: None if answer.done() else answer.set_result(told))

        self.server.spawn(serve())
        async with asyncio.timeout(CALL_TIMEOUT):
            return await answer

    def connect(self, agent: "SimAgent") -> Line:
        line = Line(self, agent)
        self.lines[line] = None
        line.serving = [self.server.spawn(self._serve(line)), self.server.spawn(self._serve_files(line))]
        return line

    async def _serve_files(self, line: Line) -> None:
        """As an agent does: a stream that is refused is opened again while the connection stands."""
        while not line.closed.is_set():
            with contextlib.suppress(GRPCError):
                await self._api.ReceiveFiles(FileStream(line))
            await asyncio.sleep(REOPEN)

    async def _serve(self, line: Line) -> None:
        try:
            await self._api.SubmitHealthReport(line)
        except GRPCError as refusal:
            line.agent.refused = refusal.status
        finally:
            if not line.closed.is_set():
                line.abort()


class SimAgent:
    def __init__(
        self, world: "World", request: port.CreateRequest, vm: port.Vm, *, number: int, mute: bool, broken: bool
    ) -> None:
        self.world = world
        self.id: InstanceId = request.id
        self.provider_id = vm.provider_id
        self.request = request
        self.address = vm.ip4
        self.number = number
        self.mute = mute  # it never speaks: a bad image
        self.registered = False
        self.certificate: bytes | None = None  # DER
        self.forgetful = False  # its identity is lost: it can never come back
        self.alive = True
        self.refused: Status | None = None
        self.line: Line | None = None
        self.noticed: set[str] = set()
        self.installed = ""  # the hash of its files
        self.broken = broken  # it never becomes ready
        self.failing = False  # nor does it now
        self.ready_told: dict[
            AgentPort, tuple[float, float | None]
        ] = {}  # since when it said to be ready, and until when
        self._sequence = 0
        self._arrived: tuple[Line, str] | None = None  # what came while it was silent
        self.idle_since: float | None = None  # cut off or hung, since when
        self._well_since = world.now
        self._spoke: dict[AgentPort, float] = {}
        self._boot, self._sequence = 0, 0
        self._parted = asyncio.Event()
        self._heals = asyncio.Event()
        self._heals.set()
        self._task = world.start(self._live())

    # ---- what it can be asked

    def silent_for(self) -> float:
        """For how long its server has heard nothing."""
        return 0.0 if self.idle_since is None else self.world.now - self.idle_since

    def heard_by(self, door: "AgentPort") -> float:
        """When this leader heard it last, or began to listen."""
        if self.line is not None and self.line.door is door and self.idle_since is None:
            return self.world.now
        return max(self._spoke.get(door, 0.0), door.opened)

    def well_for(self) -> float:
        """For how long nothing has been wrong with it: it spoke, or could have, had anybody who leads been there."""
        if self.idle_since is not None or not self.registered or not self.alive:
            return 0.0
        return self.world.now - self._well_since

    def _spoken(self) -> None:
        """Something is about to happen to it: until now it was heard."""
        if self.line is not None and self.idle_since is None:
            self._spoke[self.line.door] = self.world.now

    # ---- files and readiness

    @property
    def is_ready(self) -> bool:
        return bool(self.installed) and not self.broken and not self.failing

    def seemed_ready(self, door: "AgentPort", *, within: float) -> float | None:
        """Since when it said to this leader that it is ready; None if it did not, lately."""
        since, until = self.ready_told.get(door, (0.0, -within))
        return since if until is None or until >= self.world.now - within else None

    def install(self, line: Line, hash: str) -> None:
        """The server sent files. What is lost with a connection is sent again on the next one."""
        if line.closed.is_set() or not self.alive:
            return
        if self.idle_since is not None:
            self._arrived = line, hash
            return
        self.installed = hash
        self.report()

    def fail_checks(self, failing: bool) -> None:
        if self.alive and self.failing is not failing:
            self.failing = failing
            self.report()

    def report(self) -> None:
        line = self.line
        if line is None or self.idle_since is not None or line.closed.is_set():
            return
        self._sequence += 1
        received = self.installed if self.is_ready else "not-ready"
        line.say(
            agent_pb2.AgentMessage(
                report=agent_pb2.HealthReport(
                    boot_id=f"{self.provider_id}-{self._boot}",
                    sequence=self._sequence,
                    config_hash=self.installed,
                    received_hash=received,
                )
            )
        )
        if not self.is_ready:
            self._unready(line.door)
        elif self.ready_told.get(line.door, (0.0, 0.0))[1] is not None:
            self.ready_told[line.door] = self.world.now, None

    def _unready(self, door: AgentPort) -> None:
        since, until = self.ready_told.get(door, (0.0, 0.0))
        if until is None:
            self.ready_told[door] = since, self.world.now

    # ---- what happens to it

    def fall_silent(self, seconds: float) -> None:
        """Its packets are lost in both directions, or it hangs."""
        if self.idle_since is not None:
            return
        self._spoken()
        self.idle_since = self.world.now
        self._heals.clear()
        self.world.later(seconds, self.heal)
        line = self.line
        if line is not None:  # the server asks for a sign of life, and ends the connection without one
            line.door.server.later(SUSPECT_AFTER, self._ended_for_silence, line, self.idle_since)

    def _ended_for_silence(self, line: Line, since: float) -> None:
        if self.idle_since == since and not line.closed.is_set():
            line.abort()

    def heal(self) -> None:
        if self.idle_since is not None and self.alive:
            self.idle_since = None
            self._well_since = self.world.now
            self._heals.set()
            arrived, self._arrived = self._arrived, None
            if arrived is not None:
                self.install(*arrived)
            self.report()

    def die(self, *, reset: bool) -> None:
        """Its VM runs no more. A VM that is torn down resets nothing."""
        self._spoken()
        self.alive = False
        self._task.cancel()
        line, self.line = self.line, None
        if self.idle_since is None:
            self.idle_since = self.world.now
        if line is not None and not line.closed.is_set():
            wait = DELAY if reset else SUSPECT_AFTER
            line.door.server.later(wait, lambda: None if line.closed.is_set() else line.abort())

    def lost(self, line: Line) -> None:
        self._unready(line.door)
        if self.line is line:
            self._spoken()
            self.line = None
            self.world.log("agent lost", self.id, line.door.server.name)
            self.world.on_moment("loss of an agent")
            self._parted.set()

    def restart(self, seconds: float) -> None:
        """It says goodbye and comes back."""
        line = self.line
        if line is None or self.idle_since is not None:
            return
        line.say(agent_pb2.AgentMessage(goodbye=agent_pb2.Goodbye(reason=agent_pb2.Goodbye.RESTART)))
        self._boot, self._sequence = self._boot + 1, 0
        line.door.server.later(2 * DELAY, lambda: None if line.closed.is_set() else line.abort())
        self.fall_silent(seconds)

    def forget(self) -> None:
        """It loses its state directory: the next registration is with another key."""
        self.number += 2000
        self.registered = False
        self.forgetful = True
        line = self.line
        if line is not None:
            line.door.server.later(DELAY, lambda: None if line.closed.is_set() else line.abort())

    def copy_identity(self, seconds: float) -> "SimAgent":
        """Somebody runs a second agent with its identity, for so long, on another machine."""
        elsewhere = port.Vm(
            id=self.id, provider_id=ProviderId(f"copy-of-{self.provider_id}"), status=port.Status.RUNNING, ip4=ELSEWHERE
        )
        copy = SimAgent(self.world, self.request, elsewhere, number=self.number, mute=False, broken=False)
        copy.registered = True
        copy.ready_told = self.ready_told  # nobody can tell which of the two says it
        self.world.later(seconds, lambda: copy.die(reset=True))
        return copy

    def tell(self, kind: str, deadline: float) -> bool:
        """A notice of the cloud's; says whether somebody could hear it."""
        line = self.line
        if line is None or self.idle_since is not None:
            return False
        self.noticed.add(kind)
        milliseconds = int((line.door.server.machine.wall() + deadline) * 1000)
        notice = agent_pb2.Notice(kind=agent_pb2.Notice.Kind.Value(kind), deadline_unix_ms=milliseconds)
        line.say(agent_pb2.AgentMessage(notice=notice))
        return True

    # ---- its life

    async def _live(self) -> None:
        world = self.world
        while not self.mute:
            await self._heals.wait()
            door = world.find_door()
            if door is None:
                await asyncio.sleep(world.random.uniform(0.2, 1.2))
            elif door.server.machine.stopped:
                await asyncio.sleep(3.0)  # nobody answers there
            elif not self.registered:
                await self._register(door)
            else:
                await self._stay(door)

    async def _register(self, door: AgentPort) -> None:
        world = self.world
        key, public, pem = key_pair(self.number)
        request = registration_pb2.RegisterAgentRequest(
            nonce=self.request.nonce,
            public_key_pem=pem,
            proof=proof.prove_registration(key, cluster=CLUSTER, nonce=self.request.nonce),
            hostname=self.id,
        )
        try:
            told = await door.register(request, self.address)
        except TimeoutError:
            world.count("agent registration without answer")
            await asyncio.sleep(world.random.uniform(0.1, 1.0))
            return
        if told.startswith("-----"):
            self.registered = True
            self.certificate = ssl.PEM_cert_to_DER_cert(told)
            self._spoke[door] = self._well_since = world.now
            world.auditor.acknowledged(self.id, public)
            world.log("registered", self.id)
            world.on_moment("registration")
        else:
            world.count(f"agent registration refused {told.lower()}")
            await asyncio.sleep(world.random.uniform(0.5, 3.0))

    async def _stay(self, door: AgentPort) -> None:
        world = self.world
        if world.now < world.agents_shut_out_until:
            self.fall_silent(world.agents_shut_out_until - world.now)
            return
        self._parted.clear()
        world.log("agent came", self.id, door.server.name)
        self.line = door.connect(self)
        self.report()
        await self._parted.wait()
        await asyncio.sleep(world.random.uniform(0.1, 2.0))
