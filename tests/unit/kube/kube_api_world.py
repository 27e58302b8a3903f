"""An API server in memory whose clock stands still until told, and whose chance repeats itself."""

import random
from typing import Any

from nstance.kube.api import server
from nstance.kube.api.resources import Served

Object = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def boot(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def steady(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Chance:
    def __init__(self, seed: int = 1) -> None:
        self._source = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def bits(self, count: int) -> int:
        return self._source.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)


class World:
    """Short words for what tests do all the time."""

    def __init__(self, *, window: int = 1000) -> None:
        self.clock = Clock()
        self.api = server.Api(self.clock, Chance(), window=window)
        self.api.begin()

    def served(self, resource: str) -> Served:
        plural, _, group = resource.partition(".")
        found = self.api.registry.resource(group, plural)
        assert found is not None
        return Served(found, found.versions[0])

    def create(self, resource: str, name: str, **fields: Any) -> Object:
        meta = {"name": name, **fields.pop("metadata", {})}
        served = self.served(resource)
        namespace = "default" if served.resource.namespaced else ""
        return self.api.create(served, {"metadata": meta, **fields}, namespace=namespace)

    def get(self, resource: str, name: str) -> Object:
        return self.api.get(self.served(resource), name, namespace="default")

    def names(self, resource: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.api.store.all(self.served(resource).resource.id)]

    def patch(self, resource: str, name: str, body: Any, **options: Any) -> Object:
        from nstance.kube.port import Patch

        options.setdefault("how", Patch.MERGE)
        return self.api.patch(self.served(resource), name, body, namespace="default", **options)

    def delete(self, resource: str, name: str, **options: Any) -> bool:
        return self.api.delete(self.served(resource), name, namespace="default", **options)[1]


def owned_by(owner: Object, *, block: bool = False, controller: bool = False) -> Object:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {"ownerReferences": [{**reference, "blockOwnerDeletion": block, "controller": controller}]}
