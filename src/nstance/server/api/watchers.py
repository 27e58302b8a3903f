"""Who follows what happens: a snapshot, then every change of it, in order.

Instances: each change that an operator can see is told. Groups: the newest status is told, a burst of changes as one.
A watcher has a bounded queue; one that does not read is cut off and told so, because a change that was skipped in silence
would never be made good. The trap: the snapshot and the queue must begin at the same moment, so `open` never waits.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nstance.model.decision import TROUBLE
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import ENDED, Instance, Put, State
from nstance.server.api.statuses import Statuses
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.state.commits import Committed
from nstance.server.state.committed_records import CommittedRecords
from nstance.v1 import operator_pb2

MAX_WAITING = 10_000  # messages that a watcher has not taken yet
GATHER_SECONDS = 0.02  # what changes of a group within this time is told at once

Message = operator_pb2.WatchMessage
Known = dict[GroupKey, operator_pb2.GroupStatus]


class WatcherOverrunError(Exception):
    """The watcher did not keep up."""


@dataclass(frozen=True, slots=True)
class Kinds:
    groups: bool
    instances: bool
    errors: bool


def kinds(request: operator_pb2.WatchRequest) -> Kinds:
    """None of them means all."""
    asked = Kinds(request.groups, request.instances, request.errors)
    return asked if asked != Kinds(False, False, False) else Kinds(True, True, True)


@dataclass(slots=True)
class Watcher:
    tenant: TenantId
    kinds: Kinds
    snapshot: list[operator_pb2.GroupStatus | Instance]
    overrun: bool = False
    _waiting: deque[Message] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _sequence: int = 0

    def offer(self, message: Message) -> None:
        if self.overrun:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.overrun = True
            self._waiting.clear()
        else:
            self._waiting.append(message)
        self._news.set()

    def numbered(self, message: Message) -> Message:
        """As it is sent: without gaps, so that the reader could notice one."""
        self._sequence += 1
        numbered = Message(sequence=self._sequence)
        numbered.MergeFrom(message)
        return numbered

    async def take(self) -> Message:
        """The next one. Raises Overrun."""
        while not self._waiting and not self.overrun:
            self._news.clear()
            await self._news.wait()
        if self.overrun:
            raise WatcherOverrunError
        return self._waiting.popleft()


class Watchers:
    def __init__(self, active_config: ActiveConfig, records: CommittedRecords, statuses: Statuses) -> None:
        self._active_config = active_config
        self._records = records
        self._statuses = statuses
        self._watchers: dict[TenantId, list[Watcher]] = {}
        self._known: dict[TenantId, Known] = {}  # what watchers were told of groups
        self._dirty: set[GroupKey] = set()
        self._gathering: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))

    @contextmanager
    def open(self, tenant: TenantId, kinds: Kinds) -> Iterator[Watcher]:
        """A watcher whose queue begins where its snapshot ends."""
        self._tell_groups()
        if tenant not in self._known:
            self._known[tenant] = {
                key: status for key in self._keys(tenant) if (status := self._status(key)) is not None
            }
        snapshot: list[operator_pb2.GroupStatus | Instance] = []
        if kinds.groups:
            snapshot += [status for _, status in sorted(self._known[tenant].items())]
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
                del self._watchers[tenant], self._known[tenant]

    def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()

    def message(self, part: operator_pb2.GroupStatus | Instance) -> Message:
        """Of a snapshot's part."""
        if isinstance(part, Instance):
            return Message(instance=self._statuses.instance_event(part))
        return Message(group=part)

    def observe(self, committed: Committed) -> None:
        """After the records have followed."""
        key = committed.key
        if key.tenant not in self._watchers:
            return
        self._touch(key)
        self._tell_errors(key.tenant, committed)
        watching = [w for w in self._watchers[key.tenant] if w.kinds.instances]
        for change in committed.changes if watching else ():
            if not isinstance(change, Put):
                continue
            before = committed.before.get(change.instance.id)
            told = self._statuses.instance_event(change.instance, before)
            if before is not None and told == self._statuses.instance_event(before):
                continue  # nothing that an operator sees
            for watcher in watching:
                watcher.offer(Message(instance=told))

    def readiness_changed(self, id: InstanceId) -> None:
        """Of a running instance, although its record stays as it is."""
        instance = self._records.get(id)
        if instance is None or instance.tenant not in self._watchers or instance.state is not State.RUNNING:
            return
        self._touch(instance.key)
        told: Message | None = None
        for watcher in self._watchers[instance.tenant]:
            if watcher.kinds.instances:
                told = told or Message(instance=self._statuses.instance_event(instance))
                watcher.offer(told)

    def on_config_change(self, change: ConfigChange) -> None:
        """Any group may have changed."""
        for tenant in self._watchers:
            for key in {*self._keys(tenant), *self._known[tenant]}:
                self._touch(key)

    def _tell_errors(self, tenant: TenantId, committed: Committed) -> None:
        for reason in committed.reasons:
            if reason.code in TROUBLE:
                for watcher in self._watchers[tenant]:
                    if watcher.kinds.errors:
                        watcher.offer(Message(error=self._statuses.event(committed.key, reason)))

    def _touch(self, key: GroupKey) -> None:
        self._dirty.add(key)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell_groups)

    def _tell_groups(self) -> None:
        """Whatever differs from what was told last."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        dirty, self._dirty = self._dirty, set()
        for key in dirty:
            known = self._known.get(key.tenant)
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
