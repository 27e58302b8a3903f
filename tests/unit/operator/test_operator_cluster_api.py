"""Whether Cluster API's controllers run, from what they leave on objects."""

import itertools

import pytest

from nstance.clock import SystemRng
from nstance.kube import kinds, memory
from nstance.kube.memory import MemoryKube
from nstance.kube.mirror import Mirror
from nstance.kube.port import Object, Selection
from nstance.operator.controllers import cluster_api
from nstance.operator.controllers.cluster_api import ClusterApi
from nstance.operator.options import Waits
from support.hand_clock import HandClock

CONDITION = {"type": "Ready", "observedGeneration": 3}


def machine(generation: int, status: Object, **metadata: object) -> Object:
    return {"metadata": {"name": "m", "uid": "1", "generation": generation, **metadata}, "status": status}


@pytest.mark.parametrize(
    ("item", "unseen"),
    [
        (machine(3, {"observedGeneration": 3}), False),
        (machine(3, {"observedGeneration": 2}), True),
        (machine(3, {}), True),
        (machine(3, {"observedGeneration": 2, "conditions": [CONDITION]}), False),
        (machine(3, {"conditions": [CONDITION | {"type": "ControlPlaneInitialized"}]}), True),
        (machine(3, {}, deletionTimestamp="now"), False),
        (machine(3, {}, annotations={"cluster.x-k8s.io/paused": ""}), False),
    ],
)
def test_what_they_have_not_looked_at(item: Object, unseen: bool) -> None:
    assert cluster_api.is_unseen(item) is unseen


async def test_controllers_that_are_silent_for_long_are_gone_until_they_look_again() -> None:
    clock, rng = HandClock(), SystemRng()
    kube = MemoryKube(memory.cluster(clock, rng), clock)
    mirrors = {kind: Mirror(kube, Selection(kind, "x"), clock=clock, rng=rng) for kind in cluster_api.KINDS}
    found = ClusterApi(mirrors, cluster="demo", clock=clock, waits=Waits())
    changes: list[bool] = []
    versions = itertools.count()
    found.listen(lambda: changes.append(found.runs()))

    def show(status: Object) -> None:
        item: Object = {"metadata": {"name": "demo", "namespace": "x", "uid": "1", "generation": 2}, "status": status}
        item["metadata"]["resourceVersion"] = str(next(versions))
        mirrors[kinds.CLUSTER]._put(("x", "demo"), item)

    show({})
    assert not found.runs()
    show({"phase": "Provisioned", "observedGeneration": 2})
    assert found.runs()
    show({"phase": "Provisioned", "observedGeneration": 1})
    await clock.advance(Waits().cluster_api_gone - 1)
    found.check()
    assert found.runs()
    await clock.advance(2)
    found.check()
    show({"phase": "Provisioned", "observedGeneration": 2})
    found.check()
    assert changes == [False, True]


async def test_one_object_that_they_cannot_process_does_not_count_while_they_look_at_others() -> None:
    clock, rng = HandClock(), SystemRng()
    kube = MemoryKube(memory.cluster(clock, rng), clock)
    mirrors = {kind: Mirror(kube, Selection(kind, "x"), clock=clock, rng=rng) for kind in cluster_api.KINDS}
    found = ClusterApi(mirrors, cluster="demo", clock=clock, waits=Waits())

    def show(kind: kinds.Kind, name: str, generation: int, status: Object) -> None:
        metadata = {"name": name, "uid": name, "generation": generation, "resourceVersion": str(generation)}
        mirrors[kind]._put(("x", name), {"metadata": metadata, "status": status})

    show(kinds.CLUSTER, "demo", 1, {"phase": "Provisioned", "observedGeneration": 1})
    show(kinds.MACHINE_POOL, "broken", 2, {"observedGeneration": 1})
    for generation in range(1, 5):
        await clock.advance(Waits().cluster_api_gone / 2)
        show(kinds.MACHINE, "m", generation, {"observedGeneration": generation})
        found.check()
        assert found.runs()
    await clock.advance(Waits().cluster_api_gone)
    found.check()
    assert not found.runs()
