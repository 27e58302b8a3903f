"""Which VMs a pool lists, and by which names.

Cluster API takes a pool's provider IDs at their word: a node belongs to the pool if its own ID is listed letter by letter,
and the Node of an ID that is listed no longer is deleted. So the ID is the one that the node gives; and a VM is listed
until it is gone, also while it is drained, when it does not count any more. The trap: before the nodes were read once,
nobody knows their names, and a list made then would delete them all.
"""

from collections.abc import Callable, Iterable

from nstance.operator.controllers import nodes as node_names
from nstance.operator.controllers.nodes import Nodes
from nstance.v1 import operator_pb2 as pb

Key = tuple[str, str]  # shard, group
_ENDED = frozenset({"deleted", "failed"})


class Rosters:
    def __init__(self, nodes: Nodes, changed: Callable[[str, str], None]) -> None:
        """`changed`: called with shard and group when what they list may have changed."""
        self._nodes = nodes
        self._changed = changed
        self._vms: dict[Key, dict[str, pb.InstanceEvent]] = {}  # and by instance
        self._by_trace: dict[str, Key] = {}
        nodes.listen(self._node_changed)

    def last_seen(self, shard: str, event: pb.InstanceEvent) -> None:
        key = shard, event.group
        held = self._vms.setdefault(key, {})
        before = held.get(event.instance_id)
        listed = bool(event.provider_id) and not (event.on_demand or event.vm_gone or event.state in _ENDED)
        if before is not None:
            for trace in _traces(before):
                self._by_trace.pop(trace, None)
        if listed:
            held[event.instance_id] = event
            self._by_trace.update(dict.fromkeys(_traces(event), key))
        else:
            held.pop(event.instance_id, None)
        if not held:
            del self._vms[key]
        if (before is not None) != listed:
            self._changed(*key)

    def forget(self, shard: str) -> None:
        for key in [each for each in self._vms if each[0] == shard]:
            for event in self._vms.pop(key).values():
                for trace in _traces(event):
                    self._by_trace.pop(trace, None)

    def listed(self, shard: str, group: str, counted: Iterable[str]) -> list[str] | None:
        """The provider IDs; `counted` are those that the shard says are capacity. None: not known yet."""
        if not self._nodes.are_read:
            return None
        vms = self._vms.get((shard, group), {}).values()
        named = {each.provider_id: self._nodes.named(each.instance_id, each.provider_id) for each in vms}
        return sorted({*named.values(), *(each for each in counted if each not in named)})

    def _node_changed(self, trace: str) -> None:
        if (key := self._by_trace.get(trace)) is not None:
            self._changed(*key)


def _traces(event: pb.InstanceEvent) -> set[str]:
    return node_names.lookup_keys(names=(event.instance_id,), provider_id=event.provider_id)
