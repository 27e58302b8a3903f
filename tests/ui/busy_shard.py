"""A shard with thousands of instances where much happens, at the seam of `serve`: agents of so many would need a machine."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from nstance.admin.client import Client
from nstance.model.ids import IdMaker
from nstance.model.ids import Kind as InstanceKind
from nstance.v1.operator_pb2 import Event, GroupConfig, GroupStatus, InstanceEvent, ListEventsResponse, SnapshotEnd
from nstance.v1.operator_pb2 import WatchMessage as Message

KEPT = 2_000  # events, as a shard keeps more than a page asks for
TICK_SECONDS = 0.1
STATES = ({"state": "running", "ready": True}, {"state": "draining"}, {"state": "starting"})


class Happenings:
    """What the shard is like, and what was told to whom."""

    def __init__(self, clock: Any, rng: Any, *, groups: int, size: int) -> None:
        self._clock = clock
        self.events: deque[Event] = deque(maxlen=KEPT)
        self.newest = 0
        self._watchers: list[asyncio.Queue[Message]] = []
        self._groups = [f"service-{number:02d}" for number in range(groups)]
        self._size = size
        ids = IdMaker(wall=clock.wall, bits=rng.bits)
        self._instances = [
            InstanceEvent(instance_id=ids.make(InstanceKind("web")), group=group, state="running", ready=True)
            for group in self._groups
            for _ in range(size)
        ]

    def snapshot(self) -> list[Message]:
        config = GroupConfig(template="web", size=self._size)
        common = {"config": config, "size": self._size, "actual_size": self._size, "ready_size": self._size}
        groups = [Message(group=GroupStatus(key=name, **common)) for name in self._groups]
        instances = [Message(instance=each) for each in self._instances]
        return [*groups, *instances, Message(snapshot_end=SnapshotEnd())]

    async def run(self, per_second: float) -> None:
        """Until it is cancelled: one event of an instance after the other."""
        began = self._clock.monotonic()
        for number in itertools.count():
            due = began + number / per_second
            if due > self._clock.monotonic():
                await self._clock.sleep(TICK_SECONDS)
            chosen = self._instances[(number * 7919) % len(self._instances)]
            chosen.ClearField("ready")
            chosen.MergeFrom(InstanceEvent(**STATES[number % len(STATES)]))
            self.newest += 1
            event = Event(
                id=self.newest,
                time_unix_ms=int(self._clock.wall() * 1000),
                group=chosen.group,
                instance_id=chosen.instance_id,
                reason="ready" if chosen.ready else "drain-started",
                message=f"happening {self.newest}",
            )
            self.events.append(event)
            changed = InstanceEvent()
            changed.CopyFrom(chosen)
            for watcher in self._watchers:
                watcher.put_nowait(Message(instance=changed))
                watcher.put_nowait(Message(event=event))

    async def watch(self) -> AsyncGenerator[Message, None]:
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._watchers.append(queue)
        for message in self.snapshot():
            yield message
        while True:
            yield await queue.get()

    def list_events(self, after_id: int, limit: int) -> ListEventsResponse:
        if after_id:
            return ListEventsResponse(events=[each for each in self.events if each.id > after_id][:limit])
        return ListEventsResponse(events=list(self.events)[-(limit or 100) :])


class BusyShard(Client):
    """Its control plane is that of a real shard; groups, instances and events are these."""

    happenings: Happenings

    async def call(self, rpc: str, request: Any = None, /, **fields: Any) -> Any:
        if rpc == "ListEvents":
            return self.happenings.list_events(fields.get("after_id", 0), fields.get("limit", 0))
        return await super().call(rpc, request, **fields)

    async def watch(self, **kinds: bool) -> AsyncGenerator[Any, None]:
        async for message in self.happenings.watch():
            yield message
