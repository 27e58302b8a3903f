"""What a leader knows of its shard: records, observations and desired groups, in memory.

The records run ahead of the journal by what is being written. That is safe because a commit that fails ends the term and
discards all of this. Only the shard changes it; everything else reads.
"""

from collections.abc import Mapping, Sequence

from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import ENDED, Change, Instance, Put, Remove, State
from nstance.model.observation import Observation, last_seen_at
from nstance.model.rollout import GroupRecord
from nstance.objects import slots


class ShardState:
    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        group_records: Mapping[GroupKey, GroupRecord],
        desired_groups: Mapping[GroupKey, Group],
    ) -> None:
        self._instances = dict(instances)
        self._group_records = dict(group_records)
        self._facts: dict[InstanceId, Observation] = {}
        self._members: dict[GroupKey, dict[InstanceId, Instance]] = {}
        self._key_owners: dict[str, InstanceId] = {}
        self.desired_groups = desired_groups
        for instance in self._instances.values():
            self._index(instance)

    @property
    def instances(self) -> Mapping[InstanceId, Instance]:
        return self._instances

    @property
    def facts(self) -> Mapping[InstanceId, Observation]:
        return self._facts

    @property
    def group_records(self) -> Mapping[GroupKey, GroupRecord]:
        return self._group_records

    def members(self, key: GroupKey) -> Mapping[InstanceId, Instance]:
        return self._members.get(key, {})

    def keys(self) -> list[GroupKey]:
        """All groups that are desired or have members, each once, in an order that a seed reproduces."""
        return list(dict.fromkeys((*self.desired_groups, *(key for key, members in self._members.items() if members))))

    def tenants(self) -> set[TenantId]:
        return {key.tenant for key in self.keys()}

    def is_wanted(self, id: InstanceId) -> bool:
        """Whether no decision has been made to delete the instance."""
        instance = self._instances.get(id)
        return instance is not None and instance.state is not State.DELETING and instance.state not in ENDED

    def owner_of_key(self, public_key: str) -> InstanceId | None:
        return self._key_owners.get(public_key)

    # ---- changes, by the shard alone

    def open_group(self, key: GroupKey) -> None:
        """Fix the group's place in the order of `keys`."""
        self._members.setdefault(key, {})

    def close_group(self, key: GroupKey) -> bool:
        """Forget a group that nobody wants and that has no members; returns whether it is gone."""
        if self._members.get(key) or key in self.desired_groups:
            return False
        self._members.pop(key, None)
        return True

    def observe(self, facts: Mapping[InstanceId, Observation]) -> None:
        self._facts.update(facts)

    def set_last_seen(self, id: InstanceId, at: float) -> None:
        self._facts[id] = last_seen_at(self._facts[id], at)

    def apply(self, changes: Sequence[Change], records: Sequence[GroupRecord]) -> None:
        for change in changes:
            match change:
                case Put(instance):
                    old = self._instances.get(instance.id)
                    if old is not None and old.public_key and old.public_key != instance.public_key:
                        self._key_owners.pop(old.public_key, None)
                    self._instances[instance.id] = instance
                    self._index(instance)
                case Remove(id):
                    gone = self._instances.pop(id, None)
                    self._facts.pop(id, None)
                    if gone is not None:
                        self._members[gone.key].pop(id, None)
                        if self._key_owners.get(gone.public_key) == id:
                            del self._key_owners[gone.public_key]
        slots.apply_groups(self._group_records, records)

    def _index(self, instance: Instance) -> None:
        self._members.setdefault(instance.key, {})[instance.id] = instance
        if instance.public_key:
            self._key_owners[instance.public_key] = instance.id
