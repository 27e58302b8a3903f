"""Turns the validator's errors into problems that a person understands."""

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import quoted
from nstance.config.jsonc import Path
from nstance.config.model.readiness import CHECK_KINDS
from nstance.config.model.scalars import describe_type
from nstance.config.model.workload import FILE_KINDS

_WORD = re.compile(r"'([^']*)'")
# What was expected, by the type of the validator's error.
_EXPECTED = {
    "string_type": "text in quotes",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "at least {min_length} element",
}


def collect(
    error: ValidationError, model: type[BaseModel], value: object, problems: ProblemCollector, *, at: Path = ()
) -> None:
    """Adds a problem for each error. `at` is the path of the validated value in its document."""
    for each in error.errors(include_url=False):
        path = path_of(each)
        where = (*at, *path)
        found = describe_type(each["input"])
        context = each.get("ctx", {})
        match each["type"]:
            case "nstance":
                if each["loc"] and each["loc"][-1] == "[key]":
                    problems.add(where, context["sentence"], at_key=True)
                else:
                    problems.add(where, context["sentence"])
            case "extra_forbidden":
                known = _keys(model, path[:-1], value)
                problems.add(where, "expected no such key here", word=str(path[-1]), candidates=known, at_key=True)
            case "missing":
                problems.add(where, "expected this key, found none")
            case "literal_error":
                words = _WORD.findall(context["expected"])
                _one_of(words, each["input"], where, problems)
            case "union_tag_invalid" | "union_tag_not_found":
                kind = each["input"].get("kind") if isinstance(each["input"], Mapping) else None
                _one_of(CHECK_KINDS if _is_check(path) else FILE_KINDS, kind, (*where, "kind"), problems)
            case kind:
                problems.add(where, f"expected {_EXPECTED[kind].format(**context)}, found {found}")


def path_of(each: Any) -> Path:
    """The JSON path of an error, without the validator's own additions."""
    path = list(each["loc"])
    if path and path[-1] == "[key]" and each["type"] != "extra_forbidden":  # otherwise it is a key in the file
        path.pop()
    if len(path) > 4 and path[0] == "templates" and path[2] in ("files", "checks"):
        del path[4]  # the union member that the validator chose
    return tuple("$schema" if part == "schema_" else part for part in path)


def _is_check(path: Path) -> bool:
    return len(path) > 2 and path[2] == "checks"


def _one_of(words: Collection[str], found: object, where: Path, problems: ProblemCollector) -> None:
    shown = [quoted(word) for word in words]
    choice = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
    # A secret may stand where its location belongs: it is not repeated.
    can_repeat = isinstance(found, str) and "secrets" not in where
    sentence = f"expected {choice}, found {quoted(found) if can_repeat else describe_type(found)}"
    problems.add(where, sentence, word=found if isinstance(found, str) else "", candidates=words)


def _keys(model: type[BaseModel], path: Path, value: object) -> Collection[str]:
    """The keys that an object at this path may have, from the model's schema."""
    schema = _schema(model)
    node = _resolve(schema, schema, value)
    for part in path:
        value = _child(value, part)
        patterns = node.get("patternProperties", {}).values()
        child = node.get("properties", {}).get(part) or next(iter(patterns), None) or node.get("additionalProperties")
        node = _resolve(child if isinstance(child, dict) else node.get("items", {}), schema, value)
    return tuple(node.get("properties", ()))


def _child(value: object, part: str | int) -> object:
    if isinstance(value, list) and isinstance(part, int):
        return value[part]
    return value.get(part) if isinstance(value, dict) else None


def _resolve(node: dict[str, Any], schema: dict[str, Any], value: object) -> dict[str, Any]:
    if "anyOf" in node:
        node = next((each for each in node["anyOf"] if each.get("type") != "null"), {})
    if "discriminator" in node:
        kind = value.get("kind") if isinstance(value, dict) else None
        node = {"$ref": node["discriminator"]["mapping"].get(kind, "")}
    if "$ref" in node:
        return dict(schema["$defs"].get(node["$ref"].rpartition("/")[2], {}))
    return node


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
