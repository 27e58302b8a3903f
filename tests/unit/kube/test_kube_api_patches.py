"""The laws of patches, and what a JSON patch refuses."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nstance.kube.api import patches, status, strategic_merge, values

SCALARS = st.one_of(st.booleans(), st.integers(-5, 5), st.text("ab", max_size=2))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
)
OBJECTS = st.dictionaries(st.text("abc", max_size=2), VALUES, max_size=4)
PATCHES = st.dictionaries(st.text("abc", max_size=2), VALUES | st.none(), max_size=4)


@settings(deadline=None, max_examples=60)
@given(OBJECTS, PATCHES)
def test_merging_twice_is_merging_once_and_leaves_the_arguments_alone(target: Any, patch: Any) -> None:
    before = values.copy(target), values.copy(patch)
    once = patches.merge_patch(target, patch)
    assert values.is_same(patches.merge_patch(once, patch), once)
    assert values.is_same([target, patch], list(before))
    assert not any(key in once for key, value in patch.items() if value is None)


@settings(deadline=None, max_examples=60)
@given(OBJECTS, OBJECTS)
def test_merging_over_nothing_gives_the_patch(target: Any, patch: Any) -> None:
    assert values.is_same(patches.merge_patch({}, patch), patch)
    assert values.is_same(patches.merge_patch(target, {}), target)


def difference(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """A JSON patch from one to the other, written by somebody who does not know the code under test."""
    if isinstance(old, dict) and isinstance(new, dict):
        steps = []
        for key in sorted({*old, *new}):
            where = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                steps.append({"op": "remove", "path": where})
            elif key not in old:
                steps.append({"op": "add", "path": where, "value": new[key]})
            else:
                steps += difference(old[key], new[key], where)
        return steps
    return [] if values.is_same(old, new) else [{"op": "replace", "path": path, "value": new}]


@settings(deadline=None, max_examples=60)
@given(OBJECTS, OBJECTS)
def test_a_json_patch_leads_from_one_object_to_another(old: Any, new: Any) -> None:
    before = values.copy(old)
    assert values.is_same(patches.apply_json_patch(old, difference(old, new)), new)
    assert values.is_same(old, before)


@pytest.mark.parametrize(
    ("document", "operations", "result"),
    [
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        (
            {"a": [1]},
            [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "remove", "path": "/a/0"}],
            {"a": [], "b": [1]},
        ),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        ({"x/y": {"~": 1}}, [{"op": "replace", "path": "/x~1y/~0", "value": 2}], {"x/y": {"~": 2}}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
    ],
)
def test_json_patch(document: Any, operations: Any, result: Any) -> None:
    assert patches.apply_json_patch(document, operations) == result


@pytest.mark.parametrize(
    ("operations", "code", "message"),
    [
        ({"op": "add"}, 400, "a list of operations"),
        ([{"op": "add"}], 400, "has no path"),
        ([{"op": "add", "path": "/a/b/c", "value": 1}], 422, "the path does not exist"),
        ([{"op": "remove", "path": "/x"}], 422, "the path does not exist"),
        ([{"op": "replace", "path": "/x", "value": 1}], 422, "the path does not exist"),
        ([{"op": "test", "path": "/a", "value": True}], 422, "value is different"),
        ([{"op": "add", "path": "/l/5", "value": 1}], 422, "beyond the end"),
        ([{"op": "add", "path": "/l/01", "value": 1}], 422, "not an index"),
        ([{"op": "add", "path": "/l/-1", "value": 1}], 422, "not an index"),
        ([{"op": "add", "path": "a", "value": 1}], 422, "starts with '/'"),
        ([{"op": "add", "path": "/b"}], 422, "expected a value"),
        ([{"op": "jump", "path": "/a"}], 422, "unknown operation"),
        ([{"op": "move", "from": "/m", "path": "/m/n"}], 422, "into itself"),
    ],
)
def test_bad_json_patches_are_refused_whole(operations: Any, code: int, message: str) -> None:
    document = {"a": 1, "l": [1], "m": {}}
    with pytest.raises(status.ApiError, match=message) as caught:
        patches.apply_json_patch(document, operations)
    assert caught.value.code == code
    assert document == {"a": 1, "l": [1], "m": {}}


def containers(*names: str) -> dict[str, Any]:
    return {"containers": [{"name": name, "image": "old"} for name in names]}


@pytest.mark.parametrize(
    ("old", "patch", "result"),
    [
        pytest.param(
            containers("a", "b"),
            {"containers": [{"name": "b", "image": "new"}]},
            {"containers": [{"name": "a", "image": "old"}, {"name": "b", "image": "new"}]},
            id="elements merge by their key",
        ),
        pytest.param(
            containers("a", "b"),
            {"containers": [{"name": "a", "$patch": "delete"}]},
            containers("b"),
            id="an element is deleted",
        ),
        pytest.param(
            containers("a", "b"),
            {"containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
            id="a list is replaced",
        ),
        pytest.param(
            containers("a", "b"),
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": []},
            containers("b", "a"),
            id="an order is set",
        ),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["b"]},
            id="one of a set goes",
        ),
        pytest.param({"finalizers": ["a"]}, {"finalizers": ["b"]}, {"finalizers": ["a", "b"]}, id="a set grows"),
        pytest.param(
            {"taints": [{"key": "a"}]}, {"taints": [{"key": "b"}]}, {"taints": [{"key": "b"}]}, id="taints replace"
        ),
        pytest.param({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}, id="a map is replaced"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}, id="null removes"),
        pytest.param(
            {"s": {"type": "A", "a": {}}},
            {"s": {"$retainKeys": ["type"], "type": "B"}},
            {"s": {"type": "B"}},
            id="retain",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True"}]},
            {"conditions": [{"type": "Spot", "status": "True"}]},
            {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Spot", "status": "True"}]},
            id="conditions by type",
        ),
    ],
)
def test_strategic_merge(old: Any, patch: Any, result: Any) -> None:
    before = values.copy(old)
    assert strategic_merge.merge(old, patch) == result
    assert old == before


@settings(deadline=None, max_examples=60)
@given(OBJECTS, PATCHES)
def test_strategic_merge_is_a_merge_where_no_list_has_keys(target: Any, patch: Any) -> None:
    assert values.is_same(strategic_merge.merge(target, patch), patches.merge_patch(target, patch))
