"""A watch: a cursor over the changes of a resource, filtered by a selector."""

from nstance.kube.api import selectors
from nstance.kube.api.resources import Served
from nstance.kube.api.store import Event, Store
from nstance.kube.port import Change, Object


class Watch:
    def __init__(
        self, store: Store, served: Served, version: int, namespace: str, selector: selectors.Selector
    ) -> None:
        self._store = store
        self._served = served
        self._namespace = namespace
        self._selector = selector
        self.version = version

    def take(self) -> list[tuple[Change, Object]]:
        """Changes since the last call. Raises 410 if some are no longer in the history."""
        found = []
        for event in self._store.since(self.version):
            if event.key.resource == self._served.resource.id and self._namespace in ("", event.key.namespace):
                found += self._filter(event)
        self.version = self._store.version
        return found

    def bookmark(self) -> Object:
        meta = {"resourceVersion": str(self.version), "creationTimestamp": None}
        return {"apiVersion": self._served.api_version, "kind": self._served.resource.kind, "metadata": meta}

    def _filter(self, event: Event) -> list[tuple[Change, Object]]:
        """The change as seen through the selector."""
        now = event.change is not Change.DELETED and self._selector.matches(event.body)
        before = event.before is not None and self._selector.matches(event.before)
        if now:
            return [(Change.MODIFIED if before else Change.ADDED, self._served.shown(event.body))]
        return [(Change.DELETED, self._served.shown(event.body))] if before else []
