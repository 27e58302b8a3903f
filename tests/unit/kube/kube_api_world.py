"""An API server in memory whose clock stands still until told, and whose chance repeats itself."""

from typing import Any

from nstance.kube.api import server
from nstance.kube.api.resources import Served
from nstance.sim.rng import SeededRng
from support.hand_clock import HandClock

Object = dict[str, Any]


class World:
    """Short words for what tests do all the time."""

    def __init__(self, *, window: int = 1000) -> None:
        self.clock = HandClock(1_700_000_000.0)
        self.api = server.Api(self.clock, SeededRng(1), window=window)
        self.api.begin()

    def served(self, resource: str) -> Served:
        plural, _, group = resource.partition(".")
        found = self.api.registry.resource(group, plural)
        assert found is not None
        return Served(found, found.versions[0])

    def target(self, resource: str, name: str, subresource: str = "") -> server.Target:
        return server.Target(self.served(resource), name, "default", subresource)

    def create(self, resource: str, name: str, **fields: Any) -> Object:
        meta = {"name": name, **fields.pop("metadata", {})}
        served = self.served(resource)
        namespace = "default" if served.resource.namespaced else ""
        return self.api.create(served, {"metadata": meta, **fields}, namespace=namespace)

    def get(self, resource: str, name: str) -> Object:
        return self.api.get(self.target(resource, name))

    def names(self, resource: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.api.store.all(self.served(resource).resource.id)]

    def patch(self, resource: str, name: str, body: Any, **options: Any) -> Object:
        from nstance.kube.api.patches import Patch

        options.setdefault("how", Patch.MERGE)
        target = self.target(resource, name, options.pop("subresource", ""))
        return self.api.patch(target, body, **options)

    def delete(self, resource: str, name: str, **options: Any) -> bool:
        return self.api.delete(self.target(resource, name), **options)[1]


def owned_by(owner: Object, *, block: bool = False, controller: bool = False) -> Object:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {"ownerReferences": [{**reference, "blockOwnerDeletion": block, "controller": controller}]}
