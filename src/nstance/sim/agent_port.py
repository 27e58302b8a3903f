"""The agents' side of a simulated server.

Registrations go to the product's registrar and health streams to its agent service, with real nonces and keys. Only the
network in between is simulated: a connection is reset, or lost without a reset, which the server notices later.
"""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grpclib.exceptions import GRPCError

from nstance.pki import names
from nstance.server.api.agent_service import AgentService
from nstance.server.api.registrar import Registrar
from nstance.server.leader.context import TermContext
from nstance.sim.desired_groups import CLUSTER
from nstance.v1 import agent_pb2, registration_pb2

if TYPE_CHECKING:
    from nstance.sim.agent import SimAgent
    from nstance.sim.server import SimServer

DELAY_SECONDS = 0.002
CALL_TIMEOUT_SECONDS = 5.0
REOPEN_SECONDS = 0.5


class Connection:
    """An agent's connection as the server sees it (`wire.peer.Connection`), and the health stream on it."""

    refusal = None

    def __init__(self, port: "AgentPort", agent: "SimAgent") -> None:
        self.port = port
        self.agent = agent
        self.address = agent.address
        self.since = port.server.machine.monotonic()
        self.identity = names.Agent(CLUSTER, agent.request.tenant, agent.id)
        self.closed = asyncio.Event()
        self.certificate = lambda: agent.certificate
        self.serving: list[asyncio.Task[None]] = []
        self._stream = SimpleNamespace(connection=SimpleNamespace(peer=self))
        self._inbox: asyncio.Queue[agent_pb2.AgentMessage] = asyncio.Queue()

    @property
    def last_seen(self) -> float:
        machine = self.port.server.machine
        return machine.monotonic() - self.agent.unreachable_for() * machine.rate

    def abort(self) -> None:
        """The server closes it. Does nothing on a closed connection."""
        if self.closed.is_set():
            return
        self.closed.set()
        self.port.connections.pop(self, None)
        for task in self.serving:
            task.cancel()
        self.agent.world.later(DELAY_SECONDS, self.agent.on_disconnect, self)

    @property
    def stream(self) -> Any:
        return self

    async def send_initial_metadata(self) -> None:
        return

    async def send_message(self, message: agent_pb2.HealthAnswer) -> None:
        if message.HasField("checks"):
            self.agent.world.auditor.rollouts.check_checks(self.agent.id, message.checks, self.port)
            self.agent.world.later(DELAY_SECONDS, self.agent.receive_checks, self, message.checks)

    async def recv_message(self) -> agent_pb2.AgentMessage:
        return await self._inbox.get()

    def send(self, message: agent_pb2.AgentMessage) -> None:
        """From the agent to the server."""
        if not self.closed.is_set():
            self.port.server.later(DELAY_SECONDS, self._inbox.put_nowait, message)


class FileStream:
    """The stream on which an agent receives its files."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stream = connection._stream
        self._last_install = 0.0
        self._contents: dict[str, bytes] = {}

    async def recv_message(self) -> agent_pb2.ReceiveFilesRequest:
        return agent_pb2.ReceiveFilesRequest(config_hash=self._connection.agent.installed)

    async def send_message(self, message: agent_pb2.FileMessage) -> None:
        agent = self._connection.agent
        world = agent.world
        if message.WhichOneof("kind") == "file":
            self._contents[message.file.name] = message.file.content
        elif message.WhichOneof("kind") == "commit":
            contents, self._contents = self._contents, {}
            world.auditor.rollouts.check_files(agent.id, contents, self._connection.port)
            # Files are installed in the order in which they were sent.
            self._last_install = max(self._last_install + DELAY_SECONDS, world.now + world.random.uniform(0.05, 0.5))
            delay = self._last_install - world.now
            world.later(delay, agent.install_files, self._connection, message.commit.config_hash)


class AgentPort:
    """A `server.leader.environment.Port`: open while its server leads."""

    def __init__(self, server: "SimServer", lead: TermContext) -> None:
        self.server = server
        self.lead = lead
        self.connections: dict[Connection, None] = {}
        self.opened_at = 0.0
        env = server.env
        self._registrar = Registrar(lead, server.operators, env.advertised, env.metrics, env.clock)
        self._api = AgentService(lead, lead.vm_requests, lead.file_sets, env.cache, env.clock)

    async def open(self) -> None:
        self.opened_at = self.server.world.now
        self.server.world.on_port_open(self)

    async def close(self) -> None:
        self.server.world.on_port_close(self)
        for connection in list(self.connections):
            connection.abort()

    def reset(self) -> None:
        """The process is gone: its kernel resets all connections."""
        for connection in self.connections:
            connection.agent.world.later(DELAY_SECONDS, connection.agent.on_disconnect, connection)
        self.connections.clear()

    async def register(self, request: registration_pb2.RegisterAgentRequest, address: str) -> str:
        """The certificate as PEM, or the name of the status that refused it. Raises TimeoutError."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            try:
                result = (await self._registrar.register_agent(request, address)).certificate_pem
            except GRPCError as refusal:
                result = refusal.status.name
            self.server.world.later(DELAY_SECONDS, lambda: None if answer.done() else answer.set_result(result))

        self.server.spawn(serve())
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            return await answer

    def connect(self, agent: "SimAgent") -> Connection:
        connection = Connection(self, agent)
        self.connections[connection] = None
        connection.serving = [
            self.server.spawn(self._serve_health(connection)),
            self.server.spawn(self._serve_files(connection)),
        ]
        return connection

    async def _serve_files(self, connection: Connection) -> None:
        """Agents open a refused stream again as long as the connection stands."""
        while not connection.closed.is_set():
            with contextlib.suppress(GRPCError):
                await self._api.ReceiveFiles(FileStream(connection))
            await asyncio.sleep(REOPEN_SECONDS)

    async def _serve_health(self, connection: Connection) -> None:
        try:
            await self._api.SubmitHealthReport(connection)
        except GRPCError:
            pass
        finally:
            connection.abort()
