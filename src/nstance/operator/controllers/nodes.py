"""Finds the Node of an instance.

A node's name, its label or its provider ID identifies the instance, whatever scheme the cloud's software gave the ID:
`aws:///zone/i-1` and `i-1` are one VM. Cluster API compares provider IDs literally, so it gets the ID that the node itself
has (`provider_id_of`). The trap: a node that is not found may not have been read yet. Before concluding anything from its
absence, list the nodes (`find_or_list`).
"""

from collections.abc import Callable, Iterable

from nstance.kube import kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object
from nstance.operator.controllers import resources

INSTANCE_LABEL = "nstance.dev/instance-id"


def same_vm(ours: str, theirs: str) -> bool:
    """Whether two provider IDs name one VM. A bare ID is compared with the last part of a full one."""
    if not ours or not theirs:
        return False
    left, right = (_parts(each) for each in (ours, theirs))
    if len(left) == 1 or len(right) == 1:
        return left[-1] == right[-1]
    return left == right


def _parts(provider_id: str) -> list[str]:
    return [part for part in provider_id.rpartition("://")[2].split("/") if part]


def lookup_keys(*, names: Iterable[str] = (), provider_id: str = "") -> set[str]:
    """The keys of an index: an instance and its node have at least one in common."""
    return {each for each in (*names, *_parts(provider_id)[-1:]) if each}


def _node_keys(node: Object | None) -> set[str]:
    if node is None:
        return set()
    names = (resources.name(node), resources.labels(node).get(INSTANCE_LABEL, ""))
    return lookup_keys(names=names, provider_id=resources.provider_id(node))


def _identity(node: Object) -> tuple[str, ...]:
    return resources.uid(node), resources.labels(node).get(INSTANCE_LABEL, ""), resources.provider_id(node)


def is_node_of(node: Object, instance: str, provider_id: str) -> bool:
    if instance in (resources.name(node), resources.labels(node).get(INSTANCE_LABEL)):
        return True
    return same_vm(provider_id, resources.provider_id(node))


class Nodes:
    """The nodes of the workload cluster."""

    def __init__(self, kube: Kube, mirror: Mirror) -> None:
        self._kube = kube
        self._mirror = mirror
        self._by_key: dict[str, dict[str, Object]] = {}  # then by name
        mirror.listen(self._on_node_change)

    def _on_node_change(self, old: Object | None, new: Object | None) -> None:
        for key in _node_keys(old):
            assert old is not None
            nodes = self._by_key.get(key, {})
            nodes.pop(resources.name(old), None)
            if not nodes:
                self._by_key.pop(key, None)
        for key in _node_keys(new):
            assert new is not None
            self._by_key.setdefault(key, {})[resources.name(new)] = new

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Called once for each lookup key of a node that was added, removed, or got another label or provider ID."""

        def filtered(old: Object | None, new: Object | None) -> None:
            if old is None or new is None or _identity(old) != _identity(new):  # not for each heartbeat
                for key in _node_keys(old) | _node_keys(new):
                    on_change(key)

        self._mirror.listen(filtered)

    @property
    def are_synced(self) -> bool:
        """All nodes have been read once."""
        return self._mirror.synced.is_set()

    async def wait_synced(self) -> None:
        await self._mirror.synced.wait()

    def all(self) -> Iterable[Object]:
        return list(self._mirror.objects.values())

    def find(self, instance: str, provider_id: str) -> Object | None:
        """In the mirror."""
        for key in (instance, *lookup_keys(provider_id=provider_id)):
            for node in self._by_key.get(key, {}).values():
                if is_node_of(node, instance, provider_id):
                    return node
        return None

    def provider_id_of(self, instance: str, provider_id: str) -> str:
        """The VM's provider ID as its node has it, else as the shard has it."""
        return resources.provider_id(self.find(instance, provider_id) or {}) or provider_id

    async def find_or_list(self, instance: str, provider_id: str) -> Object | None:
        """None only if the API server's own list has no such node. Raises KubeError."""
        if (node := self.find(instance, provider_id)) is not None:
            return node
        listing = await self._kube.list(kinds.NODE)
        return next((node for node in listing.items if is_node_of(node, instance, provider_id)), None)
