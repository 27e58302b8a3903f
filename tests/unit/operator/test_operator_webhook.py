"""What the admission webhook refuses, and with which words."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.operator.serving import webhooks

POOL: dict[str, Any] = {
    "spec": {"group": "web", "shards": ["a", "b"], "template": "small", "subnetPool": "main", "vars": {"x": "1"}}
}
TEMPLATE: dict[str, Any] = {"spec": {"template": {"spec": {"group": "web", "instanceType": "small"}}}}


def request(kind: str, new: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "uid": "u",
        "kind": {"group": "infrastructure.cluster.x-k8s.io", "version": "v1beta1", "kind": kind},
        "operation": "CREATE" if old is None else "UPDATE",
        "object": new,
        "oldObject": old,
    }


def changed(body: dict[str, Any], *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    new = copy.deepcopy(body)
    new["spec"] |= spec
    return {**new, "status": status or {}}


STATIC = {"isStatic": True}
OPERATOR = {"options": {"fieldManager": "nstance-operator"}}
SHARD_GROUPS = {"resource": {"group": "infrastructure.cluster.x-k8s.io", "resource": "nstanceshardgroups"}}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(request("NstanceMachinePool", POOL), [], id="a good pool"),
        pytest.param(request("NstanceMachinePool", {"spec": {}}), ["spec.group", "spec.shards"], id="an empty pool"),
        pytest.param(request("NstanceMachinePool", changed(POOL, shards=[])), ["at least one shard"], id="no shards"),
        pytest.param(request("NstanceMachinePool", changed(POOL, shards=["a", "a"])), ["each shard once"], id="twice"),
        pytest.param(request("NstanceMachinePool", changed(POOL, shards=["A!"])), ["names of shards"], id="no name"),
        pytest.param(request("NstanceMachinePool", changed(POOL, group="A b")), ["name of a group"], id="no group"),
        pytest.param(
            request("NstanceMachinePool", changed(POOL, group="db"), POOL), ["spec.group cannot be changed"], id="group"
        ),
        pytest.param(
            request("NstanceMachinePool", changed(POOL, template="big", subnetPool="x", shards=["a"]), POOL),
            [],
            id="a dynamic pool may change",
        ),
        *(
            pytest.param(
                request("NstanceMachinePool", changed(POOL, **{name: value}), changed(POOL, status=STATIC)),
                [f"spec.{name} cannot be changed", "is static", "change it there", "Size, instanceType and vars"],
                id=f"static: {name}",
            )
            for name, value in (("template", "big"), ("subnetPool", "other"), ("shards", ["a"]))
        ),
        pytest.param(
            request(
                "NstanceMachinePool",
                changed(POOL, instanceType="big", vars={"x": "2"}, providerIDList=["p"]),
                changed(POOL, status=STATIC),
            )
            | OPERATOR,
            [],
            id="static: type, vars and what the operator writes",
        ),
        pytest.param(
            request("NstanceMachinePool", changed(POOL, template="big", status={}), changed(POOL, status=STATIC)),
            ["spec.template"],
            id="static: the new object's own word does not count",
        ),
        pytest.param(
            request(
                "NstanceMachinePool",
                {**changed(POOL, template="big"), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
                changed(POOL, status=STATIC),
            ),
            [],
            id="what is being deleted is let go",
        ),
        pytest.param(
            request("NstanceMachinePool", changed(POOL, providerIDList=["p"]), POOL),
            ["spec.providerIDList", "the operator's list"],
            id="provider IDs by hand",
        ),
        pytest.param(
            request("Scale", {"spec": {"replicas": 3}}, {"spec": {"replicas": 2}}) | SHARD_GROUPS,
            ["scale the MachinePool"],
            id="kubectl scale of a shard group",
        ),
        pytest.param(
            request("NstanceShardGroup", {"spec": {"size": 3}}, {"spec": {"size": 2}}) | SHARD_GROUPS | OPERATOR,
            [],
            id="a shard group by the operator",
        ),
        pytest.param(
            request("NstanceShardGroup", {"metadata": {"annotations": {"a": "b"}}, "spec": {}}, {"spec": {}})
            | SHARD_GROUPS,
            [],
            id="an annotation of a shard group",
        ),
        pytest.param(request("NstanceMachineTemplate", TEMPLATE), [], id="a good template"),
        pytest.param(request("NstanceMachineTemplate", {"spec": {}}), ["template.spec"], id="an empty template"),
        pytest.param(
            request("NstanceMachineTemplate", {"spec": {"template": {"spec": {}}}}), ["spec.group"], id="no group"
        ),
        pytest.param(
            request("NstanceMachineTemplate", {"spec": {"template": {"spec": {"groupRef": {"name": "web"}}}}}),
            [],
            id="groupRef",
        ),
        pytest.param(
            request("NstanceMachineTemplate", {"spec": {"template": {"spec": {"group": "db"}}}}, TEMPLATE),
            ["spec cannot be changed", "create a new NstanceMachineTemplate"],
            id="templates are for ever",
        ),
        pytest.param(request("NstanceMachineTemplate", copy.deepcopy(TEMPLATE), TEMPLATE), [], id="labels only"),
        pytest.param(request("Pod", {}), [], id="what is not ours"),
    ],
)
def test_review(asked: dict[str, Any], words: list[str]) -> None:
    found = webhooks.answer({"kind": "AdmissionReview", "request": asked})["response"]
    assert found["uid"] == "u"
    assert found["allowed"] is (not words)
    for word in words:
        assert word in found["status"]["message"]


@pytest.mark.parametrize(
    "body", [None, [], {}, {"kind": "AdmissionReview"}, {"kind": "AdmissionReview", "request": {}}]
)
def test_what_is_no_review_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="AdmissionReview"):
        webhooks.answer(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "group", "shards", "template", "status", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(_json, _json, st.sampled_from(["NstanceMachinePool", "NstanceMachineTemplate"]))
def test_objects_of_any_shape_are_judged_or_refused(new: Any, old: Any, kind: str) -> None:
    """B: input surface. It never answers yes by breaking."""
    body = {"kind": "AdmissionReview", "request": {**request(kind, new, old), "operation": "UPDATE"}}
    try:
        found = webhooks.answer(body)
    except ValueError:
        return
    assert isinstance(found["response"]["allowed"], bool)
