"""The links to all shards of the configuration: started, moved and ended as its file changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from nstance.clock import Clock, Rng
from nstance.operator.config_file import Configuration, Endpoints
from nstance.operator.metrics import Metrics
from nstance.operator.shards.link import Link
from nstance.operator.shards.ports import Listener, ShardRefusedError, ShardUnreachableError
from nstance.v1 import operator_pb2 as pb
from nstance.v1 import registration_pb2
from nstance.wire.credentials import Credentials

log = logging.getLogger(__name__)


class Listeners:
    """Tells everybody who listens. A `ports.Listener`."""

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def add(self, listener: Listener) -> None:
        self._all.append(listener)

    def shard_changed(self, shard: str) -> None:
        self._tell(lambda each: each.shard_changed(shard))

    def group_changed(self, shard: str, group: str) -> None:
        self._tell(lambda each: each.group_changed(shard, group))

    def instance_changed(self, shard: str, event: pb.InstanceEvent) -> None:
        self._tell(lambda each: each.instance_changed(shard, event))

    def trouble_heard(self, shard: str, event: pb.Event) -> None:
        self._tell(lambda each: each.trouble_heard(shard, event))

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        for each in self._all:
            try:
                tell(each)
            except Exception:  # a defect of one listener must not keep the change from the others
                log.exception("a listener failed")


class Links:
    """All shards of the configuration. A `ports.Shards`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        credentials: Callable[[], Credentials],
        metrics: Metrics,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._credentials = credentials
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._listeners = Listeners()
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self.apply(configuration)

    def listen(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def names(self) -> tuple[str, ...]:
        return tuple(self._links)

    def get(self, name: str) -> Link | None:
        return self._links.get(name)

    def apply(self, configuration: Configuration) -> None:
        """Shards that are new are connected, those that are gone let go of, those that moved followed."""
        before = self._links
        self._links = {}
        name: str
        for name, endpoints in configuration.shards.items():
            link = before.get(name) or self._new(name, endpoints)
            link.move(endpoints.operator)
            self._links[name] = link
        for name in before.keys() - self._links.keys():
            if name in self._tasks:
                self._tasks.pop(name).cancel()
        if self._running:
            self._start(self._links.keys() - before.keys())
        for name in before.keys() ^ self._links.keys():
            self._listeners.shard_changed(name)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._running = True
        self._start(self._links)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def renew_certificate(self) -> registration_pb2.RegisterResponse:
        """By any shard that answers. Raises ShardUnreachable or ShardRefused with the last one's reason."""
        problem: Exception = ShardUnreachableError("no shard is connected")
        for link in sorted(self._links.values(), key=lambda link: not link.synced):
            try:
                return await link.renew_certificate()
            except (ShardUnreachableError, ShardRefusedError) as error:
                problem = error
        raise problem

    def _new(self, name: str, endpoints: Endpoints) -> Link:
        return Link(
            name,
            endpoints.operator,
            credentials=self._credentials,
            listener=self._listeners,
            metrics=self._metrics,
            clock=self._clock,
            rng=self._rng,
        )

    def _start(self, names: Iterable[str]) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self._links[name].run(), name=f"shard {name}")
