"""Messages to the three services, as bytes, into the services themselves: a leading server of a simulated shard.

The first line names the method, the rest is the message. Refusals are gRPC statuses; INTERNAL and UNKNOWN are none.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from fuzz.law import CLOSING, Broken, target
from nstance.model.ids import DEFAULT_TENANT, ServerId
from nstance.model.instance import State
from nstance.pki import keys, names
from nstance.server.api.admission import Admission
from nstance.server.api.agent_service import AgentService
from nstance.server.api.control_plane import ControlPlaneSources, ControlPlaneStatus
from nstance.server.api.group_writer import GroupWriter
from nstance.server.api.operator_service import OperatorContext, OperatorService
from nstance.server.api.registrar import Registrar
from nstance.server.api.rollout_requests import RolloutRequests
from nstance.server.api.statuses import Statuses
from nstance.server.api.watchers import Watchers
from nstance.server.state.committed_records import CommittedRecords
from nstance.sim.desired_groups import CLUSTER, DesiredGroup, DesiredGroups
from nstance.sim.rng import SeededRng
from nstance.sim.server import authority
from nstance.sim.setup import Setup
from nstance.sim.world import World, world
from nstance.v1 import registration_pb2
from nstance.wire import status

PATIENCE = 30.0  # seconds of virtual time; streams go on for ever
LIFE = 150  # inputs of one world


class _Stream:
    """One message, then silence."""

    def __init__(self, kind: Any, body: bytes, peer: object, rpc: str = "") -> None:
        self._kind, self._body, self.rpc = kind, body, rpc
        self._read = False
        self._stream = SimpleNamespace(connection=SimpleNamespace(peer=peer))
        self.metadata: dict[str, str] = {}

    async def recv_message(self) -> Any:
        if self._read:
            await asyncio.sleep(2 * PATIENCE)
            return None
        self._read = True
        try:
            return self._kind.FromString(self._body)
        except DecodeError:
            raise status.refusal(Status.INVALID_ARGUMENT, "bytes that are none") from None

    async def send_initial_metadata(self) -> None:
        return

    async def send_message(self, message: Any) -> None:
        message.SerializeToString()


class Shard:
    def __init__(self) -> None:
        groups = {"web": DesiredGroup(size=2), "db": DesiredGroup(size=1)}
        self.entered: AbstractContextManager[World] = world(
            1, Setup(servers=1, operator=False, audited=False, desired_groups=DesiredGroups(groups=groups))
        )
        self.world = self.entered.__enter__()
        self.world.begin()
        self.world.advance(60.0)
        self.served = 0
        found = self.world.leader()
        assert found is not None
        assert found.lead is not None
        self.server, lead = found, found.lead
        env, store, operators = found.env, self.world.storage.view(None), found.operators
        clock, shard, active_config = env.clock, lead.shard, lead.active_config
        records = CommittedRecords(shard.instances)
        statuses = Statuses(lead, lead.blocked_groups, records, env.cache, clock)
        watchers = Watchers(active_config, records, statuses)
        shard.commits.subscribe(records.observe, watchers.observe)
        active_config.subscribe(watchers.on_config_change)
        groups_writer = GroupWriter(shard, active_config, store=store, clock=clock, rng=env.rng)
        self.server.spawn(groups_writer.run())
        public = keys.public_bytes(keys.generate(SeededRng("operator")))
        kept, _ = self._run(operators.register_directly(authority(), public, tenant=DEFAULT_TENANT))
        peers: dict[str, Callable[[], Any]] = {"operator": lambda: _peer(kept.identity), "agent": self._agent}
        sources = ControlPlaneSources(
            metrics=env.metrics,
            standbys=dict,
            provider_rate=lead.provider_rate,
            alarms=lambda: shard.alarms.messages,
            storage_failed_at=float,
        )
        apis = {
            "operator": OperatorService(
                OperatorContext(
                    server=ServerId(found.name),
                    shard=shard,
                    active_config=active_config,
                    issuer=lead.issuer,
                    store=store,
                    events=_no_events,
                    operators=operators,
                    admission=Admission(operators, clock),
                    groups=groups_writer,
                    rollouts=RolloutRequests(shard, active_config, lead.revisions, groups_writer, clock),
                    step_times=lead.step_times,
                    records=records,
                    statuses=statuses,
                    watchers=watchers,
                    control_plane=ControlPlaneStatus(ServerId(found.name), shard.term.epoch, sources, clock),
                    clock=clock,
                )
            ),
            "agent": AgentService(lead, lead.vm_requests, lead.file_sets, env.cache, clock),
        }
        self.registrar = Registrar(lead, operators, env.advertised, env.metrics, clock)
        self.methods = {
            path.rpartition("/")[2].encode(): (handler, peers[who])
            for who, api in apis.items()
            for path, handler in api.__mapping__().items()
        }

    def _agent(self) -> Any:
        """One that is well: what was said before may have ended the last one."""
        self.world.advance(1.0)
        running = [a.id for a in self.world.agents() if a.registered and a.alive]
        lead = self.server.lead
        assert lead is not None
        id = min(id for id in running if lead.shard.instances[id].state is State.RUNNING)
        self.world.auditor.cloned.add(id)  # its own agent is connected too
        return _peer(names.Agent(CLUSTER, DEFAULT_TENANT, id))

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            task = self.server.machine.loop.create_task(work, context=self.server._context.copy())
            await asyncio.wait({task}, timeout=PATIENCE)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=1.0)
            return None

        return self.world.run(bounded())

    def call(self, method: bytes, body: bytes) -> None:
        if method in (b"RegisterAgent", b"RegisterOperator"):
            self._run(self._register(method, body))
        elif method in self.methods:
            handler, peer = self.methods[method]
            self._run(handler.func(_Stream(handler.request_type, body, peer(), method.decode())))

    async def _register(self, method: bytes, body: bytes) -> None:
        kind: Any = registration_pb2.RegisterAgentRequest
        register: Any = self.registrar.register_agent
        if method == b"RegisterOperator":
            kind, register = registration_pb2.RegisterOperatorRequest, self.registrar.register_operator
        await register(await _Stream(kind, body, None).recv_message(), "127.0.0.1")


def _peer(identity: names.Identity) -> Any:
    closed = asyncio.Event()
    return SimpleNamespace(
        identity=identity, address="10.0.0.9", closed=closed, abort=lambda: None, last_seen=0.0, since=0.0
    )


async def _no_events(**asked: object) -> list[Any]:
    return []


_kept: list[Shard] = []


def _close() -> None:
    while _kept:
        _kept.pop().entered.__exit__(None, None, None)


CLOSING.append(_close)


@target(
    "message",
    GRPCError,
    words=(
        b"UpsertGroup\n",
        b"CreateInstance\n",
        b"SubmitHealthReport\n",
        b"RegisterAgent\n",
        b"ListEvents\n",
        b"\x0a\x03web",
        b"\x0a",
        b"\x12",
        b"\x18",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b'{"a":1}',
    ),
)
def message(data: bytes) -> None:
    if not _kept or _kept[0].served >= LIFE or _kept[0].server.lead is None:
        _close()
        _kept.append(Shard())
    shard = _kept[0]
    shard.served += 1
    method, _, body = data.partition(b"\n")
    try:
        shard.call(method, body)
    except GRPCError as refused:
        if refused.status in (Status.INTERNAL, Status.UNKNOWN):
            raise Broken(f"a refusal that is our own fault: {refused}") from refused
        raise
    if shard.world.violations:
        raise Broken(f"the shard broke: {shard.world.violations}")
