"""One shard as `serve` and `top` see it: its groups, instances, events and control plane, kept up to date.

The watch is repeated for ever. What a new snapshot lacks is gone. The trap: events are pushed by a leader, and the next
leader does not know what was pushed, so a push only means that events are there to be read after the last known ID.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard import alarms, control_plane, records, unknown_vms
from nstance.admin.shard.records import Record
from nstance.admin.shard.shapes import timestamp_ms
from nstance.clock import Clock, Rng
from nstance.model import ids
from nstance.model.ids import InstanceId, ShardId
from nstance.tasks import background
from nstance.tasks.backoff import Backoff

EVENTS_KEPT = 1_000
EVENTS_PAGE = 500
SIZES_KEPT = 500  # of each group
TERMS_KEPT = 100
EVENT_POLL_SECONDS = 1.0  # in case of a server that pushes no events
CONTROL_PLANE_SECONDS = 2.0
CONFIG_EVERY = 5  # control plane readings
RETRY = Backoff(0.1, 2.0, jitter=0.5)
ENDED = frozenset({"deleted", "failed"})

# kind (status, group, instance, event, earlier-event), its key, and the record; None: it is gone
OnChange = Callable[[ShardId, str, str, Record | None], None]


class ShardFeed:
    def __init__(self, client: Client, on_change: OnChange, clock: Clock, rng: Rng) -> None:
        self.client = client
        self.shard = client.shard
        self.groups: dict[str, Record] = {}
        self.instances: dict[str, Record] = {}
        self.events: deque[tuple[int, Record]] = deque()
        self.last_event: int | None = None  # None: the shard has not answered yet
        self.forgotten_until = 0  # events up to this ID are not in `events`
        self.sizes: dict[str, deque[Record]] = {}
        self.terms: deque[Record] = deque(maxlen=TERMS_KEPT)
        self._on_change = on_change
        self._clock = clock
        self._rng = rng
        self._problem: str | None = alarms.CONNECTING
        self._lost_at: float | None = None  # when it stopped answering; None: it has never answered
        self._control_plane: Record | None = None
        self._config: Record | None = None
        self._unknown_vms = 0
        self._events_are_due = asyncio.Event()
        self._leader_is_due = asyncio.Event()  # it may be another one

    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._watch(), self._read_events(), self._read_control_plane()]

    def record(self) -> Record:
        """The shard itself: whether it answers, and who leads."""
        return control_plane.shard_record(
            self.client,
            self._control_plane,
            config=self._config,
            unknown_vms=self._unknown_vms,
            read_at=self._clock.wall() if self._problem is None else self._lost_at,
            problem=self._problem,
        )

    # ---- groups and instances

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                async for message in self._synced():
                    failures = 0
                    self._apply(message)
            except errors.CommandError as problem:
                self._set_problem(errors.explain(problem))
            failures += 1
            await self._clock.sleep(RETRY.delay(failures, self._rng))

    async def _synced(self) -> Any:
        """The messages of one watch; those of its snapshot are applied together when it is complete."""
        groups: dict[str, Any] = {}
        instances: dict[str, Any] = {}
        is_complete = False
        async for message in self.client.watch(groups=True, instances=True, events=True):
            kind = message.WhichOneof("kind")
            if is_complete:
                yield message
            elif kind == "group":
                groups[message.group.key] = message.group
            elif kind == "instance":
                instances[message.instance.instance_id] = message.instance
            elif kind == "snapshot_end":
                is_complete = True
                for name in self.groups.keys() - groups.keys():
                    self._drop_group(name)
                for id in self.instances.keys() - instances.keys():
                    self._drop_instance(id)
                for group in groups.values():
                    self._put_group(group)
                for instance in instances.values():
                    self._put_instance(instance)
                self._set_problem(None)
                self._events_are_due.set()
                self._leader_is_due.set()

    def _apply(self, message: Any) -> None:
        match message.WhichOneof("kind"):
            case "group":
                self._put_group(message.group)
            case "group_deleted":
                self._drop_group(message.group_deleted)
            case "instance" if message.instance.state in ENDED:
                self._drop_instance(message.instance.instance_id)
            case "instance":
                self._put_instance(message.instance)
            case "event":
                self._events_are_due.set()
            case _:
                pass

    def _put_group(self, status: Any) -> None:
        record = records.group_with_hashes(self.shard, status)
        if self.groups.get(status.key) != record:
            self.groups[status.key] = record
            self._keep_size(record)
            self._on_change(self.shard, "group", status.key, record)

    def _drop_group(self, name: str) -> None:
        self.sizes.pop(name, None)
        if self.groups.pop(name, None) is not None:
            self._on_change(self.shard, "group", name, None)

    def _put_instance(self, event: Any) -> None:
        row = instance_row(self.shard, event)
        if self.instances.get(event.instance_id) != row:
            self.instances[event.instance_id] = row
            self._on_change(self.shard, "instance", event.instance_id, row)

    def _drop_instance(self, id: str) -> None:
        if self.instances.pop(id, None) is not None:
            self._on_change(self.shard, "instance", id, None)

    def _keep_size(self, group: Record) -> None:
        """For a chart: how the sizes of a group changed since this program started."""
        kept = self.sizes.setdefault(group["group"], deque(maxlen=SIZES_KEPT))
        sizes = {"size": group["size"], "actual": group["actual_size"], "ready": group["ready_size"]}
        if not kept or any(kept[-1][name] != value for name, value in sizes.items()):
            kept.append({"time": timestamp_ms(int(self._clock.wall() * 1000)), **sizes})

    # ---- events

    async def _read_events(self) -> None:
        while True:
            self._events_are_due.clear()
            try:
                while await self._read_page():
                    pass
            except errors.CommandError:
                pass  # the watch reports it
            if not await background.is_set_within(self._events_are_due, EVENT_POLL_SECONDS):
                await self.client.renew_if_due()

    async def _read_page(self) -> bool:
        """Whether there may be more."""
        if self.last_event is None:
            answer = await self.client.call("ListEvents", limit=EVENTS_KEPT)
        else:
            answer = await self.client.call("ListEvents", after_id=max(1, self.last_event), limit=EVENTS_PAGE)
        is_first, newest = self.last_event is None, self.last_event or 0
        if is_first and answer.events:
            self.forgotten_until = answer.events[0].id - 1
        for each in answer.events:
            newest = max(newest, each.id)
            record = records.NUMBERED_EVENT.fill(each, shard=self.shard)
            if len(self.events) >= EVENTS_KEPT:
                self.forgotten_until = self.events.popleft()[0]
            self.events.append((each.id, record))
            self._on_change(self.shard, "earlier-event" if is_first else "event", str(each.id), record)
        self.last_event = newest
        if is_first:
            self._on_change(self.shard, "status", "", self.record())
        return not is_first and len(answer.events) >= EVENTS_PAGE

    # ---- the control plane

    async def _read_control_plane(self) -> None:
        readings = 0
        while True:
            self._leader_is_due.clear()
            try:
                if readings % CONFIG_EVERY == 0:
                    self._config = records.config(self.shard, await self.client.call("GetConfigStatus"))
                    self._unknown_vms = len(await unknown_vms.list_unknown_vms(self.client))
                await self._read_leader()
                self._on_change(self.shard, "status", "", self.record())
                readings += 1
            except errors.CommandError:
                pass  # the watch reports it
            await background.is_set_within(self._leader_is_due, CONTROL_PLANE_SECONDS)

    async def _read_leader(self) -> None:
        self._control_plane = leader = await control_plane.read(self.client)
        if leader is None:
            return
        if not self.terms or self.terms[-1]["epoch"] != leader["epoch"]:
            began = timestamp_ms(int(self._clock.wall() * 1000) - leader["leading_ms"])
            self.terms.append({"leader": leader["leader"], "epoch": leader["epoch"], "since": began})

    def _set_problem(self, problem: str | None) -> None:
        if problem != self._problem:
            if self._problem is None:
                self._lost_at = self._clock.wall()
            self._problem = problem
            self._on_change(self.shard, "status", "", self.record())


def instance_row(shard: ShardId, event: Any) -> Record:
    """As little as a cell needs: there may be thousands."""
    row: Record = {"shard": shard, "id": event.instance_id, "group": event.group, "state": event.state}
    if event.ready:
        row["ready"] = True
    for name in ("suspect", "on_demand"):
        if getattr(event, name):
            row[name] = True
    for name in ("reason", "not_ready", "hostname", "ipv4", "instance_type"):
        if value := getattr(event, name):
            row[name] = value
    if event.revision:
        row["revision"] = records.short(event.revision)
    row["created"] = int(ids.created_at(InstanceId(event.instance_id)) * 1000)
    return row
