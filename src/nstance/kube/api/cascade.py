"""The consequences of a change: garbage collection, namespaces, definitions and disruption budgets.

In a cluster, controllers do this some time later. Here it happens before the write returns and in a fixed order, so that
tests need not wait and the simulator is deterministic. The trap: an owner whose kind is not served cannot be looked up, so
its dependents are never collected.
"""

from collections.abc import Callable
from enum import StrEnum

from nstance import clock as clocks
from nstance.kube.api import budgets, crd_objects, metadata, values
from nstance.kube.api.resources import Registry
from nstance.kube.api.store import Key, Store
from nstance.kube.port import Object

FOREGROUND = "foregroundDeletion"
_BUDGETS = "poddisruptionbudgets.policy"


class Propagation(StrEnum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Cascade:
    def __init__(self, store: Store, registry: Registry, clock: clocks.Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._work: list[Callable[[], None]] = []
        self._stale_budgets: dict[str, None] = {}  # namespaces whose pods or budgets changed, in order

    def put(self, key: Key, body: Object) -> Object:
        """Stores an object, or removes it if its last finalizer is gone."""
        before = self._store.get(key)
        meta = body["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not self._has_contents(key, body):
            return self.remove(key)  # watchers see only the deletion, as with a real server
        stored = self._store.put(key, body)
        if key.resource == crd_objects.ID:
            self._define(stored)
        if key.resource in ("pods", _BUDGETS):
            self._stale_budgets[key.namespace] = None
        owners = meta.get("ownerReferences")
        if owners and (before is None or before["metadata"].get("ownerReferences") != owners):
            self._work.append(lambda: self._collect(key))
        if FOREGROUND in (meta.get("finalizers") or ()):
            self._work.append(lambda: self._finish_foreground(key))
        return stored

    def remove(self, key: Key) -> Object:
        last = self._store.remove(key)
        meta = last["metadata"]
        if key.resource == crd_objects.ID:
            self._registry.withdraw(last["spec"]["group"], last["spec"]["names"]["plural"])
        if key.resource in ("pods", _BUDGETS):
            self._stale_budgets[key.namespace] = None
        self._work.append(lambda: self._collect_dependents(meta["uid"]))
        for owner in meta.get("ownerReferences") or ():
            owner_key = self._owner_key(owner, key.namespace)
            if owner_key is not None:
                self._work.append(lambda owner_key=owner_key: self._finish_foreground(owner_key))  # type: ignore[misc]
        self._work.append(lambda: self._finish_containers(key))
        return last

    def delete(self, key: Key, propagation: Propagation = Propagation.BACKGROUND) -> Object:
        """Removes an object, or marks it as deleted if something must happen first."""
        body = self._store.get(key)
        assert body is not None
        meta = dict(body["metadata"])
        if propagation is Propagation.ORPHAN:
            self._orphan(meta["uid"])
        finalizers = list(meta.get("finalizers") or ())
        if propagation is Propagation.FOREGROUND and FOREGROUND not in finalizers:
            finalizers.append(FOREGROUND)
        if not finalizers and not self._has_contents(key, body):
            return self.remove(key)
        if meta.get("deletionTimestamp") and finalizers == list(meta.get("finalizers") or ()):
            return body
        if not meta.get("deletionTimestamp"):
            meta |= {"deletionTimestamp": metadata.timestamp(self._clock.wall()), "deletionGracePeriodSeconds": 0}
            if "generation" in meta:
                meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        marked = {**body, "metadata": meta}
        if key.resource == "namespaces":
            marked["status"] = {**(body.get("status") or {}), "phase": "Terminating"}
        stored = self.put(key, marked)
        if propagation is Propagation.FOREGROUND:
            self._work.append(lambda: self._delete_dependents(meta["uid"]))
        for item in self._contents(key, marked):
            self._work.append(lambda item=item: self._delete_if_exists(item))  # type: ignore[misc]
        return stored

    def settle(self) -> None:
        """Applies all pending consequences."""
        while self._work or self._stale_budgets:
            if self._work:
                self._work.pop(0)()
            else:
                self._count_budgets(next(iter(self._stale_budgets)))

    def load(self, key: Key, body: Object) -> None:
        self._store.load(key, body)
        if key.resource == crd_objects.ID:
            self._define(body)

    def _owner_key(self, owner: Object, namespace: str) -> Key | None:
        group, _, _ = str(owner.get("apiVersion", "")).rpartition("/")
        resource = self._registry.of_kind(group, str(owner.get("kind", "")))
        if resource is None or (resource.namespaced and not namespace):
            return None
        return Key(resource.id, namespace if resource.namespaced else "", str(owner.get("name", "")))

    def _owner(self, reference: Object, namespace: str) -> tuple[bool, Object | None]:
        """Whether the owner can be looked up, and the owner."""
        key = self._owner_key(reference, namespace)
        if key is None:
            return False, None
        owner = self._store.get(key)
        return True, owner if owner is not None and owner["metadata"]["uid"] == reference.get("uid") else None

    def _collect(self, key: Key) -> None:
        """Deletes an object without owners, and removes references to owners that are gone."""
        body = self._store.get(key)
        references = (body or {}).get("metadata", {}).get("ownerReferences") or []
        lost, waiting, remaining = [], [], []
        for each in references:
            is_known, owner = self._owner(each, key.namespace)
            if is_known and owner is None:
                lost.append(each)
            elif owner is not None and _is_foreground_deletion(owner):
                waiting.append(each)
            else:
                remaining.append(each)
        if body is None or not (lost or waiting):
            return
        if remaining:
            self.put(key, {**body, "metadata": {**body["metadata"], "ownerReferences": remaining}})
        elif not body["metadata"].get("deletionTimestamp"):
            has_dependents = waiting and self._store.owned_by(body["metadata"]["uid"])
            self.delete(key, Propagation.FOREGROUND if has_dependents else Propagation.BACKGROUND)

    def _collect_dependents(self, uid: str) -> None:
        for key in self._store.owned_by(uid):
            self._collect(key)

    def _delete_dependents(self, uid: str) -> None:
        for key in self._store.owned_by(uid):
            body = self._store.get(key)
            references = [] if body is None else body["metadata"]["ownerReferences"]
            if any(each.get("uid") == uid and each.get("blockOwnerDeletion") for each in references):
                self._collect(key)

    def _finish_foreground(self, key: Key) -> None:
        """Removes an owner in foreground deletion once its dependents are gone."""
        body = self._store.get(key)
        if body is None or not _is_foreground_deletion(body):
            return
        uid = body["metadata"]["uid"]
        for dependent in self._store.owned_by(uid):
            for each in (self._store.get(dependent) or {})["metadata"]["ownerReferences"]:
                if each.get("uid") == uid and each.get("blockOwnerDeletion"):
                    return
        rest = [each for each in body["metadata"]["finalizers"] if each != FOREGROUND]
        self.put(key, {**body, "metadata": {**body["metadata"], "finalizers": rest}})

    def _orphan(self, uid: str) -> None:
        for key in self._store.owned_by(uid):
            body = self._store.get(key)
            assert body is not None
            rest = [each for each in body["metadata"]["ownerReferences"] if each.get("uid") != uid]
            self.put(key, {**body, "metadata": {**body["metadata"], "ownerReferences": rest}})

    def _contents(self, key: Key, body: Object) -> list[Key]:
        if key.resource == "namespaces":
            found = (self._store.keys(resource, key.name) for resource in self._store.resources())
            return [each for keys in found for each in keys]
        if key.resource == crd_objects.ID:
            return self._store.keys(f"{body['spec']['names']['plural']}.{body['spec']['group']}")
        return []

    def _has_contents(self, key: Key, body: Object) -> bool:
        return bool(self._contents(key, body))

    def _finish_containers(self, gone: Key) -> None:
        for container in (Key("namespaces", "", gone.namespace), Key(crd_objects.ID, "", gone.resource)):
            body = self._store.get(container)
            if body is None or not body["metadata"].get("deletionTimestamp"):
                continue
            if not body["metadata"].get("finalizers") and not self._has_contents(container, body):
                self.remove(container)

    def _delete_if_exists(self, key: Key) -> None:
        if self._store.get(key) is not None:
            self.delete(key)

    def _define(self, body: Object) -> None:
        resource = crd_objects.resource(body)
        if resource is None:
            self._registry.withdraw(body["spec"]["group"], body["spec"]["names"]["plural"])
        else:
            self._registry.define(resource)

    def _count_budgets(self, namespace: str) -> None:
        del self._stale_budgets[namespace]
        keys = self._store.keys(_BUDGETS, namespace)
        pods = self._store.all("pods", namespace) if keys else []
        for key in keys:
            budget = self._store.get(key)
            assert budget is not None
            counted = budgets.compute_status(budget, pods, replicas=self._replicas)
            if not values.is_same(budget.get("status"), counted):
                self._store.put(key, {**budget, "status": counted})

    def _replicas(self, pod: Object) -> int | None:
        for each in pod["metadata"].get("ownerReferences") or ():
            if each.get("controller"):
                _, owner = self._owner(each, pod["metadata"].get("namespace", ""))
                size = values.at(owner, ("spec", "replicas"))
                return size if isinstance(size, int) else None
        return None


def _is_foreground_deletion(body: Object) -> bool:
    meta = body["metadata"]
    return bool(meta.get("deletionTimestamp")) and FOREGROUND in (meta.get("finalizers") or ())
