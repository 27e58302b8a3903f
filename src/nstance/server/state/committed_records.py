"""The shard's records as they are in the journal: what operators may see.

The shard's own memory runs ahead of the journal. An operator that saw a drain that was never written would drain a node
for nothing, so it sees commits, not decisions. After an answer to `Shard.ask` these records are up to date.
"""

from collections.abc import Iterator, Mapping

from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import Instance, Put, Remove
from nstance.server.state.commits import Committed


class CommittedRecords:
    def __init__(self, instances: Mapping[InstanceId, Instance]) -> None:
        """`instances`: those of the journal, before the first decision of a term."""
        self._instances: dict[InstanceId, Instance] = {}
        self._groups: dict[GroupKey, dict[InstanceId, Instance]] = {}
        for instance in instances.values():
            self._put(instance)

    def get(self, id: InstanceId) -> Instance | None:
        return self._instances.get(id)

    def members(self, key: GroupKey) -> Mapping[InstanceId, Instance]:
        return self._groups.get(key, {})

    def of_tenant(self, tenant: TenantId) -> Iterator[Instance]:
        for key, members in self._groups.items():
            if key.tenant == tenant:
                yield from members.values()

    def tenants(self) -> set[TenantId]:
        return {key.tenant for key in self._groups}

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            match change:
                case Put(instance):
                    self._put(instance)
                case Remove(id):
                    gone = self._instances.pop(id, None)
                    if gone is not None:
                        members = self._groups[gone.key]
                        del members[id]
                        if not members:
                            del self._groups[gone.key]

    def _put(self, instance: Instance) -> None:
        self._instances[instance.id] = instance
        self._groups.setdefault(instance.key, {})[instance.id] = instance
