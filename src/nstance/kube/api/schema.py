"""Structural schemas of CRDs: defaults, pruning of unknown fields, and validation of what our own CRDs use.

Patterns, combinations of schemas (`oneOf` and the like) and most `x-kubernetes-validations` (CEL) are not evaluated, only
`self == oldSelf`: test other rules against a real API server. The order matters: prune, then apply defaults, then validate.
"""

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
    extra = schema.get("additionalProperties")
    kept: Object = {}
    for key, each in value.items():
        where = f"{path}.{key}" if path else key
        if key in properties:
            kept[key] = _prune(each, properties[key], where, unknown)
        elif isinstance(extra, dict):
            kept[key] = _prune(each, extra, where, unknown)
        elif preserves_unknown or extra is True:
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


_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")


def find_schema_faults(schema: Any, path: str) -> Iterator[Cause]:
    """The problems of a schema itself."""
    if not isinstance(schema, dict):
        yield Cause(path, f"Invalid value: a schema is an object, found {_quote(schema)}", "FieldValueTypeInvalid")
        return
    properties = schema.get("properties") or {}
    if not isinstance(properties, dict):
        yield Cause(f"{path}.properties", "Invalid value: must be an object", "FieldValueTypeInvalid")
        return
    for key, each in properties.items():
        yield from find_schema_faults(each, f"{path}.properties[{key}]")
    for name in ("items", "additionalProperties"):
        if schema.get(name) is not None and not isinstance(schema[name], bool):
            yield from find_schema_faults(schema[name], f"{path}.{name}")
    wanted: dict[str, tuple[str, Any]] = {
        **dict.fromkeys(("required", "enum", "x-kubernetes-list-map-keys"), ("a list", list | None)),
        **dict.fromkeys(_NUMBERS, ("a number", int | float | None)),
        "type": ("a string", str | None),
    }
    for name, (what, kinds) in wanted.items():
        if not isinstance(schema.get(name), kinds):
            yield Cause(f"{path}.{name}", f"Invalid value: must be {what}", "FieldValueTypeInvalid")


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


def _number_faults(value: float, schema: Object, path: str) -> Iterator[Cause]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and value < low:
        yield Cause(path, f"Invalid value: {value}: {path} in body should be greater than or equal to {low}")
    if high is not None and value > high:
        yield Cause(path, f"Invalid value: {value}: {path} in body should be less than or equal to {high}")


def _list_faults(value: list[Any], schema: Object, path: str) -> Iterator[Cause]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        yield Cause(path, f"Invalid value: {len(value)}: {path} in body should have at least {least} items")
    if most is not None and len(value) > most:
        yield Cause(path, f"Too many: {len(value)}: must have at most {most} items", "FieldValueTooMany")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    unique = schema.get("x-kubernetes-list-type") in ("set", "map")
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
    most = schema.get("maxProperties")
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
