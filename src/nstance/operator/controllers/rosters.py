"""The provider IDs that a pool lists.

Cluster API takes this list literally: a node belongs to the pool if its own ID is listed, and the Node of an ID that
disappears from the list is deleted. So the node's own ID is listed, and a VM stays listed until it is gone, also while it
drains and no longer counts. The trap: before the nodes were read, their IDs are unknown, and a list made then would delete
them all.
"""

from collections.abc import Callable, Iterable

from nstance.operator.controllers.nodes import Nodes, lookup_keys
from nstance.v1 import operator_pb2 as pb

Key = tuple[str, str]  # shard, group
_ENDED = frozenset({"deleted", "failed"})


class Rosters:
    def __init__(self, nodes: Nodes, on_change: Callable[[str, str], None]) -> None:
        """`on_change` gets shard and group whose list may have changed."""
        self._nodes = nodes
        self._on_change = on_change
        self._vms: dict[Key, dict[str, pb.InstanceEvent]] = {}  # then by instance
        self._by_lookup_key: dict[str, Key] = {}
        nodes.listen(self._on_node_change)

    def update(self, shard: str, event: pb.InstanceEvent) -> None:
        key = shard, event.group
        vms = self._vms.setdefault(key, {})
        before = vms.pop(event.instance_id, None)
        is_listed = bool(event.provider_id) and not (event.on_demand or event.vm_gone or event.state in _ENDED)
        if before is not None:
            self._forget(before)
        if is_listed:
            vms[event.instance_id] = event
            self._by_lookup_key.update(dict.fromkeys(_keys(event), key))
        if not vms:
            del self._vms[key]
        if (before is not None) != is_listed:
            self._on_change(*key)

    def remove_shard(self, shard: str) -> None:
        for key in [each for each in self._vms if each[0] == shard]:
            for event in self._vms.pop(key).values():
                self._forget(event)

    def _forget(self, event: pb.InstanceEvent) -> None:
        for key in _keys(event):
            self._by_lookup_key.pop(key, None)

    def provider_ids(self, shard: str, group: str, counted: Iterable[str]) -> list[str] | None:
        """`counted` are the IDs that the shard reports as capacity. None: not known yet."""
        if not self._nodes.are_synced:
            return None
        vms = self._vms.get((shard, group), {}).values()
        ids = {each.provider_id: self._nodes.provider_id_of(each.instance_id, each.provider_id) for each in vms}
        return sorted({*ids.values(), *(each for each in counted if each not in ids)})

    def _on_node_change(self, lookup_key: str) -> None:
        if (key := self._by_lookup_key.get(lookup_key)) is not None:
            self._on_change(*key)


def _keys(event: pb.InstanceEvent) -> set[str]:
    return lookup_keys(names=(event.instance_id,), provider_id=event.provider_id)
