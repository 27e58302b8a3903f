"""Shards that are imitated, as an operator sees them over its links: answers are late or lost, links break and come back."""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from nstance.model import ids
from nstance.model.ids import InstanceId, Kind
from nstance.operator.shards.ports import Listener, ShardRefusedError, ShardUnreachableError
from nstance.sim.rng import SeededRng
from nstance.v1 import operator_pb2 as pb

DRAIN = 30.0
REQUESTED, SCALE_DOWN = "requested", "scale-down"
ALIVE = ("starting", "running", "draining")
T = TypeVar("T")
M = TypeVar("M", bound=Message)


class World(Protocol):
    """What is around a shard."""

    dice: SeededRng
    drains: dict[str, float]  # when each began

    def now(self) -> float: ...

    def later(self, seconds: float, work: Callable[[], object]) -> None: ...

    def unlucky(self, share: float) -> bool: ...

    def fresh(self) -> int:
        """The number of a new instance."""
        ...

    def node(self, id: str, provider_id: str) -> None: ...

    def unnode(self, id: str) -> None: ...

    def asked(self, asked: str) -> None: ...

    def acknowledged(self, instance: str) -> None: ...


@dataclass
class Shard:
    """A shard as the operator sees it: groups and instances that come and go by themselves."""

    name: str
    world: World
    up: bool = True
    groups: dict[str, pb.GroupStatus] = field(default_factory=dict)
    instances: dict[str, pb.InstanceEvent] = field(default_factory=dict)
    links: "list[Link]" = field(default_factory=list)
    etags: int = 0

    def alive(self, group: str, *, on_demand: bool) -> list[pb.InstanceEvent]:
        return [
            each
            for each in self.instances.values()
            if (each.group, each.on_demand) == (group, on_demand) and each.state in ALIVE
        ]

    def upsert(self, key: str, config: pb.GroupConfig, etag: str, *, first: Sequence[str] = ()) -> pb.GroupStatus:
        """`first`: who leaves first if the group shrinks."""
        old = self.groups.get(key)
        if etag and (old is None or old.etag != etag):
            raise ShardRefusedError("ABORTED", "changed meanwhile")
        self.etags += 1
        size = config.size if config.HasField("size") else old.size if old is not None else 0
        status = pb.GroupStatus(
            key=key, tenant="default", template=config.template or "web", size=size, etag=str(self.etags), config=config
        )
        self.groups[key] = status
        self.settle(key, first)
        return status

    def settle(self, key: str, first: Sequence[str] = ()) -> None:
        """Create or drain instances until the group has its size."""
        group = self.groups.get(key)
        desired = group.size if group is not None else 0
        here = self.alive(key, on_demand=False)
        staying = [each for each in here if each.state != "draining"]
        leaving = [each for each in here if each.state == "draining" and each.reason == SCALE_DOWN]
        returning = leaving[: max(0, desired - len(staying))]
        staying += [
            self.put(each.instance_id, state="running", drain_cancelled=True, waits=False, reason="")
            for each in returning
        ]
        for _ in range(desired - len(staying)):
            self.make(key, self.world.fresh(), on_demand=False)
        staying.sort(key=lambda each: each.instance_id in first)
        for each in staying[desired:]:
            self.leave(each.instance_id, SCALE_DOWN)
        if group is not None:
            now = self.alive(key, on_demand=False)
            group.actual_size = len(now)
            group.ready_size = sum(each.state == "running" for each in now)
            group.provider_ids[:] = sorted(each.provider_id for each in now)
        self.notify(lambda link: link.hear_group(key))

    def make(self, group: str, number: int, *, on_demand: bool) -> pb.InstanceEvent:
        id = ids.instance_id(Kind("web"), number)
        if id in self.instances:
            return self.instances[id]
        event = pb.InstanceEvent(
            instance_id=id, provider_id=f"dev:///{self.name}/{id}", group=group, state="starting", on_demand=on_demand
        )
        self.instances[id] = event
        self.notify(lambda link: link.hear_instance(event))
        self.world.later(self.world.dice.uniform(0.0, 3.0), lambda: self.boot(id))
        return event

    def boot(self, id: InstanceId) -> None:
        if self.instances[id].state == "starting":
            self.put(id, state="running")
            self.world.node(id, self.instances[id].provider_id)
            self.settle(self.instances[id].group)

    def leave(self, id: str, reason: str = REQUESTED) -> pb.InstanceEvent:
        event = self.instances[id]
        if event.state == "draining":
            return self.put(id, reason=REQUESTED) if reason == REQUESTED else event
        if event.state not in ALIVE:
            return event
        event = self.put(id, state="draining", waits=True, reason=reason, drain_cancelled=False)
        started = self.world.now()
        self.world.drains[id] = started
        self.world.later(DRAIN, lambda: self.world.drains.get(id) == started and self.end(id))
        return event

    def end(self, id: str) -> None:
        if self.instances[id].state == "draining":
            group = self.instances[id].group
            self.put(id, state="deleted", waits=False)
            self.world.drains.pop(id, None)
            self.world.unnode(id)
            self.settle(group)

    def put(self, id: str, **changes: Any) -> pb.InstanceEvent:
        event = pb.InstanceEvent()
        event.CopyFrom(self.instances[id])
        for key, value in changes.items():
            setattr(event, key, value)
        self.instances[id] = event
        self.notify(lambda link: link.hear_instance(event))
        return event

    def notify(self, act: "Callable[[Link], None]") -> None:
        for link in self.links:
            if link.synced:
                act(link)


