"""Structural schemas of CRDs: defaults, pruning of unknown fields, and validation.

Of `x-kubernetes-validations` (CEL) only `self == oldSelf` is evaluated: test other rules against a real API server. The order
matters: prune, then apply defaults, then validate.
"""

import re
from collections.abc import Iterator
from typing import Any

from nstance.kube.api import values
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

_UNCHANGED = "self == oldSelf"
_EMBEDDED = ("apiVersion", "kind", "metadata")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def prune(body: Object, schema: Object) -> tuple[Object, list[str]]:
    """The object without unknown fields, and their paths."""
    unknown: list[str] = []
    rest = {key: value for key, value in body.items() if key not in _EMBEDDED}
    kept = _prune(rest, schema, "", unknown)
    return {**{key: body[key] for key in _EMBEDDED if key in body}, **kept}, unknown


def _prune(value: Any, schema: Object, path: str, unknown: list[str]) -> Any:
    properties = schema.get("properties") or {}
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return [_prune(each, items, f"{path}[{number}]", unknown) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    preserves_unknown = schema.get("x-kubernetes-preserve-unknown-fields") is True
    embedded = schema.get("x-kubernetes-embedded-resource") is True
    extra = schema.get("additionalProperties")
    kept: Object = {}
    for key, each in value.items():
        where = f"{path}.{key}" if path else key
        if key in properties:
            kept[key] = _prune(each, properties[key], where, unknown)
        elif isinstance(extra, dict):
            kept[key] = _prune(each, extra, where, unknown)
        elif preserves_unknown or extra is True or (embedded and key in _EMBEDDED):
            kept[key] = each
        else:
            unknown.append(where)
    return kept


def apply_defaults(value: Any, schema: Object) -> Any:
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [apply_defaults(each, schema["items"]) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    filled = dict(value)
    for key, inner in properties.items():
        if key not in filled and "default" in inner:
            filled[key] = values.copy(inner["default"])
    extra = schema.get("additionalProperties")
    for key, each in filled.items():
        if key in properties:
            filled[key] = apply_defaults(each, properties[key])
        elif isinstance(extra, dict):
            filled[key] = apply_defaults(each, extra)
    return filled


_MAPS = ("properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf")
_INNER = ("items", "not", "additionalProperties")
_NUMBERS = ("minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems")


def find_schema_faults(schema: Any, path: str) -> Iterator[Cause]:
    """The problems of a schema itself."""
    if not isinstance(schema, dict):
        yield Cause(path, f"Invalid value: a schema is an object, found {_quote(schema)}", "FieldValueTypeInvalid")
        return
    for name in _MAPS:
        inner = schema.get(name) or {}
        if not isinstance(inner, dict):
            yield Cause(f"{path}.{name}", "Invalid value: must be an object", "FieldValueTypeInvalid")
            continue
        for key, each in inner.items():
            yield from find_schema_faults(each, f"{path}.{name}[{key}]")
    for name in (*_LISTS, "required", "enum", "x-kubernetes-list-map-keys"):
        listed = schema.get(name)
        if listed is not None and not isinstance(listed, list):
            yield Cause(f"{path}.{name}", "Invalid value: must be a list", "FieldValueTypeInvalid")
        elif name in _LISTS:
            for number, each in enumerate(listed or ()):
                yield from find_schema_faults(each, f"{path}.{name}[{number}]")
    for name in _INNER:
        if isinstance(schema.get(name), bool):
            continue
        if schema.get(name) is not None:
            yield from find_schema_faults(schema[name], f"{path}.{name}")
    for name in _NUMBERS:
        if not isinstance(schema.get(name, 0), int | float):
            yield Cause(f"{path}.{name}", "Invalid value: must be a number", "FieldValueTypeInvalid")
    if not isinstance(schema.get("type", ""), str):
        yield Cause(f"{path}.type", "Invalid value: must be a string", "FieldValueTypeInvalid")
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError):
        yield Cause(f"{path}.pattern", f"Invalid value: {_quote(schema['pattern'])}: must be a regular expression")


def find_faults(value: Any, schema: Object, path: str = "") -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    int_or_string = schema.get("x-kubernetes-int-or-string") is True
    type_name = schema.get("type")
    if int_or_string and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield _wrong_type(path, value, "integer,string")
        return
    if not int_or_string and type_name and not _has_type(value, type_name):
        yield _wrong_type(path, value, type_name)
        return
    if "enum" in schema and not any(values.is_same(value, each) for each in schema["enum"]):
        supported = ", ".join(f'"{each}"' for each in schema["enum"])
        yield Cause(
            path, f"Unsupported value: {_quote(value)}: supported values: {supported}", "FieldValueNotSupported"
        )
    if isinstance(value, str):
        yield from _string_faults(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_faults(value, schema, path)
    elif isinstance(value, list):
        yield from _list_faults(value, schema, path)
    elif isinstance(value, dict):
        yield from _map_faults(value, schema, path)
    yield from _combined_faults(value, schema, path)


def find_forbidden_changes(old: Any, new: Any, schema: Object, path: str = "") -> Iterator[Cause]:
    """Changes of fields that must stay as they are. A field that is set for the first time or removed is none."""
    for rule in schema.get("x-kubernetes-validations") or ():
        if rule.get("rule") == _UNCHANGED and not values.is_same(old, new):
            yield Cause(path, f"Invalid value: {rule.get('message') or f'failed rule: {_UNCHANGED}'}")
    if isinstance(old, dict) and isinstance(new, dict):
        for key, inner in (schema.get("properties") or {}).items():
            if key in old and key in new:
                yield from find_forbidden_changes(old[key], new[key], inner, f"{path}.{key}" if path else key)


def _has_type(value: Any, type_name: str) -> bool:
    if isinstance(value, bool):
        return type_name == "boolean"
    if type_name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(type_name, (object,)))


def _wrong_type(path: str, value: Any, wanted: str) -> Cause:
    found = next((name for name in _TYPES if _has_type(value, name)), "null")
    message = f'Invalid value: "{found}": {path or "<nil>"} in body must be of type {wanted}: "{found}"'
    return Cause(path or "<nil>", message, "FieldValueTypeInvalid")


def _quote(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _string_faults(value: str, schema: Object, path: str) -> Iterator[Cause]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < least:
        yield Cause(path, f'Invalid value: "{value}": {path} in body should be at least {least} chars long')
    if most is not None and len(value) > most:
        yield Cause(path, f"Too long: may not be more than {most} bytes", "FieldValueTooLong")
    pattern = schema.get("pattern")
    if pattern is not None and not re.search(pattern, value):
        yield Cause(path, f"Invalid value: \"{value}\": {path} in body should match '{pattern}'")


def _number_faults(value: float, schema: Object, path: str) -> Iterator[Cause]:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        relation = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield Cause(path, f"Invalid value: {value}: {path} in body should be {relation} {low}")
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        relation = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield Cause(path, f"Invalid value: {value}: {path} in body should be {relation} {high}")
    if step and value % step:
        yield Cause(path, f"Invalid value: {value}: {path} in body should be a multiple of {step}")


def _list_faults(value: list[Any], schema: Object, path: str) -> Iterator[Cause]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} items")
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    unique = schema.get("uniqueItems") or schema.get("x-kubernetes-list-type") in ("set", "map")
    seen: list[Any] = []
    for number, each in enumerate(value):
        mark = [each.get(key) for key in keys] if keys and isinstance(each, dict) else each
        if unique and any(values.is_same(mark, other) for other in seen):
            yield Cause(f"{path}[{number}]", f"Duplicate value: {_quote(mark)}", "FieldValueDuplicate")
        seen.append(mark)
        if isinstance(schema.get("items"), dict):
            yield from find_faults(each, schema["items"], f"{path}[{number}]")


def _map_faults(value: Object, schema: Object, path: str) -> Iterator[Cause]:
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name in schema.get("required") or ():
        if name not in value:
            yield Cause(f"{path}.{name}" if path else name, "Required value", "FieldValueRequired")
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if len(value) < least:
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} properties")
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")
    for key, each in value.items():
        where = f"{path}.{key}" if path else key
        if not path and key in _EMBEDDED:
            continue  # checked by `metadata`
        if key in properties:
            yield from find_faults(each, properties[key], where)
        elif isinstance(extra, dict):
            yield from find_faults(each, extra, where)


def _combined_faults(value: Any, schema: Object, path: str) -> Iterator[Cause]:
    for each in schema.get("allOf") or ():
        yield from find_faults(value, each, path)
    for name, wanted in (("anyOf", "at least one"), ("oneOf", "one and only one")):
        if name not in schema:
            continue
        matching = sum(not any(find_faults(value, each, path)) for each in schema[name])
        if matching == 0 or (name == "oneOf" and matching > 1):
            yield Cause(path, f'Invalid value: "": "{path}" must validate {wanted} schema ({name})')
    if "not" in schema and not any(find_faults(value, schema["not"], path)):
        yield Cause(path, f'Invalid value: "": "{path}" must not validate the schema (not)')
