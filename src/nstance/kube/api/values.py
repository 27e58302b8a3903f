"""JSON values: copies, paths into them, equality.

Stored objects are shared by the store, its history and every watcher: copy them before changing them. The trap: in Python
True == 1, which would hide a change, so `is_same` distinguishes them.
"""

from collections.abc import Sequence
from typing import Any


def copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copy(each) for each in value]
    return value


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def at(value: Any, path: Sequence[str], default: Any = None) -> Any:
    """The value at a path of field names, or the default if it does not exist."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return default
        value = value[step]
    return value


def set_at(value: dict[str, Any], path: Sequence[str], new: Any) -> None:
    """Sets a field and creates missing parents."""
    for step in path[:-1]:
        inner = value.get(step)
        if not isinstance(inner, dict):
            inner = value[step] = {}
        value = inner
    value[path[-1]] = new
