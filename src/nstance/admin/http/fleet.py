"""What all shards look like now: one watch per shard, however many browsers look.

A shard's watch gives its groups and instances and says when events are durable; the events themselves are read by ID, so
that none is missed or doubled when the leader changes. Changes of a few milliseconds are encoded once, as one message for
all subscribers. A subscriber that does not keep up is ended: it starts again from a snapshot.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nstance.admin.client import Client
from nstance.admin.http.frames import Positions, encode, frame
from nstance.admin.shard import alarms
from nstance.admin.shard.records import Record
from nstance.admin.shard.shard_feed import ShardFeed
from nstance.clock import Clock, Rng
from nstance.model.ids import ShardId
from nstance.tasks import background

BATCH_SECONDS = 0.02
MAX_QUEUED = 500  # messages of one subscriber
FIRST_EVENTS = 200  # in a snapshot

LiveEvent = tuple[ShardId, int, Record]


class OverrunError(Exception):
    """The subscriber did not keep up."""


class Subscription:
    """A bounded queue of what the fleet publishes."""

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._overrun = False

    def offer(self, entry: Any) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._overrun = True
            self._queue.clear()
        elif not self._overrun:
            self._queue.append(entry)
        self._wake.set()

    async def take(self, *, timeout: float) -> Any | None:
        """The next entry; None if there is none in time. Raises OverrunError."""
        if not self._queue and not self._overrun:
            self._wake.clear()
            if not await background.is_set_within(self._wake, timeout):
                return None
        if self._overrun:
            raise OverrunError
        return self._queue.popleft()


class Fleet:
    def __init__(self, clients: Sequence[Client], clock: Clock, rng: Rng) -> None:
        self.feeds = {client.shard: ShardFeed(client, self._on_change, clock, rng) for client in clients}
        self._clock = clock
        self._views: list[Subscription] = []  # of whole messages
        self._followers: list[Subscription] = []  # of single events and of shards' statuses
        self._changes = _Changes()
        self._timer: asyncio.TimerHandle | None = None
        self._published_at = float("-inf")  # by the clock of the event loop
        self._snapshot: bytes | None = None
        self._alarms: list[Record] = []

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        async with background.running(work for feed in self.feeds.values() for work in feed.work()):
            try:
                yield
            finally:
                if self._timer is not None:
                    self._timer.cancel()

    # ---- subscribers

    @contextlib.contextmanager
    def view(self) -> Iterator[tuple[bytes, Subscription]]:
        """A snapshot and the messages that follow it, ready to be sent; each says how far it has read events."""
        self._publish()  # what is pending belongs to those that are there already
        if self._snapshot is None:
            self._snapshot = frame("snapshot", encode(self.document()), self.positions())
        with self._subscribed(self._views) as subscription:
            yield self._snapshot, subscription

    @contextlib.contextmanager
    def followed(self) -> Iterator[Subscription]:
        """Events as `LiveEvent`, and changes of a shard's status as its ID."""
        with self._subscribed(self._followers) as subscription:
            yield subscription

    @contextlib.contextmanager
    def _subscribed(self, where: list[Subscription]) -> Iterator[Subscription]:
        subscription = Subscription()
        where.append(subscription)
        try:
            yield subscription
        finally:
            where.remove(subscription)

    def positions(self) -> dict[ShardId, int]:
        return {shard: feed.last_event for shard, feed in self.feeds.items() if feed.last_event is not None}

    def events_after(self, positions: Positions) -> tuple[list[Record], list[ShardFeed]]:
        """What a subscriber with these positions has missed, and the shards of which that is not kept (any more)."""
        missed: list[Record] = []
        unknown: list[ShardFeed] = []
        for shard, last in positions.items():
            feed = self.feeds.get(shard)
            if feed is not None and (feed.last_event is None or last < feed.forgotten_until):
                unknown.append(feed)
            elif feed is not None:
                missed += [record for id, record in feed.events if id > last]
        return missed, unknown

    # ---- changes

    def _on_change(self, shard: ShardId, kind: str, key: str, record: Record | None) -> None:
        """Of a shard: `record` is None for what is gone. Earlier events are new to views whose snapshot was made before
        they were read; followers of single events ask for them."""
        self._changes.add(shard, "event" if kind == "earlier-event" else kind, key, record)
        if kind == "event":
            assert record is not None
            self._tell((shard, record["id"], record))
        elif kind == "status":
            self._tell(shard)
        if self._timer is None:  # at once after a pause, and then in batches
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._published_at + BATCH_SECONDS), self._publish)

    def _tell(self, entry: LiveEvent | ShardId) -> None:
        for follower in self._followers:
            follower.offer(entry)

    def _publish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._changes.is_empty:
            return
        self._published_at = asyncio.get_running_loop().time()
        changes, self._changes = self._changes, _Changes()
        self._snapshot = None
        document = changes.document()
        if changes.concerns_alarms:
            found = self.alarms()
            if found != self._alarms:
                self._alarms = document["alarms"] = found
        if self._views:
            entry = frame("change", encode(document), self.positions())
            for view in self._views:
                view.offer(entry)

    def alarms(self) -> list[Record]:
        return alarms.find(
            [feed.record() for feed in self.feeds.values()],
            [group for feed in self.feeds.values() for group in feed.groups.values()],
            (record for feed in self.feeds.values() for _, record in feed.events),
            now=self._clock.wall(),
        )

    def document(self) -> Record:
        self._alarms = self.alarms()
        newest: list[Record] = [record for feed in self.feeds.values() for _, record in feed.events]
        newest.sort(key=lambda record: str(record["time"]))
        return {
            "shards": [feed.record() for feed in self.feeds.values()],
            "groups": [group for feed in self.feeds.values() for group in feed.groups.values()],
            "instances": [row for feed in self.feeds.values() for row in feed.instances.values()],
            "events": newest[-FIRST_EVENTS:],
            "alarms": self._alarms,
        }


class _Changes:
    """What changed since the last message; of a thing that changed twice only the newest."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, ShardId, str], Record | None] = {}

    @property
    def is_empty(self) -> bool:
        return not self._newest

    @property
    def concerns_alarms(self) -> bool:
        return any(kind in ("status", "group") for kind, _, _ in self._newest)

    def add(self, shard: ShardId, kind: str, key: str, record: Record | None) -> None:
        self._newest[kind, shard, key] = record

    def document(self) -> Record:
        return {
            "shards": list(self._records("status")),
            "groups": list(self._records("group")),
            "instances": list(self._records("instance")),
            "events": list(self._records("event")),
            "gone_groups": list(self._gone("group")),
            "gone_instances": list(self._gone("instance")),
        }

    def _records(self, wanted: str) -> Iterable[Record]:
        return (record for (kind, _, _), record in self._newest.items() if kind == wanted and record is not None)

    def _gone(self, wanted: str) -> Iterable[tuple[ShardId, str]]:
        return (
            (shard, key) for (kind, shard, key), record in self._newest.items() if kind == wanted and record is None
        )
