"""Merges layers of configuration: objects merge key by key, any other value of a later layer replaces the earlier one.

The result is a deep copy: changing it changes no layer.
"""

from collections.abc import Mapping


def merge(*layers: Mapping[str, object]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for layer in layers:
        for key, value in layer.items():
            earlier = merged.get(key)
            if isinstance(value, Mapping) and isinstance(earlier, Mapping):
                merged[key] = merge(earlier, value)
            else:
                merged[key] = _copy(value)
    return merged


def _copy(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value
