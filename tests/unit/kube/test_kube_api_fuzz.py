"""Whatever is sent, the answer is an object or a refusal, and everything can still be read and deleted."""

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.kube.api import builtin_resources, scaling, status
from nstance.kube.api.patches import Patch
from nstance.kube.api.server import Target
from unit.kube.kube_api_world import World

WORDS = st.sampled_from(
    [
        *(
            "spec",
            "status",
            "metadata",
            "selector",
            "minAvailable",
            "matchLabels",
            "matchExpressions",
            "conditions",
            "versions",
        ),
        *(
            "names",
            "data",
            "stringData",
            "replicas",
            "phase",
            "a",
            "operator",
            "key",
            "values",
            "finalizers",
            "schema",
            "app",
        ),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "50%", "app", "Cluster"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(["spec", "status", "data", "stringData", "rules", "webhooks", "type"]), JSON, max_size=4
)
META = st.dictionaries(
    st.sampled_from(["labels", "annotations", "finalizers", "ownerReferences", "uid", "namespace", "generateName"]),
    JSON,
    max_size=2,
)


ODD: list[Any] = [
    *(None, 5, "x", [], [5], {}),
    *({"selector": each} for each in (5, {"matchLabels": 5}, {"matchLabels": {"app": 5}}, {"matchExpressions": [5]})),
    {"selector": {"matchExpressions": [{"key": 5, "operator": "In", "values": 5}]}},
    *({"selector": {}, "minAvailable": each} for each in ([], "x", -1, "50%")),
    *({"conditions": each} for each in (5, [5], [{"type": 5}])),
    *({"names": each} for each in (5, {}, {"plural": 5})),
    *({"replicas": each} for each in ("x", -1, None)),
]


@pytest.mark.parametrize("resource", builtin_resources.RESOURCES, ids=lambda each: each.id)
def test_parts_of_the_wrong_shape_are_refused_or_kept_and_break_nobody(resource: Any) -> None:
    world = World()
    served, space = world.served(resource.id), "default" if resource.namespaced else ""
    world.create("pods", "witness", metadata={"labels": {"app": "x"}})
    world.patch("pods", "witness", {"status": {"phase": "Running"}}, subresource="status")
    for number, (field, odd) in enumerate(itertools.product(("spec", "status", "data"), ODD)):
        name = f"odd-{number}"
        with contextlib.suppress(status.ApiError):
            world.api.create(served, {"metadata": {"name": name}, field: odd}, namespace=space)
        with contextlib.suppress(status.ApiError):
            world.api.adopt(served, f"{name}-file", {field: odd}, namespace=space)
        with contextlib.suppress(status.ApiError):
            world.api.get(Target(served, f"{name}-file", space, "scale"))
        with contextlib.suppress(status.ApiError):
            world.api.evict("witness", namespace="default")
            world.create("pods", "witness", metadata={"labels": {"app": "x"}})
    assert world.names("pods")


@settings(max_examples=150)
@given(st.sampled_from(builtin_resources.RESOURCES), FIELDS, META, JSON, st.sampled_from(Patch))
def test_odd_objects_break_nothing(resource: Any, fields: Any, meta: Any, patch: Any, how: Patch) -> None:
    world = World()
    world.create("pods", "witness", metadata={"labels": {"app": "x"}})
    served = world.served(resource.id)
    space = "default" if resource.namespaced else ""
    with contextlib.suppress(status.ApiError):
        world.api.create(served, {**fields, "metadata": {**meta, "name": "odd"}}, namespace=space)
    with contextlib.suppress(status.ApiError):
        world.api.adopt(served, "odd-file", {**fields, "metadata": meta}, namespace=space)
    for name in ("odd", "odd-file"):
        with contextlib.suppress(status.ApiError):
            world.api.patch(Target(served, name, space), patch, how=how)
        with contextlib.suppress(status.ApiError):
            world.api.patch(Target(served, name, space, "status"), {"status": patch}, how=Patch.MERGE)
        with contextlib.suppress(status.ApiError):
            scaling.read_scale(served, world.api.get(Target(served, name, space)))
    with contextlib.suppress(status.ApiError):
        world.api.evict("witness", namespace="default")
    listed = world.api.list(served).items
    for each in listed:
        with contextlib.suppress(status.ApiError):
            world.api.delete(Target(served, each["metadata"]["name"], each["metadata"].get("namespace", "")))
