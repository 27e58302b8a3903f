"""The agents that are connected, and when each was last seen.

An agent has one connection at a time; a newer one replaces an older one, whose end then means nothing. An agent is
connected while its health stream is open. Ping answers count too, so `last_seen` comes from the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from nstance.clock import Clock
from nstance.model import events as ev
from nstance.model.ids import InstanceId
from nstance.server.liveness.agent_quota import AgentQuota, agent_quota
from nstance.server.liveness.clones import Clones
from nstance.server.workload.file_sets import IssuedCertificate
from nstance.v1 import agent_pb2
from nstance.wire.flag import Flag
from nstance.wire.peer import Connection


@dataclass(slots=True)
class Presence:
    """One agent's connection and what belongs to it."""

    id: InstanceId
    connection: Connection
    changed: asyncio.Event = field(default_factory=Flag)  # its files may have changed
    keys_changed: asyncio.Event = field(default_factory=Flag)
    public_keys: dict[str, bytes] = field(default_factory=dict)
    boot_id: str = ""
    sequence: int = 0
    reported: float | None = None  # steady time of the last report
    report: agent_pb2.HealthReport | None = None
    healthy: bool = False  # its health stream is open
    wanted_hash: str = ""  # of the file set that it should have; empty if that is not known yet
    blocked: str = ""  # why that set cannot be made
    readiness: ev.ReadinessReported | None = None  # as posted last
    checks_sent: str | None = None  # hash of the checks that were sent on this connection
    push: Callable[[], Awaitable[None]] | None = None  # sends new checks on its health stream


class ConnectedAgents:
    def __init__(self, post: Callable[[ev.Event], None], count: Callable[[int], None], clock: Clock) -> None:
        self.clones = Clones()
        self._post = post
        self._count = count
        self._clock = clock
        self._quotas: dict[InstanceId, AgentQuota] = {}  # these two outlive connections
        self._issued: dict[InstanceId, dict[str, IssuedCertificate]] = {}
        self._present: dict[InstanceId, Presence] = {}
        self._last: dict[InstanceId, float] = {}  # when disconnected agents were last seen
        self._connected = 0

    def __len__(self) -> int:
        return self._connected

    def get(self, id: InstanceId) -> Presence | None:
        return self._present.get(id)

    def last_seen(self, id: InstanceId) -> float | None:
        """On the monotonic clock; None if it was never connected."""
        presence = self._present.get(id)
        return presence.connection.last_seen if presence is not None and presence.healthy else self._last.get(id)

    def has_left(self, id: InstanceId) -> bool:
        """Whether it has disconnected in this term; it may be connected again."""
        return id in self._last

    def allowance(self, id: InstanceId) -> AgentQuota:
        """Shared by all connections of the agent."""
        quota = self._quotas.get(id)
        if quota is None:
            quota = self._quotas[id] = agent_quota(self._clock.monotonic())
        return quota

    def issued(self, id: InstanceId) -> dict[str, IssuedCertificate]:
        return self._issued.setdefault(id, {})

    def addresses(self) -> dict[InstanceId, str]:
        """The addresses of connected agents."""
        return {id: presence.connection.address for id, presence in self._present.items() if presence.healthy}

    def at(self, id: InstanceId, connection: Connection) -> Presence:
        """The presence that a stream of this connection belongs to."""
        presence = self._present.get(id)
        if presence is None or presence.connection is not connection:
            if presence is not None:
                presence.connection.abort()
            presence = self._present[id] = Presence(id, connection)
        return presence

    def on_connect(self, presence: Presence) -> None:
        self._mark(presence, healthy=True)
        self._post(ev.AgentConnected(presence.id))

    def on_disconnect(self, presence: Presence, *, goodbye: bool) -> None:
        self._mark(presence, healthy=False)
        if self._present.get(presence.id) is presence:
            del self._present[presence.id]
            self._last[presence.id] = presence.connection.last_seen
            if not goodbye:
                self._post(ev.AgentLost(presence.id))

    def nudge(self, ids: Iterable[InstanceId] | None = None) -> None:
        """The files of these instances, and the keys that they need, may have changed; None: of all."""
        for id in list(self._present) if ids is None else ids:
            presence = self._present.get(id)
            if presence is not None:
                presence.changed.set()
                presence.keys_changed.set()

    def drop(self, id: InstanceId) -> None:
        """The instance is deleted: its agent is disconnected."""
        presence = self._present.pop(id, None)
        self._last.pop(id, None)
        self._quotas.pop(id, None)
        self._issued.pop(id, None)
        self.clones.forget(id)
        if presence is not None:
            self._mark(presence, healthy=False)
            presence.connection.abort()

    def _mark(self, presence: Presence, *, healthy: bool) -> None:
        if presence.healthy != healthy:
            presence.healthy = healthy
            self._connected += 1 if healthy else -1
            self._count(self._connected)
