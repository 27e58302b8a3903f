"""Watches of operators: a snapshot, then every change, in order.

Each visible change of an instance is sent; of groups the newest status, with a burst of changes as one message. A watcher
has a bounded queue. One that reads too slowly is ended with an error, because a skipped change would never be noticed.
The trap: the snapshot and the queue must begin at the same moment, so `open` never waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nstance.clock import Clock
from nstance.model.decision import TROUBLE
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import ENDED, Instance, Put, State
from nstance.objects import slots
from nstance.server.api.statuses import Statuses
from nstance.server.cache.cache import Event
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.leader import history
from nstance.server.state.commits import Committed
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.waits import WAITS, Waits
from nstance.v1 import operator_pb2

MAX_QUEUED_MESSAGES = 10_000
YIELD_EVERY_MESSAGES = 64  # of a snapshot
BATCH_SECONDS = 0.02  # changes of a group within this time are one message

Message = operator_pb2.WatchMessage
Known = dict[GroupKey, operator_pb2.GroupStatus]


class WatcherOverrunError(Exception):
    """The watcher did not keep up."""


@dataclass(frozen=True, slots=True)
class Kinds:
    groups: bool
    instances: bool
    errors: bool
    events: bool = False  # only if requested by name


def kinds(request: operator_pb2.WatchRequest) -> Kinds:
    """A request without any kind means all."""
    requested = Kinds(request.groups, request.instances, request.errors, request.events)
    return requested if requested != Kinds(False, False, False) else Kinds(True, True, True)


@dataclass(slots=True)
class Watcher:
    tenant: TenantId
    kinds: Kinds
    snapshot: list[operator_pb2.GroupStatus | Instance]
    overrun: bool = False
    _queue: deque[Message] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _sequence: int = 0

    def offer(self, message: Message) -> None:
        if self.overrun:
            return
        if len(self._queue) >= MAX_QUEUED_MESSAGES:
            self.overrun = True
            self._queue.clear()
        else:
            self._queue.append(message)
        self._wake.set()

    def numbered(self, message: Message) -> Message:
        """The message with its sequence number. Numbers have no gaps, so that a client could notice a lost message."""
        self._sequence += 1
        numbered = Message(sequence=self._sequence)
        numbered.MergeFrom(message)
        return numbered

    async def take(self) -> Message:
        """The next message. Raises WatcherOverrunError."""
        while not self._queue and not self.overrun:
            self._wake.clear()
            await self._wake.wait()
        if self.overrun:
            raise WatcherOverrunError
        return self._queue.popleft()


class Watchers:
    def __init__(
        self, active_config: ActiveConfig, records: CommittedRecords, statuses: Statuses, waits: Waits = WAITS
    ) -> None:
        self._active_config = active_config
        self._records = records
        self._statuses = statuses
        self._waits = waits
        self._watchers: dict[TenantId, list[Watcher]] = {}
        self._sent: dict[TenantId, Known] = {}  # the group statuses that watchers have
        self._changed: set[GroupKey] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))

    @contextmanager
    def open(self, tenant: TenantId, kinds: Kinds) -> Iterator[Watcher]:
        """A watcher whose queue begins where its snapshot ends."""
        self._send_groups()
        if tenant not in self._sent:
            self._sent[tenant] = {
                key: status for key in self._keys(tenant) if (status := self._status(key)) is not None
            }
        snapshot: list[operator_pb2.GroupStatus | Instance] = []
        if kinds.groups:
            snapshot += [status for _, status in sorted(self._sent[tenant].items())]
        if kinds.instances:
            living = [i for i in self._records.of_tenant(tenant) if i.state not in ENDED]
            living.sort(key=lambda instance: instance.id)
            snapshot += living
        watcher = Watcher(tenant, kinds, snapshot)
        self._watchers.setdefault(tenant, []).append(watcher)
        try:
            yield watcher
        finally:
            others = self._watchers[tenant]
            others.remove(watcher)
            if not others:
                del self._watchers[tenant], self._sent[tenant]

    async def send(self, stream: Any, watcher: Watcher, *, clock: Clock, admit: Callable[[], Awaitable[None]]) -> None:
        """Sends the snapshot and all changes until the operator is not admitted any more. Raises WatcherOverrunError."""
        for number, part in enumerate(watcher.snapshot):
            await stream.send_message(watcher.numbered(self.message(part)))
            if number % YIELD_EVERY_MESSAGES == 0:
                await asyncio.sleep(0)
        watcher.snapshot.clear()
        await stream.send_message(watcher.numbered(Message(snapshot_end=operator_pb2.SnapshotEnd())))
        admit_at = clock.monotonic() + self._waits.watch_admission_interval
        while True:
            try:
                async with asyncio.timeout(max(0.0, admit_at - clock.monotonic())):
                    message = await watcher.take()
            except TimeoutError:
                message = None
            if message is not None:
                await stream.send_message(watcher.numbered(message))
            if clock.monotonic() >= admit_at:
                await admit()
                admit_at = clock.monotonic() + self._waits.watch_admission_interval

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def message(self, part: operator_pb2.GroupStatus | Instance) -> Message:
        """The message for a part of a snapshot."""
        if isinstance(part, Instance):
            return Message(instance=self._statuses.instance_event(part))
        return Message(group=part)

    def observe(self, committed: Committed) -> None:
        """Call this after `CommittedRecords.observe`."""
        key = committed.key
        if key.tenant not in self._watchers:
            return
        self._mark_changed(key)
        self._send_errors(key.tenant, committed)
        watching = [w for w in self._watchers[key.tenant] if w.kinds.instances]
        for change in committed.changes if watching else ():
            if not isinstance(change, Put):
                continue
            before = committed.before.get(change.instance.id)
            event = self._statuses.instance_event(change.instance, before)
            if before is not None and event == self._statuses.instance_event(before):
                continue  # no visible change
            for watcher in watching:
                watcher.offer(Message(instance=event))

    def on_slot(self, slot: slots.Slot) -> None:
        """The slot is in the journal, and so are its events."""
        if not any(watcher.kinds.events for watching in self._watchers.values() for watcher in watching):
            return
        for event in history.events(slot):
            for watcher in self._watchers.get(event.tenant, ()):
                if watcher.kinds.events:
                    watcher.offer(Message(event=event_message(event)))

    def on_readiness_change(self, id: InstanceId) -> None:
        """The readiness of a running instance changes without its record."""
        instance = self._records.get(id)
        if instance is None or instance.tenant not in self._watchers or instance.state is not State.RUNNING:
            return
        self._mark_changed(instance.key)
        message: Message | None = None
        for watcher in self._watchers[instance.tenant]:
            if watcher.kinds.instances:
                message = message or Message(instance=self._statuses.instance_event(instance))
                watcher.offer(message)

    def on_config_change(self, change: ConfigChange) -> None:
        """Any group may have changed."""
        for tenant in self._watchers:
            for key in {*self._keys(tenant), *self._sent[tenant]}:
                self._mark_changed(key)

    def _send_errors(self, tenant: TenantId, committed: Committed) -> None:
        for reason in committed.reasons:
            if reason.code in TROUBLE:
                for watcher in self._watchers[tenant]:
                    if watcher.kinds.errors:
                        watcher.offer(Message(error=self._statuses.event(committed.key, reason)))

    def _mark_changed(self, key: GroupKey) -> None:
        self._changed.add(key)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._send_groups)

    def _send_groups(self) -> None:
        """Sends the status of each changed group."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed, self._changed = self._changed, set()
        for key in changed:
            known = self._sent.get(key.tenant)
            if known is None:
                continue
            status = self._status(key)
            if status == known.get(key):
                continue
            if status is None:
                del known[key]
                message = Message(group_deleted=key.name)
            else:
                known[key] = status
                message = Message(group=status)
            for watcher in self._watchers[key.tenant]:
                if watcher.kinds.groups:
                    watcher.offer(message)

    def _keys(self, tenant: TenantId) -> list[GroupKey]:
        return [key for key in self._active_config.configuration.groups if key.tenant == tenant]

    def _status(self, key: GroupKey) -> operator_pb2.GroupStatus | None:
        configuration = self._active_config.configuration
        resolved = configuration.groups.get(key)
        return self._statuses.group(resolved, configuration.dynamic.groups.get(key)) if resolved is not None else None


def event_message(event: Event) -> operator_pb2.Event:
    return operator_pb2.Event(
        time_unix_ms=int(event.time * 1000),
        group=event.group,
        instance_id=event.instance,
        reason=event.code,
        message=event.message,
        id=event.id,
        trouble=event.needs_attention,
    )
