"""Which Node is which instance.

A node's name or label says it, or its provider ID does, whatever scheme the cloud's own software gave it: `aws:///zone/i-1`
and `i-1` are one VM. The trap: a node that is not found may be one that was not read yet; who wants to conclude something
from an absence reads the list itself.
"""

from collections.abc import Callable, Iterable

from nstance.kube import kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object
from nstance.operator import resources

INSTANCE_LABEL = "nstance.dev/instance-id"


def same_vm(ours: str, theirs: str) -> bool:
    """Whether two provider IDs name one VM. A bare ID is compared with the last part of a whole one."""
    if not ours or not theirs:
        return False
    left, right = (_parts(each) for each in (ours, theirs))
    if len(left) == 1 or len(right) == 1:
        return left[-1] == right[-1]
    return left == right


def _parts(provider_id: str) -> list[str]:
    return [part for part in provider_id.rpartition("://")[2].split("/") if part]


def is_node_of(node: Object, instance: str, provider_id: str) -> bool:
    if instance in (resources.name(node), resources.labels(node).get(INSTANCE_LABEL)):
        return True
    return same_vm(provider_id, resources.spec(node).get("providerID", ""))


class Nodes:
    """The nodes of the workload cluster."""

    def __init__(self, kube: Kube, mirror: Mirror) -> None:
        self._kube = kube
        self._mirror = mirror

    def listen(self, callback: Callable[[str], None]) -> None:
        """Told the name (and the instance, where a label says it) of every node that changed."""

        def changed(old: Object | None, new: Object | None) -> None:
            node = new or old
            if node is not None:
                callback(resources.labels(node).get(INSTANCE_LABEL) or resources.name(node))

        self._mirror.listen(changed)

    async def read(self) -> None:
        """Waits until all of them were read once."""
        await self._mirror.synced.wait()

    def all(self) -> Iterable[Object]:
        return list(self._mirror.objects.values())

    def find(self, instance: str, provider_id: str) -> Object | None:
        """As far as is known now."""
        if (node := self._mirror.objects.get(("", instance))) is not None:
            return node
        return next((node for node in self.all() if is_node_of(node, instance, provider_id)), None)

    async def find_surely(self, instance: str, provider_id: str) -> Object | None:
        """None only if the API server's own list has no such node. Raises KubeError."""
        if (node := self.find(instance, provider_id)) is not None:
            return node
        listing = await self._kube.list(kinds.NODE)
        return next((node for node in listing.items if is_node_of(node, instance, provider_id)), None)
