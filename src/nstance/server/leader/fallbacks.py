"""The revision that new instances are made from while a rollout is paused or halted, or has no capacity."""

from collections.abc import Mapping
from dataclasses import dataclass

from nstance.config.resolve import Resolved
from nstance.core import rollout
from nstance.model.decision import Fallback
from nstance.model.ids import GroupKey
from nstance.model.rollout import GroupRecord
from nstance.server.config.active_config import ActiveConfig
from nstance.server.leader.blocked_groups import BlockedGroups
from nstance.server.leader.earlier_revisions import EarlierRevisions
from nstance.server.state.inbox import Inbox
from nstance.server.workload import rendering


@dataclass(eq=False)
class Fallbacks:
    """Of one shard during one term."""

    records: Mapping[GroupKey, GroupRecord]
    active_config: ActiveConfig
    earlier: EarlierRevisions
    blocked_groups: BlockedGroups
    inbox: Inbox

    def find(self, key: GroupKey) -> Fallback | None:
        """None: there is no earlier revision, or no VM can be made from it any more."""
        current, record = self.active_config.configuration.groups.get(key), self.records.get(key)
        if current is None:
            return None
        for infra_hash in rollout.fallback_revisions(record, current.group):
            resolved = self.earlier.resolve(current, infra_hash)
            if resolved is None:
                return Fallback(None, f"revision {rollout.short_hash(infra_hash)} is being read")
            if resolved is not current and self._can_be_made(current, resolved):
                return Fallback(resolved.group, self.blocked_groups.reason_of(resolved))
        return None

    def _can_be_made(self, current: Resolved, resolved: Resolved) -> bool:
        """Whether the configuration still has what the revision uses."""
        group, settings = resolved.group, self.active_config.configuration.settings
        texts = [*rendering.texts(resolved.args), *([resolved.userdata.content] if resolved.userdata else [])]
        return (
            group.kind == current.group.kind
            and (not group.subnet_pool or group.subnet_pool in settings.shard.subnet_pools)
            and not rendering.undefined_images(texts, settings.images)
        )

    def update(self) -> None:
        """An image or userdata was found or changed."""
        self.inbox.look_again([key for key in self.records if self.find(key) is not None])
