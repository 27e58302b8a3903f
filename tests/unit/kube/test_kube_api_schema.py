"""Structural schemas: what they refuse, drop and fill in."""

from typing import Any

import pytest

from nstance.kube.api import schema


@pytest.mark.parametrize(
    ("value", "rules", "message"),
    [
        ({"a": 1}, {"properties": {"a": {"type": "string"}}}, "must be of type string"),
        ({"a": True}, {"properties": {"a": {"type": "integer"}}}, "must be of type integer"),
        ({"a": 1.5}, {"properties": {"a": {"type": "integer"}}}, "must be of type integer"),
        ({"a": None}, {"properties": {"a": {"type": "string"}}}, 'must be of type string: "null"'),
        ({}, {"required": ["a"]}, "Required value"),
        ({"a": "x"}, {"properties": {"a": {"type": "string", "enum": ["y"]}}}, 'supported values: "y"'),
        ({"a": "x"}, {"properties": {"a": {"type": "string", "minLength": 2}}}, "at least 2 chars"),
        ({"a": "xyz"}, {"properties": {"a": {"type": "string", "maxLength": 2}}}, "may not be more than 2"),
        ({"a": -1}, {"properties": {"a": {"type": "integer", "minimum": 0}}}, "greater than or equal to 0"),
        ({"a": 6}, {"properties": {"a": {"type": "integer", "maximum": 5}}}, "less than or equal to 5"),
        ({"a": []}, {"properties": {"a": {"type": "array", "minItems": 1}}}, "at least 1 items"),
        ({"a": [1, 1]}, {"properties": {"a": {"type": "array", "x-kubernetes-list-type": "set"}}}, "Duplicate value"),
        ({"a": {"k": 1}}, {"properties": {"a": {"additionalProperties": {"type": "string"}}}}, "a.k in body must be"),
        (
            {"a": [{"b": 1}]},
            {"properties": {"a": {"items": {"properties": {"b": {"type": "string"}}}}}},
            "a[0].b in body",
        ),
        ({"a": 1.5}, {"properties": {"a": {"x-kubernetes-int-or-string": True}}}, "integer,string"),
    ],
)
def test_faults(value: Any, rules: Any, message: str) -> None:
    [fault] = schema.find_faults(value, {"type": "object", **rules})
    assert message in fault.message


@pytest.mark.parametrize(
    ("value", "rules"),
    [
        ({"a": None}, {"properties": {"a": {"type": "string", "nullable": True}}}),
        ({"a": "50%"}, {"properties": {"a": {"x-kubernetes-int-or-string": True}}}),
        ({"a": 2.0}, {"properties": {"a": {"type": "integer"}}}),
        ({"a": 2}, {"properties": {"a": {"type": "number"}}}),
        ({"metadata": {"name": 1}, "kind": 5}, {"properties": {"kind": {"type": "string"}}}),
    ],
)
def test_what_is_right(value: Any, rules: Any) -> None:
    assert list(schema.find_faults(value, {"type": "object", **rules})) == []


def test_unknown_fields_are_dropped_and_named() -> None:
    rules = {
        "properties": {
            "spec": {
                "properties": {
                    "a": {"type": "string"},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "map": {"type": "object", "additionalProperties": {"properties": {"x": {}}}},
                    "list": {"items": {"properties": {"x": {}}}},
                }
            }
        }
    }
    spec = {"a": "1", "b": 2, "free": {"any": 1}, "map": {"k": {"x": 1, "y": 2}}, "list": [{"x": 1, "z": 1}]}
    kept, unknown = schema.prune({"kind": "K", "metadata": {"name": "n"}, "spec": spec, "top": 1}, rules)
    assert kept == {
        "kind": "K",
        "metadata": {"name": "n"},
        "spec": {"a": "1", "free": {"any": 1}, "map": {"k": {"x": 1}}, "list": [{"x": 1}]},
    }
    assert unknown == ["spec.b", "spec.map.k.y", "spec.list[0].z", "top"]


def test_defaults_reach_into_what_is_there_and_make_nothing_else() -> None:
    inner = {"properties": {"x": {"default": 1}}}
    rules = {
        "properties": {"spec": inner, "list": {"items": inner}, "absent": inner, "whole": {**inner, "default": {}}}
    }
    assert schema.apply_defaults({"spec": {}, "list": [{}, {"x": 2}]}, rules) == {
        "spec": {"x": 1},
        "list": [{"x": 1}, {"x": 2}],
        "whole": {"x": 1},
    }


def test_fields_that_must_stay_are_compared_with_the_old_object() -> None:
    rule = {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "make a new one"}]}
    rules = {"properties": {"a": {"properties": {"b": rule, "c": {}}}}}

    def faults(old: Any, new: Any) -> list[str]:
        return [f"{each.field}: {each.message}" for each in schema.find_forbidden_changes(old, new, rules)]

    assert faults({"a": {"b": 1, "c": 1}}, {"a": {"b": 1, "c": 2}}) == []
    assert faults({"a": {"b": 1}}, {"a": {"b": 2}}) == ["a.b: Invalid value: make a new one"]
    assert faults({"a": {}}, {"a": {"b": 2}}) == []
    assert faults({"a": {"b": 1}}, {"a": {}}) == []


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        (5, "x"),
        ({"properties": 5}, "x.properties"),
        ({"properties": {"a": {"type": 5}}}, "x.properties[a].type"),
        ({"items": {"enum": {}}}, "x.items.enum"),
        ({"additionalProperties": {"minimum": "0"}}, "x.additionalProperties.minimum"),
    ],
)
def test_faults_of_a_schema_itself(rules: Any, field: str) -> None:
    assert [each.field for each in schema.find_schema_faults(rules, "x")] == [field]
    assert not list(schema.find_schema_faults({"properties": {"a": {"type": "string"}}, "items": None}, "x"))
