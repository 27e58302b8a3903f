"""Records peers whose certificate is of this cluster but not for the port they connected to.

Each peer is recorded at most once a minute, so that one that keeps trying does not fill the event log.
"""

import logging

from nstance.clock import Clock
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, InstanceId
from nstance.pki import names
from nstance.server.state.shard import Shard
from nstance.wire.peer import Connection

log = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0
MAX_REMEMBERED_PEERS = 1_000


class RejectedPeers:
    def __init__(self, shard: Shard, clock: Clock) -> None:
        self._shard = shard
        self._clock = clock
        self._recorded_at: dict[str, float] = {}  # by peer, oldest first

    def on_reject(self, connection: Connection, reason: str) -> None:
        identity = connection.identity
        peer = names.uri(identity) if identity is not None else connection.address
        now = self._clock.monotonic()
        if now < self._recorded_at.get(peer, float("-inf")) + REPEAT_SECONDS:
            return
        self._recorded_at.pop(peer, None)  # goes to the end
        while len(self._recorded_at) >= MAX_REMEMBERED_PEERS:
            self._recorded_at.pop(next(iter(self._recorded_at)))
        self._recorded_at[peer] = now
        log.warning("peer rejected", extra={"peer": peer, "address": connection.address, "reason": reason})
        if isinstance(identity, names.Agent | names.Operator):
            shard = self._shard
            instance = shard.instances.get(InstanceId(identity.id))
            key = instance.key if instance is not None else GroupKey(identity.tenant, GroupName(""))
            message = f"connection of {peer} rejected: {reason}"
            shard.event_log.record(key, ReasonCode.SECURITY, message, instance.id if instance is not None else None)
