"""Strategic merge patch: lists of core kinds merge by a key of their elements.

In Kubernetes the key is part of the Go type; here it follows from the name of the field, which is enough for the served
kinds. A list that is not in the table is replaced. Directives: `$patch` (replace, delete, merge) in a map or an element,
`$deleteFromPrimitiveList/field`, `$setElementOrder/field`, `$retainKeys`.
"""

from typing import Any

from nstance.kube.api import status, values
from nstance.kube.port import Object

KEYS = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port"),  # of a container; of a Service
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
    "webhooks": ("name",),
}
SETS = frozenset({"finalizers", "podCIDRs"})  # lists of scalars that merge as sets
_DELETE, _ORDER, _RETAIN, _PATCH = "$deleteFromPrimitiveList/", "$setElementOrder/", "$retainKeys", "$patch"


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return values.copy(patch)
    how = patch.get(_PATCH, "merge")
    if how == "replace":
        return _plain({key: value for key, value in patch.items() if key != _PATCH})
    if how == "delete":
        return {}
    if how != "merge":
        raise status.bad_request(f"unknown patch type {how!r}; expected merge, replace or delete")
    merged = dict(target) if isinstance(target, dict) else {}
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        if key in (_PATCH, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE):
            field = key.removeprefix(_DELETE)
            merged[field] = [each for each in merged.get(field) or [] if each not in value]
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, list):
            merged[key] = _list(key, merged.get(key), value, patch.get(_ORDER + key))
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def key_of(field: str, elements: list[Any]) -> str | None:
    """The key that identifies these elements. None: the list is replaced as one value."""
    for key in KEYS.get(field, ()):
        if all(isinstance(each, dict) and key in each for each in elements):
            return key
    return None


def _list(field: str, old: Any, patch: list[Any], order: Any) -> list[Any]:
    old = old if isinstance(old, list) else []
    if field in SETS:
        return [*old, *(each for each in patch if each not in old)]
    if any(isinstance(each, dict) and each.get(_PATCH) == "replace" for each in patch):
        return [_plain(each) for each in patch if not (isinstance(each, dict) and _PATCH in each)]
    key = key_of(field, [*old, *patch])
    if key is None:
        return [_plain(each) for each in patch]
    merged: dict[Any, Object] = {each[key]: each for each in old}
    for each in patch:
        if each.get(_PATCH) == "delete":
            merged.pop(each[key], None)
        else:
            merged[each[key]] = merge(merged.get(each[key]), each)
    if isinstance(order, list):
        wanted = [each[key] for each in order if isinstance(each, dict) and each.get(key) in merged]
        merged = {each: merged[each] for each in [*wanted, *(name for name in merged if name not in wanted)]}
    return list(merged.values())


def _plain(value: Any) -> Any:
    """A patch applied to nothing: without directives and nulls."""
    return merge({}, value) if isinstance(value, dict) else values.copy(value)
