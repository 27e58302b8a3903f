"""Peers with a certificate of this cluster that is none for the port they came to (B14).

Each is written down for its tenant and in the log, once a minute at most: whoever knocks all day must not push everything
else out of the history.
"""

import logging

from nstance.clock import Clock
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, InstanceId
from nstance.pki import names
from nstance.server.state.shard import Shard
from nstance.wire.peer import Connection

log = logging.getLogger(__name__)

AGAIN_SECONDS = 60.0
MAX_REMEMBERED = 1_000


class RejectedPeers:
    def __init__(self, shard: Shard, clock: Clock) -> None:
        self._shard = shard
        self._clock = clock
        self._told: dict[str, float] = {}  # who, and when we last said so

    def refused(self, connection: Connection, reason: str) -> None:
        who = connection.identity
        name = names.uri(who) if who is not None else connection.address
        now = self._clock.monotonic()
        if now < self._told.get(name, float("-inf")) + AGAIN_SECONDS:
            return
        self._told.pop(name, None)  # the order is that of time
        while len(self._told) >= MAX_REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told[name] = now
        log.warning("a peer was refused", extra={"peer": name, "address": connection.address, "reason": reason})
        if isinstance(who, names.Agent | names.Operator):
            shard = self._shard
            instance = shard.instances.get(InstanceId(who.id))
            key = instance.key if instance is not None else GroupKey(who.tenant, GroupName(""))
            message = f"{name} came to a port that is not its own, and was refused: {reason}"
            shard.event_log.record(key, ReasonCode.SECURITY, message, instance.id if instance is not None else None)
