"""The links to all configured shards, started, moved and stopped as the configuration file changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from nstance.clock import Clock, Rng
from nstance.operator.config_file import Configuration
from nstance.operator.metrics import Metrics
from nstance.operator.options import WAITS, Waits
from nstance.operator.shards.link import Link, LinkContext
from nstance.operator.shards.ports import Listener, ShardRefusedError, ShardUnreachableError
from nstance.tasks import background
from nstance.v1 import operator_pb2 as pb
from nstance.v1 import registration_pb2
from nstance.wire.credentials import Credentials

log = logging.getLogger(__name__)


class Listeners(Listener):
    """Passes every change on to all listeners."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_shard_change(self, shard: str) -> None:
        self._notify(lambda listener: listener.on_shard_change(shard))

    def on_group_change(self, shard: str, group: str) -> None:
        self._notify(lambda listener: listener.on_group_change(shard, group))

    def on_instance_change(self, shard: str, event: pb.InstanceEvent) -> None:
        self._notify(lambda listener: listener.on_instance_change(shard, event))

    def on_error_event(self, shard: str, event: pb.Event) -> None:
        self._notify(lambda listener: listener.on_error_event(shard, event))

    def _notify(self, notify: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            try:
                notify(listener)
            except Exception:  # a bug in one listener must not keep the change from the others
                log.exception("failed to notify listener: unexpected error")


class Links:
    """All configured shards. A `ports.Shards`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        credentials: Callable[[], Credentials],
        metrics: Metrics,
        clock: Clock,
        rng: Rng,
        waits: Waits = WAITS,
    ) -> None:
        self._listeners = Listeners()
        self._context = LinkContext(
            credentials=credentials, listener=self._listeners, metrics=metrics, clock=clock, rng=rng, waits=waits
        )
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self.apply(configuration)

    def add_listener(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def names(self) -> tuple[str, ...]:
        return tuple(self._links)

    def get(self, name: str) -> Link | None:
        return self._links.get(name)

    def apply(self, configuration: Configuration) -> None:
        """Connects new shards, drops removed ones and moves those with other addresses."""
        before = self._links
        self._links = {}
        name: str
        for name, endpoints in configuration.shards.items():
            link = before.get(name) or Link(name, endpoints.operator, self._context)
            link.set_addresses(endpoints.operator)
            self._links[name] = link
        for name in before.keys() - self._links.keys():
            if name in self._tasks:
                self._tasks.pop(name).cancel()
        if self._running:
            self._start(self._links.keys() - before.keys())
        for name in before.keys() ^ self._links.keys():
            self._listeners.on_shard_change(name)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._running = True
        self._start(self._links)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            await background.end(self._tasks.values())

    async def renew_certificate(self) -> registration_pb2.RegisterResponse:
        """Asks one shard after the other. Raises ShardUnreachableError or ShardRefusedError of the last one."""
        problem: Exception = ShardUnreachableError("no shard is connected")
        for link in sorted(self._links.values(), key=lambda link: not link.synced):
            try:
                return await link.renew_certificate()
            except (ShardUnreachableError, ShardRefusedError) as error:
                problem = error
        raise problem

    def _start(self, names: Iterable[str]) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self._links[name].run(), name=f"shard {name}")
