"""JSON merge patch and JSON patch. Both give a new value and leave their arguments alone."""

from collections.abc import Sequence
from typing import Any

from nstance.kube.api import status, values
from nstance.kube.port import Object


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes a field; lists and scalars replace what was there."""
    if not isinstance(patch, dict):
        return values.copied(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def operate(target: Any, operations: Any) -> Any:
    """RFC 6902: all of them or none."""
    if not isinstance(operations, list):
        raise status.bad_request("a JSON patch is a list of operations")
    result = values.copied(target)
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise status.bad_request(f"operation {number} of the JSON patch has no path")
        try:
            result = _operate(result, operation)
        except _Refused as refused:
            name, path = operation.get("op"), operation["path"]
            raise status.unprocessable(f"operation {number} of the JSON patch, {name} {path}: {refused}") from None
    return result


class _Refused(Exception):
    """Why an operation cannot be carried out."""


def _operate(document: Any, operation: Object) -> Any:
    name, path = operation.get("op"), _steps(operation["path"])
    if name in ("add", "replace", "test") and "value" not in operation:
        raise _Refused("it has no value")
    if name == "add":
        return _add(document, path, values.copied(operation["value"]))
    if name == "remove":
        return _remove(document, path)
    if name == "replace":
        _look(document, path)
        return _set(document, path, values.copied(operation["value"]))
    if name == "test":
        if not values.same(_look(document, path), operation["value"]):
            raise _Refused("the value there is another one")
        return document
    if name in ("move", "copy"):
        source = _steps(str(operation.get("from", "")))
        value = _look(document, source)
        if name == "copy":
            return _add(document, path, values.copied(value))
        if path[: len(source)] == source and path != source:
            raise _Refused("a value cannot move into itself")
        return _add(_remove(document, source), path, value)
    raise _Refused("unknown operation; expected add, remove, replace, move, copy or test")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise _Refused(f"a JSON pointer starts with '/', found {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(parent: list[Any], step: str, *, limit: int) -> int:
    if not step.isascii() or not step.isdecimal() or (step != "0" and step.startswith("0")):
        raise _Refused(f"{step!r} is no index of a list")
    if len(step) > 9 or int(step) >= limit:
        raise _Refused(f"index {step} is beyond the end of a list of {len(parent)}")
    return int(step)


def _look(document: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(document, list):
            document = document[_index(document, step, limit=len(document))]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise _Refused("there is nothing")
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, step = _look(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        at = len(parent) if step == "-" else _index(parent, step, limit=len(parent) + 1)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise _Refused("its parent is neither a map nor a list")
    return document


def _set(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, step = _look(document, path[:-1]), path[-1]
    parent[int(step) if isinstance(parent, list) else step] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    if not path:
        raise _Refused("the whole object cannot be removed")
    _look(document, path)
    parent, step = _look(document, path[:-1]), path[-1]
    del parent[int(step) if isinstance(parent, list) else step]
    return document
