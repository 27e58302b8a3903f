"""Layers of configuration, the later over the earlier: objects merge key by key, everything else replaces.

The result is a new value down to the last object and list: nobody who changes it changes a layer.
"""

from collections.abc import Mapping


def merge(*layers: Mapping[str, object]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            if isinstance(value, Mapping) and isinstance(below, Mapping):
                merged[key] = merge(below, value)
            else:
                merged[key] = _copy(value)
    return merged


def _copy(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value
