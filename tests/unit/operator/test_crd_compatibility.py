"""Objects of earlier versions load unchanged, and the schemas know every field that the operator writes."""

import json
from pathlib import Path

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.kube import crds, kinds, memory
from nstance.kube.memory import MemoryKube
from nstance.kube.port import Object

STORED = Path(__file__).parent / "data"
KINDS = {kind.name: kind for kind in crds.KINDS}


def objects(file: str) -> list[Object]:
    found: list[Object] = json.loads((STORED / file).read_text())
    return found


EARLIER = [*objects("objects_of_the_first_operator.json"), *objects("objects_without_pool_machines.json")]


@pytest.mark.parametrize("item", EARLIER, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
async def test_objects_of_an_earlier_version_load_unchanged(item: Object) -> None:
    clock = SystemClock()
    kube = MemoryKube(memory.cluster(clock, SystemRng()), clock)
    for kind in crds.KINDS:
        await kube.create(kinds.CUSTOM_RESOURCE_DEFINITION, crds.definition(kind))
    kind = KINDS[item["kind"]]
    made = await kube.create(kind, item)
    assert made["spec"] == item["spec"]
    if "status" in item:
        made = await kube.patch(
            kind, made["metadata"]["name"], {"status": item["status"]}, namespace="default", subresource="status"
        )
        assert made["status"] == item["status"]
    changed = await kube.patch(
        kind, item["metadata"]["name"], {"metadata": {"labels": {"a": "b"}}}, namespace="default"
    )
    assert changed["spec"] == item["spec"]
