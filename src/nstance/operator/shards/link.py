"""A link to each shard: one connection, what was heard over it, and calls that never wait for a silent server.

A link follows its shard's watch. After a loss it takes the new snapshot, compares, and tells what differs: what is not in
the snapshot was deleted meanwhile. Addresses are tried in turn, because a standby refuses; each link runs on its own, so
that a shard that hangs delays nobody else. The trap: calls to a shard that is not synced fail at once instead of waiting
for their deadline, or a few hung calls would hold all of the controllers' workers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.clock import Clock, Rng
from nstance.operator.metrics import Metrics
from nstance.operator.shards.ports import Listener, ShardRefusedError, ShardUnreachableError
from nstance.tasks.backoff import Backoff
from nstance.v1 import operator_grpc, registration_pb2
from nstance.v1 import operator_pb2 as pb
from nstance.wire import status
from nstance.wire.call import call
from nstance.wire.channel import Channel
from nstance.wire.credentials import Credentials
from nstance.wire.limits import MIB, Limits

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
MAX_CALLS = 32  # at once to one shard; the server allows a hundred
ANSWER_SECONDS = 15.0  # between two messages of a snapshot
RETRY = Backoff(0.25, 10.0, jitter=1.0)
SAME_DEADLINE_MS = 2_000
STABLE_SECONDS = 10.0  # a connection that served this long is not a failure when it ends

# Silence is noticed within five seconds. The wide window lets a snapshot of thousands of instances flow.
LIMITS = Limits(ping_after=2.0, pong_within=3.0, window=MIB)

_NO_ANSWER = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED})
_LOSSES = (GRPCError, OSError, StreamTerminatedError, ProtocolError)
_ENDED = frozenset({"deleted", "failed"})


class Link:
    """One shard. A `ports.Shard`."""

    def __init__(
        self,
        name: str,
        addresses: tuple[str, ...],
        *,
        credentials: Callable[[], Credentials],
        listener: Listener,
        metrics: Metrics,
        clock: Clock,
        rng: Rng,
    ) -> None:
        """`credentials` are asked for at each connection, so that renewed ones are used."""
        self._name = name
        self._addresses = addresses
        self._credentials = credentials
        self._listener = listener
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._channel: Channel | None = None
        self._address = ""  # of the current attempt
        self._synced = False
        self._trouble = "not connected yet"
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._groups: dict[str, pb.GroupStatus] = {}
        self._instances: dict[str, pb.InstanceEvent] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def trouble(self) -> str:
        return "" if self._synced else self._trouble

    @property
    def groups(self) -> Mapping[str, pb.GroupStatus]:
        return self._groups

    @property
    def instances(self) -> Mapping[str, pb.InstanceEvent]:
        return self._instances

    # ---- calls

    async def upsert_group(self, key: str, config: pb.GroupConfig, *, etag: str = "") -> pb.GroupStatus:
        answer: pb.UpsertGroupResponse = await self._call(
            "UpsertGroup", pb.UpsertGroupRequest(key=key, config=config, etag=etag)
        )
        return answer.group

    async def delete_group(self, key: str, *, etag: str = "") -> None:
        await self._call("DeleteGroup", pb.DeleteGroupRequest(key=key, etag=etag))

    async def create_instance(self, request: pb.CreateInstanceRequest) -> pb.InstanceStatus:
        return await self._call("CreateInstance", request)  # type: ignore[no-any-return]

    async def delete_instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call("DeleteInstance", pb.DeleteInstanceRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call("GetInstanceStatus", pb.GetInstanceStatusRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse:
        return await self._call("AcknowledgeDrained", pb.AcknowledgeDrainedRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def renew_certificate(self) -> registration_pb2.RegisterResponse:
        return await self._call("RenewCertificate", registration_pb2.RenewCertificateRequest())  # type: ignore[no-any-return]

    async def _call(self, rpc: str, request: Any) -> Any:
        began, channel = self._clock.monotonic(), self._channel
        code = "UNREACHABLE"
        try:
            if not self._synced or channel is None:
                raise ShardUnreachableError(f"shard {self._name} is not reachable: {self._trouble}")
            async with asyncio.timeout(CALL_SECONDS), self._slots:
                method = getattr(operator_grpc.OperatorServiceStub(channel), rpc)
                answer = await call(method, request, timeout=CALL_SECONDS)
            code = "OK"
            return answer
        except GRPCError as refusal:
            if refusal.status in _NO_ANSWER:
                raise ShardUnreachableError(f"shard {self._name}: {status.explain(refusal)}") from refusal
            code = refusal.status.name
            raise ShardRefusedError(code, f"shard {self._name}: {status.explain(refusal)}") from refusal
        except TimeoutError as late:
            raise ShardUnreachableError(f"shard {self._name}: no answer within {CALL_SECONDS:g} s") from late
        except OSError as lost:
            raise ShardUnreachableError(f"shard {self._name}: {status.explain(lost)}") from lost
        finally:
            self._metrics.shard_called(self._name, rpc, code, self._clock.monotonic() - began)

    # ---- following

    def move(self, addresses: tuple[str, ...]) -> None:
        """The servers have other addresses; a connection to one that is still among them stays."""
        if addresses == self._addresses:
            return
        self._addresses = addresses
        if self._channel is not None and self._address not in addresses:
            self._channel.close()

    async def run(self) -> None:
        """Until it is cancelled."""
        turn = failures = 0
        problems: dict[str, str] = {}
        try:
            while True:
                began, addresses = self._clock.monotonic(), self._addresses
                self._address = addresses[turn % len(addresses)]
                problem = await self._connect(self._address)
                served = self._synced
                problems = {} if served else {each: problems[each] for each in problems if each in addresses}
                problems[self._address] = problem
                stable = served and self._clock.monotonic() - began >= STABLE_SECONDS
                turn, failures = turn + 1, 0 if stable else failures + 1
                self._lose("; ".join(f"{where}: {why}" for where, why in problems.items()))
                rounds, rest = divmod(failures, len(addresses))
                await self._clock.sleep(RETRY.delay(1 if rest else 1 + rounds, self._rng))
        finally:
            self._synced = False
            self._metrics.shard_removed(self._name)

    async def _connect(self, address: str) -> str:
        """One connection from its beginning to its end; returns why it ended."""
        try:
            shown = self._credentials()
            self._channel = Channel(
                address,
                context=shown.context(),
                expect_cluster=shown.who.cluster,
                expect_shard=self._name,
                clock=self._clock,
                limits=LIMITS,
            )
            await self._follow(operator_grpc.OperatorServiceStub(self._channel))
            return "the server ended the watch"
        except TimeoutError:
            return f"the server said nothing for {ANSWER_SECONDS:g} s"
        except _LOSSES as error:
            return status.explain(error).removeprefix(f"{address}: ")
        except Exception as error:
            # A bug or a message that nobody foresaw costs a connection, not the operator.
            log.exception("the link to a shard failed unexpectedly", extra={"shard": self._name})
            return f"unexpected: {status.explain(error)}"
        finally:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    async def _follow(self, stub: operator_grpc.OperatorServiceStub) -> None:
        async with stub.Watch.open() as stream:
            async with asyncio.timeout(ANSWER_SECONDS) as patience:
                await stream.send_message(
                    pb.WatchRequest(groups=True, instances=True, errors=True, drains=True), end=True
                )
                groups: dict[str, pb.GroupStatus] = {}
                instances: dict[str, pb.InstanceEvent] = {}
                while (message := await stream.recv_message()) is not None:
                    match message.WhichOneof("kind"):
                        case "group":
                            groups[message.group.key] = message.group
                        case "instance":
                            instances[message.instance.instance_id] = message.instance
                        case "snapshot_end":
                            break
                    patience.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)
                else:
                    await stream.recv_trailing_metadata()
                    return
            self._take(groups, instances)
            while (message := await stream.recv_message()) is not None:
                self._hear(message)
            await stream.recv_trailing_metadata()

    def _take(self, groups: dict[str, pb.GroupStatus], instances: dict[str, pb.InstanceEvent]) -> None:
        """A whole snapshot: whatever differs from what was known is told."""
        old_groups, self._groups = self._groups, groups
        old, self._instances = self._instances, instances
        self._synced = True
        self._metrics.shard_connected(self._name, True)
        log.info(
            "a shard is connected",
            extra={
                "shard": self._name,
                "server": self._address,
                "groups": len(groups),
                "instances": len(instances),
            },
        )
        for key in [*groups, *(old_groups.keys() - groups.keys())]:
            if old_groups.get(key) != groups.get(key):
                self._listener.group_changed(self._name, key)
        for event in [*instances.values(), *(old[id] for id in old.keys() - instances.keys())]:
            known = old.get(event.instance_id)
            if event.instance_id not in instances:
                self._listener.instance_changed(self._name, _gone(event))
            elif known is None or _differs(known, event):
                self._listener.instance_changed(self._name, _since(event, known))
        self._listener.shard_changed(self._name)

    def _hear(self, message: pb.WatchMessage) -> None:
        match message.WhichOneof("kind"):
            case "group":
                self._groups[message.group.key] = message.group
                self._listener.group_changed(self._name, message.group.key)
            case "group_deleted":
                self._groups.pop(message.group_deleted, None)
                self._listener.group_changed(self._name, message.group_deleted)
            case "instance":
                event = message.instance
                if event.state in _ENDED:
                    self._instances.pop(event.instance_id, None)
                else:
                    self._instances[event.instance_id] = event
                self._listener.instance_changed(self._name, event)
            case "error":
                self._listener.trouble_heard(self._name, message.error)

    def _lose(self, problem: str) -> None:
        changed = self._synced or problem != self._trouble
        self._synced, self._trouble = False, problem
        self._metrics.shard_connected(self._name, False)
        if changed:
            log.warning("a shard is not connected", extra={"shard": self._name, "reason": problem})
            self._listener.shard_changed(self._name)


def _differs(known: pb.InstanceEvent, event: pb.InstanceEvent) -> bool:
    """A deadline is counted anew from each server's clock, so that only a real change of it counts."""
    moved = abs(known.deadline_unix_ms - event.deadline_unix_ms) > SAME_DEADLINE_MS
    return moved or _lasting(known) != _lasting(event)


def _lasting(event: pb.InstanceEvent) -> pb.InstanceEvent:
    """Without what is said of one moment only."""
    same = pb.InstanceEvent()
    same.CopyFrom(event)
    same.ClearField("deadline_unix_ms")
    same.ClearField("drain_cancelled")
    return same


def _since(event: pb.InstanceEvent, known: pb.InstanceEvent | None) -> pb.InstanceEvent:
    """As the server would have told it: a snapshot cannot know that a drain was cancelled while nobody listened."""
    if known is None or known.state != "draining" or event.state != "running":
        return event
    told = pb.InstanceEvent()
    told.CopyFrom(event)
    told.drain_cancelled = True
    return told


def _gone(last: pb.InstanceEvent) -> pb.InstanceEvent:
    told = _lasting(last)
    told.state, told.vm_gone, told.waits = "deleted", True, False
    return told
