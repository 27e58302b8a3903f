"""JSON merge patch and JSON patch. Both return a new value and do not change their arguments."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from nstance.kube.api import status, values
from nstance.kube.port import Object


class Patch(Enum):
    MERGE = "application/merge-patch+json"  # null removes a field, lists are replaced
    JSON = "application/json-patch+json"  # a list of operations; `test` makes it conditional
    STRATEGIC = "application/strategic-merge-patch+json"  # core kinds only: lists merge by their keys
    APPLY = "application/apply-patch+yaml"  # server-side apply; the body is a whole object


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes a field; lists and scalars replace what was there."""
    if not isinstance(patch, dict):
        return values.copy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def apply_json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902: all operations or none."""
    if not isinstance(operations, list):
        raise status.bad_request("a JSON patch is a list of operations")
    result = values.copy(target)
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise status.bad_request(f"operation {number} of the JSON patch has no path")
        try:
            result = _apply(result, operation)
        except _OperationError as error:
            name, path = operation.get("op"), operation["path"]
            raise status.unprocessable(f"operation {number} of the JSON patch, {name} {path}: {error}") from None
    return result


class _OperationError(Exception):
    """Why an operation cannot be applied."""


def _apply(document: Any, operation: Object) -> Any:
    name, path = operation.get("op"), _steps(operation["path"])
    if name in ("add", "replace", "test") and "value" not in operation:
        raise _OperationError("expected a value, found none")
    if name == "add":
        return _add(document, path, values.copy(operation["value"]))
    if name == "remove":
        return _remove(document, path)
    if name == "replace":
        _get(document, path)
        return _set(document, path, values.copy(operation["value"]))
    if name == "test":
        if not values.is_same(_get(document, path), operation["value"]):
            raise _OperationError("the value is different")
        return document
    if name in ("move", "copy"):
        source = _steps(str(operation.get("from", "")))
        value = _get(document, source)
        if name == "copy":
            return _add(document, path, values.copy(value))
        if path[: len(source)] == source and path != source:
            raise _OperationError("a value cannot move into itself")
        return _add(_remove(document, source), path, value)
    raise _OperationError("unknown operation; expected add, remove, replace, move, copy or test")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise _OperationError(f"a JSON pointer starts with '/', found {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(parent: list[Any], step: str, *, limit: int) -> int:
    if not step.isascii() or not step.isdecimal() or (step != "0" and step.startswith("0")):
        raise _OperationError(f"{step!r} is not an index of a list")
    if len(step) > 9 or int(step) >= limit:
        raise _OperationError(f"index {step} is beyond the end of a list of {len(parent)}")
    return int(step)


def _get(document: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(document, list):
            document = document[_index(document, step, limit=len(document))]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise _OperationError("the path does not exist")
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, step = _get(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        at = len(parent) if step == "-" else _index(parent, step, limit=len(parent) + 1)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise _OperationError("its parent is neither a map nor a list")
    return document


def _set(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, step = _get(document, path[:-1]), path[-1]
    parent[int(step) if isinstance(parent, list) else step] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    if not path:
        raise _OperationError("the whole object cannot be removed")
    _get(document, path)
    parent, step = _get(document, path[:-1]), path[-1]
    del parent[int(step) if isinstance(parent, list) else step]
    return document
