"""Which Node is which instance.

A node's name or label says it, or its provider ID does, whatever scheme the cloud's own software gave it: `aws:///zone/i-1`
and `i-1` are one VM. Cluster API is not so lenient, it compares provider IDs letter by letter: what it is told is what the
node says (`named`). The trap: a node that is not found may be one that was not read yet; who wants to conclude something
from an absence reads the list itself.
"""

from collections.abc import Callable, Iterable

from nstance.kube import kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Kube, Object
from nstance.operator.controllers import resources

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


def lookup_keys(*, names: Iterable[str] = (), provider_id: str = "") -> set[str]:
    """By what a VM and its node may be found: each has one in common with the other."""
    return {each for each in (*names, *_parts(provider_id)[-1:]) if each}


def _traces(node: Object | None) -> set[str]:
    if node is None:
        return set()
    names = (resources.name(node), resources.labels(node).get(INSTANCE_LABEL, ""))
    return lookup_keys(names=names, provider_id=resources.provider_id(node))


def _identity(node: Object) -> tuple[str, ...]:
    return (
        resources.uid(node),
        resources.labels(node).get(INSTANCE_LABEL, ""),
        resources.provider_id(node),
    )


def is_node_of(node: Object, instance: str, provider_id: str) -> bool:
    if instance in (resources.name(node), resources.labels(node).get(INSTANCE_LABEL)):
        return True
    return same_vm(provider_id, resources.provider_id(node))


class Nodes:
    """The nodes of the workload cluster."""

    def __init__(self, kube: Kube, mirror: Mirror) -> None:
        self._kube = kube
        self._mirror = mirror
        self._by_trace: dict[str, dict[str, Object]] = {}  # and by name
        mirror.listen(self._changed)

    def _changed(self, old: Object | None, new: Object | None) -> None:
        for node, here in ((old, False), (new, True)):
            for trace in _traces(node):
                assert node is not None
                found = self._by_trace.setdefault(trace, {})
                if here:
                    found[resources.name(node)] = node
                else:
                    found.pop(resources.name(node), None)
                if not found:
                    del self._by_trace[trace]

    def listen(self, callback: Callable[[str], None]) -> None:
        """Told of every node that came, went or has another name or provider ID, once for each of its traces."""

        def changed(old: Object | None, new: Object | None) -> None:
            if old is None or new is None or _identity(old) != _identity(new):  # not of each heartbeat
                for trace in _traces(old) | _traces(new):
                    callback(trace)

        self._mirror.listen(changed)

    @property
    def are_read(self) -> bool:
        """All of them, once."""
        return self._mirror.synced.is_set()

    async def read(self) -> None:
        """Waits until all of them were read once."""
        await self._mirror.synced.wait()

    def all(self) -> Iterable[Object]:
        return list(self._mirror.objects.values())

    def find(self, instance: str, provider_id: str) -> Object | None:
        """As far as is known now."""
        for trace in (instance, *lookup_keys(provider_id=provider_id)):
            for node in self._by_trace.get(trace, {}).values():
                if is_node_of(node, instance, provider_id):
                    return node
        return None

    def named(self, instance: str, provider_id: str) -> str:
        """The VM's provider ID as its node says it, or as the shard does."""
        return resources.provider_id(self.find(instance, provider_id) or {}) or provider_id

    async def find_surely(self, instance: str, provider_id: str) -> Object | None:
        """None only if the API server's own list has no such node. Raises KubeError."""
        if (node := self.find(instance, provider_id)) is not None:
            return node
        listing = await self._kube.list(kinds.NODE)
        return next((node for node in listing.items if is_node_of(node, instance, provider_id)), None)
