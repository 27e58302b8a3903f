"""JSON values: copies, paths into them, equality.

Stored objects are shared by the store, its history and every watcher, so nobody changes one in place: copy first. The
trap: Python holds True == 1 and 1 == 1.0; the first would lose a change, so `same` tells them apart.
"""

from collections.abc import Sequence
from typing import Any


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def at(value: Any, path: Sequence[str], default: Any = None) -> Any:
    """What lies at a path of field names, or the default where any step is missing."""
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return default
        value = value[step]
    return value


def put(value: dict[str, Any], path: Sequence[str], new: Any) -> None:
    """Sets a field and makes the maps on the way to it."""
    for step in path[:-1]:
        inner = value.get(step)
        if not isinstance(inner, dict):
            inner = value[step] = {}
        value = inner
    value[path[-1]] = new