class Link:
    """One operator's way to a shard."""

    def __init__(self, shard: Shard, listener: Callable[[], list[Listener]]) -> None:
        self.shard = shard
        self.name = shard.name
        self.synced = False
        self.unsynced_reason = "not connected yet"
        self.groups: dict[str, pb.GroupStatus] = {}
        self.instances: dict[str, pb.InstanceEvent] = {}
        self._listeners = listener
        shard.links.append(self)

    def connect(self) -> None:
        if self.synced or not self.shard.up:
            return
        gone = self.instances.keys() - self.shard.instances.keys()
        groups = self.groups.keys() | self.shard.groups.keys()
        self.synced, self.unsynced_reason = True, ""
        self.groups = {key: copied(each) for key, each in self.shard.groups.items()}
        self.instances = {
            id: copied(each) for id, each in self.shard.instances.items() if each.state not in ("deleted", "failed")
        }
        for listener in self._listeners():
            for key in groups:
                listener.on_group_change(self.name, key)
            for event in list(self.instances.values()):
                listener.on_instance_change(self.name, event)
            for id in gone:
                listener.on_instance_change(self.name, pb.InstanceEvent(instance_id=id, state="deleted", vm_gone=True))
            listener.on_shard_change(self.name)

    def lose(self) -> None:
        if self.synced:
            self.synced, self.unsynced_reason = False, "the connection was lost"
            for listener in self._listeners():
                listener.on_shard_change(self.name)

    def hear_group(self, key: str) -> None:
        if key in self.shard.groups:
            self.groups[key] = copied(self.shard.groups[key])
        else:
            self.groups.pop(key, None)
        for listener in self._listeners():
            listener.on_group_change(self.name, key)

    def hear_instance(self, event: pb.InstanceEvent) -> None:
        if event.state == "deleted":
            self.instances.pop(event.instance_id, None)
        else:
            self.instances[event.instance_id] = copied(event)
        for listener in self._listeners():
            listener.on_instance_change(self.name, copied(event))

    async def _call(self, act: Callable[[], T]) -> T:
        world = self.shard.world
        await asyncio.sleep(world.dice.uniform(0.0, 0.05))
        if not self.synced or not self.shard.up or world.unlucky(0.1):
            raise ShardUnreachableError("no answer")
        answer = act()
        await asyncio.sleep(world.dice.uniform(0.0, 0.05))
        if world.unlucky(0.1):
            raise ShardUnreachableError("applied, but the answer was lost")
        return answer

    async def upsert_group(self, request: pb.UpsertGroupRequest) -> pb.GroupStatus:
        def act() -> pb.GroupStatus:
            return self.shard.upsert(request.key, request.config, request.etag, first=list(request.remove_first))

        return copied(await self._call(act))

    async def delete_group(self, key: str, *, etag: str = "") -> None:
        def act() -> None:
            if self.shard.groups.pop(key, None) is None:
                raise ShardRefusedError("NOT_FOUND", "no such group")
            self.shard.settle(key)

        await self._call(act)

    async def create_instance(self, request: pb.CreateInstanceRequest) -> pb.InstanceStatus:
        def act() -> pb.InstanceStatus:
            if request.group not in self.shard.groups:
                raise ShardRefusedError("NOT_FOUND", "no such group")
            number = ids.requested_uuid(ids.DEFAULT_TENANT, uuid.UUID(request.uuid).int)
            self.shard.world.asked(request.uuid)
            return self._status(self.shard.make(request.group, number, on_demand=True).instance_id)

        return await self._call(act)

    async def delete_instance(self, instance: str) -> pb.InstanceStatus:
        def act() -> pb.InstanceStatus:
            self._status(instance)
            self.shard.leave(instance)
            return self._status(instance)

        return await self._call(act)

    async def replace_instance(self, instance: str) -> pb.InstanceStatus:
        return await self.delete_instance(instance)  # its group makes another one

    async def get_instance(self, instance: str) -> pb.InstanceStatus:
        return await self._call(lambda: self._status(instance))

    async def find_requested(self, chosen: str) -> pb.InstanceStatus:
        number = ids.requested_uuid(ids.DEFAULT_TENANT, uuid.UUID(chosen).int)

        def act() -> pb.InstanceStatus:
            return self._status(
                next((id for id in self.shard.instances if ids.uuid_of(ids.InstanceId(id)) == number), "")
            )

        return await self._call(act)

    async def acknowledge_drained(self, instance: str) -> pb.AcknowledgeDrainedResponse:
        def act() -> pb.AcknowledgeDrainedResponse:
            event = self.shard.instances.get(instance)
            if event is None or event.state != "draining":
                return pb.AcknowledgeDrainedResponse(accepted=False, message="it does not drain")
            self.shard.world.acknowledged(instance)
            self.shard.end(instance)
            return pb.AcknowledgeDrainedResponse(accepted=True)

        return await self._call(act)

    def _status(self, instance: str) -> pb.InstanceStatus:
        event = self.shard.instances.get(instance)
        if event is None:
            raise ShardRefusedError("NOT_FOUND", "no such instance")
        return pb.InstanceStatus(
            instance_id=instance,
            provider_id=event.provider_id,
            group=event.group,
            state=event.state,
            on_demand=event.on_demand,
        )


def copied(message: M) -> M:
    fresh = type(message)()
    fresh.CopyFrom(message)
    return fresh


class Links:
    def __init__(self, links: Mapping[str, Link]) -> None:
        self._links = dict(links)

    def names(self) -> tuple[str, ...]:
        return tuple(self._links)

    def get(self, name: str) -> Link | None:
        return self._links.get(name)
