"""Events about groups that are held: created through the API, missing from the configuration, deleted by nobody."""

from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.server.config.active_config import ConfigChange
from nstance.server.state.shard import Shard

HELD_GROUP = (
    "group held, nothing is created or deleted: it was created through the API and is missing from groups.jsonc; "
    "configure it again, or delete it by name"
)


class HeldGroups:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._recorded: frozenset[GroupKey] = frozenset()

    def record(self, change: ConfigChange | None = None) -> None:
        """Record each held group once."""
        held = self._shard.held_groups()
        for key in held:
            if key not in self._recorded:
                self._shard.event_log.record(key, ReasonCode.BLOCKED, HELD_GROUP)
        self._recorded = frozenset(held)
