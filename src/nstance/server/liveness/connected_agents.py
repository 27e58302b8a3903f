"""Which agents are connected, and what was heard of them last.

An agent has one connection at a time; a newer one takes the place of an older one, whose end then says nothing. Being
connected means: its health stream is open. Ping answers count as signs of life, so silence is read off the connection.
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
    changed: asyncio.Event = field(default_factory=Flag)  # something about its files may be new
    keys_changed: asyncio.Event = field(default_factory=Flag)
    public_keys: dict[str, bytes] = field(default_factory=dict)
    boot_id: str = ""
    sequence: int = 0
    reported: float | None = None  # steady time of the last report
    report: agent_pb2.HealthReport | None = None
    healthy: bool = False  # its health stream is open
    wanted_hash: str = ""  # of the file set that it should have; empty before that was worked out
    blocked: str = ""  # why that set cannot be made
    readiness: ev.ReadinessReported | None = None  # what was posted last
    checks_sent: str | None = None  # hash of the checks that it was told on this connection
    push: Callable[[], Awaitable[None]] | None = None  # tells it on its health stream what is new


class ConnectedAgents:
    def __init__(self, post: Callable[[ev.Event], None], count: Callable[[int], None], clock: Clock) -> None:
        self.clones = Clones()
        self._post = post
        self._count = count
        self._clock = clock
        self._allowances: dict[InstanceId, AgentQuota] = {}  # these two outlive connections, and end with the instance
        self._issued: dict[InstanceId, dict[str, IssuedCertificate]] = {}
        self._present: dict[InstanceId, Presence] = {}
        self._last: dict[InstanceId, float] = {}  # of those that went: when they were heard
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
        """It was connected in this term; now it is not, or has come back."""
        return id in self._last

    def allowance(self, id: InstanceId) -> AgentQuota:
        """How much it may say and cause, on all its connections together."""
        found = self._allowances.get(id)
        if found is None:
            found = self._allowances[id] = agent_quota(self._clock.monotonic())
        return found

    def issued(self, id: InstanceId) -> dict[str, IssuedCertificate]:
        return self._issued.setdefault(id, {})

    def addresses(self) -> dict[InstanceId, str]:
        """The addresses from which those that are connected speak."""
        return {id: presence.connection.address for id, presence in self._present.items() if presence.healthy}

    def at(self, id: InstanceId, connection: Connection) -> Presence:
        """The presence that a stream of this connection belongs to."""
        presence = self._present.get(id)
        if presence is None or presence.connection is not connection:
            if presence is not None:
                presence.connection.abort()
            presence = self._present[id] = Presence(id, connection)
        return presence

    def came(self, presence: Presence) -> None:
        self._mark(presence, healthy=True)
        self._post(ev.AgentConnected(presence.id))

    def went(self, presence: Presence, *, goodbye: bool) -> None:
        self._mark(presence, healthy=False)
        if self._present.get(presence.id) is presence:
            del self._present[presence.id]
            self._last[presence.id] = presence.connection.last_seen
            if not goodbye:
                self._post(ev.AgentLost(presence.id))

    def nudge(self, ids: Iterable[InstanceId] | None = None) -> None:
        """What these instances should hold may have changed; None: all of them."""
        for id in list(self._present) if ids is None else ids:
            presence = self._present.get(id)
            if presence is not None:
                presence.changed.set()

    def ask_keys(self, ids: Iterable[InstanceId] | None = None) -> None:
        """The keys that these instances need may have changed."""
        for id in list(self._present) if ids is None else ids:
            presence = self._present.get(id)
            if presence is not None:
                presence.keys_changed.set()

    def drop(self, id: InstanceId) -> None:
        """The instance is no longer ours: its agent is not listened to."""
        presence = self._present.pop(id, None)
        self._last.pop(id, None)
        self._allowances.pop(id, None)
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
