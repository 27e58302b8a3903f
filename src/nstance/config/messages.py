"""From the validator's errors to findings that a person understands."""

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from nstance.config.errors import quoted
from nstance.config.fields import kind_of
from nstance.config.findings import Findings
from nstance.config.jsonc import Path
from nstance.config.readiness import CHECK_KINDS
from nstance.config.workload import FILE_KINDS

_WORD = re.compile(r"'([^']*)'")
# What was expected, by the kind of the validator's complaint.
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
    error: ValidationError, model: type[BaseModel], value: object, findings: Findings, *, at: Path = ()
) -> None:
    """Adds a finding for each error. `at` is where the validated value stands in its document."""
    for each in error.errors(include_url=False):
        path = path_of(each)
        where = (*at, *path)
        found = kind_of(each["input"])
        context = each.get("ctx", {})
        match each["type"]:
            case "nstance":
                if each["loc"] and each["loc"][-1] == "[key]":
                    findings.add(where, context["sentence"], at_key=True)
                else:
                    findings.add(where, context["sentence"])
            case "extra_forbidden":
                known = _keys(model, path[:-1], value)
                findings.add(where, "expected no such key here", word=str(path[-1]), candidates=known, at_key=True)
            case "missing":
                findings.add(where, "expected this key, found none")
            case "literal_error":
                words = _WORD.findall(context["expected"])
                _one_of(words, each["input"], where, findings)
            case "union_tag_invalid" | "union_tag_not_found":
                kind = each["input"].get("kind") if isinstance(each["input"], Mapping) else None
                _one_of(CHECK_KINDS if _is_check(path) else FILE_KINDS, kind, (*where, "kind"), findings)
            case kind:
                findings.add(where, f"expected {_EXPECTED[kind].format(**context)}, found {found}")


def path_of(each: Any) -> Path:
    """The JSON path of an error, without what the validator adds to it."""
    path = list(each["loc"])
    if path and path[-1] == "[key]" and each["type"] != "extra_forbidden":  # else it is a key that somebody wrote
        path.pop()
    if len(path) > 4 and path[0] == "templates" and path[2] in ("files", "checks"):
        del path[4]  # which kind of file or check it was taken for
    return tuple("$schema" if part == "schema_" else part for part in path)


def _is_check(path: Path) -> bool:
    return len(path) > 2 and path[2] == "checks"


def _one_of(words: Collection[str], found: object, where: Path, findings: Findings) -> None:
    shown = [quoted(word) for word in words]
    choice = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
    # Somebody may have put a key where its place was to be named.
    open_text = isinstance(found, str) and "secrets" not in where
    sentence = f"expected {choice}, found {quoted(found) if open_text else kind_of(found)}"
    findings.add(where, sentence, word=found if isinstance(found, str) else "", candidates=words)


def _keys(model: type[BaseModel], path: Path, value: object) -> Collection[str]:
    """The keys that an object at this path may have, from the model's own schema."""
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
