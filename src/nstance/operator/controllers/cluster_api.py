"""Whether Cluster API's own controllers run, or the operator has to write what they would.

They leave a phase on the Cluster, and it stays when somebody removes them. What shows their absence is an object that changed
and that they did not look at: they note the generation of what they have seen. The traps: a controller that restarts or is
upgraded is away for a moment too, so only a long silence counts. And one object that they cannot process proves nothing
while they look at others.
"""

from collections.abc import Callable

from nstance.clock import Clock
from nstance.kube import kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.options import Waits

KINDS = (kinds.CLUSTER, kinds.MACHINE_POOL, kinds.MACHINE)


def is_unseen(item: Object) -> bool:
    """Whether an object changed since Cluster API looked at it. Paused and leaving ones may wait."""
    if resources.is_being_deleted(item) or resources.is_paused(None, item):
        return False
    return seen_generation(item) < resources.generation(item)


def seen_generation(item: Object | None) -> int:
    """The generation that Cluster API last looked at. One condition of a Cluster does not count: the operator writes it
    where nobody else does."""
    status = resources.status(item or {})
    found = [each for each in status.get("conditions") or () if each.get("type") != "ControlPlaneInitialized"]
    noted = (each.get("observedGeneration") for each in (status, *found))
    return max((each for each in noted if isinstance(each, int)), default=0)


class ClusterApi:
    def __init__(self, mirrors: dict[kinds.Kind, Mirror], *, cluster: str, clock: Clock, waits: Waits) -> None:
        """`mirrors` of KINDS, in the operator's namespace. `cluster`: the name of the Cluster."""
        self._mirrors, self._name, self._clock, self._waits = mirrors, cluster, clock, waits
        self._unseen_since: dict[str, float] = {}  # by UID
        self._last_looked = -waits.cluster_api_gone  # when they last looked at anything
        self._callbacks: list[Callable[[], None]] = []
        self._is_gone = False
        for mirror in mirrors.values():
            mirror.listen(self._on_change)

    def listen(self, on_change: Callable[[], None]) -> None:
        """Called when the controllers have gone or are back."""
        self._callbacks.append(on_change)

    def runs(self, item: Object | None = None) -> bool:
        """`item`: an object that they may have seen before the Cluster."""
        has_phase = any(bool(resources.status(each).get("phase")) for each in (item, self._cluster()) if each)
        return has_phase and not self._is_gone

    def _cluster(self) -> Object | None:
        found = (each for each in self._mirrors[kinds.CLUSTER].objects.values() if resources.name(each) == self._name)
        return next(found, None)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        if seen_generation(new) > seen_generation(old):
            self._last_looked = self._clock.monotonic()
        if new is not None and is_unseen(new):
            self._unseen_since.setdefault(resources.uid(new), self._clock.monotonic())
        else:
            self._unseen_since.pop(resources.uid(new or old or {"metadata": {}}), None)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._waits.cluster_api_check)
            self.check()

    def check(self) -> None:
        cluster = self._cluster()
        if cluster is None or resources.is_paused(cluster):
            return
        now = self._clock.monotonic()
        long_ago = now - self._waits.cluster_api_gone
        is_gone = any(max(since, self._last_looked) <= long_ago for since in self._unseen_since.values())
        if is_gone != self._is_gone:
            self._is_gone = is_gone
            for callback in self._callbacks:
                callback()
