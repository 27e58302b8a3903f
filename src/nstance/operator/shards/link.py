"""The connection to one shard: its watch, the state received over it, and calls.

After a lost connection the new snapshot is compared with the known state and listeners get the differences: what the
snapshot lacks was deleted in the meantime. Addresses are tried in turn, because a standby refuses the watch. The trap:
calls to a shard that is not synced fail at once. If they waited for their deadline, a few of them would hold all workers
of the controllers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.clock import Clock, Rng
from nstance.operator.metrics import Metrics
from nstance.operator.options import Waits
from nstance.operator.shards.ports import Listener, ShardRefusedError, ShardUnreachableError
from nstance.v1 import operator_grpc, registration_pb2
from nstance.v1 import operator_pb2 as pb
from nstance.wire import status
from nstance.wire.call import call
from nstance.wire.channel import Channel, ExpectedServer
from nstance.wire.credentials import Credentials
from nstance.wire.limits import MIB, Limits

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
MAX_CALLS = 32  # at once to one shard; the server allows a hundred
SNAPSHOT_MESSAGE_SECONDS = 15.0  # between two messages of a snapshot
SAME_DEADLINE_MS = 2_000
STABLE_SECONDS = 10.0  # a connection that lasted this long is not a failure when it ends

_NO_ANSWER = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.CANCELLED})
_CONNECTION_ERRORS = (GRPCError, OSError, StreamTerminatedError, ProtocolError)
_ENDED = frozenset({"deleted", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """What all links share. `credentials` is called at each connection, so that renewed ones are used."""

    credentials: Callable[[], Credentials]
    listener: Listener
    metrics: Metrics
    clock: Clock
    rng: Rng
    waits: Waits


class Link:
    """One shard. A `ports.Shard`."""

    def __init__(self, name: str, addresses: tuple[str, ...], context: LinkContext) -> None:
        self._name = name
        self._addresses = addresses
        self._context = context
        self._listener, self._metrics, self._clock = context.listener, context.metrics, context.clock
        self._channel: Channel | None = None
        self._address = ""  # of the current attempt
        self._synced = False
        self._unsynced_reason = "not connected yet"
        self._call_slots = asyncio.Semaphore(MAX_CALLS)
        self._groups: dict[str, pb.GroupStatus] = {}
        self._instances: dict[str, pb.InstanceEvent] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def synced(self) -> bool:
        return self._synced

    @property
    def unsynced_reason(self) -> str:
        return "" if self._synced else self._unsynced_reason

    @property
    def groups(self) -> Mapping[str, pb.GroupStatus]:
        return self._groups

    @property
    def instances(self) -> Mapping[str, pb.InstanceEvent]:
        return self._instances

    # ---- calls

    async def upsert_group(self, request: pb.UpsertGroupRequest) -> pb.GroupStatus:
        answer: pb.UpsertGroupResponse = await self._call("UpsertGroup", request)
        return answer.group

    async def delete_group(self, key: str) -> None:
        await self._call("DeleteGroup", pb.DeleteGroupRequest(key=key))

    async def create_instance(self, request: pb.CreateInstanceRequest) -> pb.InstanceStatus:
        return await self._call("CreateInstance", request)  # type: ignore[no-any-return]

    async def delete_instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call("DeleteInstance", pb.DeleteInstanceRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def replace_instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call("ReplaceInstance", pb.ReplaceInstanceRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def get_instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call("GetInstanceStatus", pb.GetInstanceStatusRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def find_requested(self, chosen: str) -> pb.InstanceStatus:
        return await self._call("GetInstanceStatus", pb.GetInstanceStatusRequest(uuid=chosen))  # type: ignore[no-any-return]

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse:
        return await self._call("AcknowledgeDrained", pb.AcknowledgeDrainedRequest(instance_id=instance))  # type: ignore[no-any-return]

    async def renew_certificate(self) -> registration_pb2.RegisterResponse:
        return await self._call("RenewCertificate", registration_pb2.RenewCertificateRequest())  # type: ignore[no-any-return]

    async def _call(self, rpc: str, request: Any) -> Any:
        started, channel = self._clock.monotonic(), self._channel
        code = "UNREACHABLE"
        try:
            if not self._synced or channel is None:
                raise ShardUnreachableError(f"shard {self._name} is not reachable: {self._unsynced_reason}")
            async with asyncio.timeout(CALL_SECONDS), self._call_slots:
                method = getattr(operator_grpc.OperatorServiceStub(channel), rpc)
                answer = await call(method, request, timeout=CALL_SECONDS)
            code = "OK"
            return answer
        except GRPCError as error:
            text = f"shard {self._name}: {status.explain(error)}"
            if error.status in _NO_ANSWER:
                raise ShardUnreachableError(text) from error
            code = error.status.name
            raise ShardRefusedError(code, text) from error
        except TimeoutError as error:
            raise ShardUnreachableError(f"shard {self._name}: no answer within {CALL_SECONDS:g} s") from error
        except OSError as error:
            raise ShardUnreachableError(f"shard {self._name}: {status.explain(error)}") from error
        finally:
            self._metrics.shard_called(self._name, rpc, code, self._clock.monotonic() - started)

    # ---- the watch

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """A connection to an address that is still listed stays open."""
        if addresses == self._addresses:
            return
        self._addresses = addresses
        if self._channel is not None and self._address not in addresses:
            self._channel.close()

    async def run(self) -> None:
        """Until it is cancelled."""
        attempt = failures = 0
        problems: dict[str, str] = {}  # by address
        try:
            while True:
                started, addresses = self._clock.monotonic(), self._addresses
                self._address = addresses[attempt % len(addresses)]
                problem = await self._connect(self._address)
                was_synced = self._synced
                problems = {} if was_synced else {each: problems[each] for each in problems if each in addresses}
                problems[self._address] = problem
                stable = was_synced and self._clock.monotonic() - started >= STABLE_SECONDS
                attempt, failures = attempt + 1, 0 if stable else failures + 1
                self._on_disconnect("; ".join(f"{address}: {why}" for address, why in problems.items()))
                rounds, rest = divmod(failures, len(addresses))
                await self._clock.sleep(
                    self._context.waits.link_retry.delay(1 if rest else 1 + rounds, self._context.rng)
                )
        finally:
            self._synced = False
            self._metrics.shard_removed(self._name)

    async def _connect(self, address: str) -> str:
        """One connection from its start to its end; returns why it ended."""
        try:
            credentials, waits = self._context.credentials(), self._context.waits
            self._channel = Channel(
                address,
                context=credentials.context(),
                expect=ExpectedServer(credentials.who.cluster, self._name),
                clock=self._clock,
                # The wide window lets a snapshot of thousands of instances flow.
                limits=Limits(ping_after=waits.ping, pong_within=waits.pong, window=MIB),
            )
            await self._watch(operator_grpc.OperatorServiceStub(self._channel))
            return "the server ended the watch"
        except TimeoutError:
            return f"the server sent nothing for {SNAPSHOT_MESSAGE_SECONDS:g} s"
        except _CONNECTION_ERRORS as error:
            return status.explain(error).removeprefix(f"{address}: ")
        except Exception as error:
            # A bug or an unknown message costs a connection, not the operator.
            log.exception("failed to follow shard: unexpected error", extra={"shard": self._name})
            return f"unexpected: {status.explain(error)}"
        finally:
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    async def _watch(self, stub: operator_grpc.OperatorServiceStub) -> None:
        async with stub.Watch.open() as stream:
            async with asyncio.timeout(SNAPSHOT_MESSAGE_SECONDS) as deadline:
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
                        case _:
                            pass
                    deadline.reschedule(asyncio.get_running_loop().time() + SNAPSHOT_MESSAGE_SECONDS)
                else:
                    await stream.recv_trailing_metadata()
                    return
            self._apply_snapshot(groups, instances)
            while (message := await stream.recv_message()) is not None:
                self._apply_change(message)
            await stream.recv_trailing_metadata()

    def _apply_snapshot(self, groups: dict[str, pb.GroupStatus], instances: dict[str, pb.InstanceEvent]) -> None:
        old_groups, self._groups = self._groups, groups
        old, self._instances = self._instances, instances
        self._synced = True
        self._metrics.shard_connected(self._name, True)
        log.info(
            "shard connected",
            extra={
                "shard": self._name,
                "server": self._address,
                "groups": len(groups),
                "instances": len(instances),
            },
        )
        for key in [*groups, *(old_groups.keys() - groups.keys())]:
            if old_groups.get(key) != groups.get(key):
                self._listener.on_group_change(self._name, key)
        for event in [*instances.values(), *(old[id] for id in old.keys() - instances.keys())]:
            known = old.get(event.instance_id)
            if event.instance_id not in instances:
                self._listener.on_instance_change(self._name, _deleted(event))
            elif known is None or _differs(known, event):
                self._listener.on_instance_change(self._name, _with_cancelled_drain(event, known))
        self._listener.on_shard_change(self._name)

    def _apply_change(self, message: pb.WatchMessage) -> None:
        match message.WhichOneof("kind"):
            case "group":
                self._groups[message.group.key] = message.group
                self._listener.on_group_change(self._name, message.group.key)
            case "group_deleted":
                self._groups.pop(message.group_deleted, None)
                self._listener.on_group_change(self._name, message.group_deleted)
            case "instance":
                event = message.instance
                if event.state in _ENDED:
                    self._instances.pop(event.instance_id, None)
                else:
                    self._instances[event.instance_id] = event
                self._listener.on_instance_change(self._name, event)
            case "error":
                self._listener.on_error_event(self._name, message.error)
            case _:
                pass

    def _on_disconnect(self, reason: str) -> None:
        changed = self._synced or reason != self._unsynced_reason
        self._synced, self._unsynced_reason = False, reason
        self._metrics.shard_connected(self._name, False)
        if changed:
            log.warning("shard not connected", extra={"shard": self._name, "reason": reason})
            self._listener.on_shard_change(self._name)


def _differs(known: pb.InstanceEvent, event: pb.InstanceEvent) -> bool:
    """Each server computes deadlines from its own clock, so only a larger difference of them counts."""
    moved = abs(known.deadline_unix_ms - event.deadline_unix_ms) > SAME_DEADLINE_MS
    return moved or _without_transient_fields(known) != _without_transient_fields(event)


def _without_transient_fields(event: pb.InstanceEvent) -> pb.InstanceEvent:
    copied = pb.InstanceEvent()
    copied.CopyFrom(event)
    copied.ClearField("deadline_unix_ms")
    copied.ClearField("drain_cancelled")
    return copied


def _with_cancelled_drain(event: pb.InstanceEvent, known: pb.InstanceEvent | None) -> pb.InstanceEvent:
    """A snapshot cannot say that a drain was cancelled while the link was down; the server's own event would."""
    if known is None or known.state != "draining" or event.state != "running":
        return event
    copied = pb.InstanceEvent()
    copied.CopyFrom(event)
    copied.drain_cancelled = True
    return copied


def _deleted(last: pb.InstanceEvent) -> pb.InstanceEvent:
    event = _without_transient_fields(last)
    event.state, event.vm_gone, event.waits = "deleted", True, False
    return event
