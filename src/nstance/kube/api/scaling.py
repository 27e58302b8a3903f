"""The `/scale` subresource: the size of an object, whatever its field is called."""

from typing import Any

from nstance.kube.api import selectors, status, values
from nstance.kube.api.resources import ScalePaths, Served
from nstance.kube.api.status import Cause
from nstance.kube.port import Object


def read_scale(served: Served, body: Object) -> Object:
    paths = _paths(served)
    meta = body["metadata"]
    fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: Object = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {name: meta[name] for name in fields if name in meta},
        "spec": {"replicas": values.at(body, paths.replicas, 0)},
        "status": {"replicas": values.at(body, paths.status_replicas, 0)},
    }
    selector = values.at(body, paths.selector) if paths.selector else None
    if isinstance(selector, str):
        scale["status"]["selector"] = selector
    elif selector and not served.resource.custom:
        scale["status"]["selector"] = selectors.format_selector(selector)
    return scale


def apply_scale(served: Served, body: Object, scale: Any) -> Object:
    """The object with the size of the Scale. Raises 400, 422, or 409 if the Scale is from an older version."""
    paths, resource = _paths(served), served.resource
    name = body["metadata"]["name"]
    if not isinstance(scale, dict) or scale.get("kind", "Scale") != "Scale":
        raise status.bad_request("expected an object of kind Scale")
    replicas = values.at(scale, ("spec", "replicas"), 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise status.bad_request(f"spec.replicas: expected a number, found {replicas!r}")
    if not 0 <= replicas < 2**31:
        cause = Cause("spec.replicas", f"Invalid value: {replicas}: should be between 0 and {2**31 - 1}")
        raise status.invalid("autoscaling", "Scale", name, [cause])
    version = values.at(scale, ("metadata", "resourceVersion"), "")
    if version and version != body["metadata"]["resourceVersion"]:
        raise status.conflict(resource.group, resource.plural, name)
    changed: Object = values.copy(body)
    values.set_at(changed, paths.replicas, replicas)
    return changed


def find_faults(served: Served, body: Object) -> list[Cause]:
    """A size must be a number from 0 up, whatever the schema says."""
    paths = served.version.scale
    replicas = values.at(body, paths.replicas) if paths is not None else None
    if paths is None or replicas is None:
        return []
    field = ".".join(("", *paths.replicas))
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        return [Cause(field, f"Invalid value: {replicas!r}: should be an integer")]
    if replicas < 0:
        return [Cause(field, f"Invalid value: {replicas}: should be a non-negative integer")]
    if replicas >= 2**31:
        return [Cause(field, f"Invalid value: {replicas}: should be less than or equal to {2**31 - 1}")]
    return []


def _paths(served: Served) -> ScalePaths:
    if served.version.scale is None:
        raise status.no_such_path()
    return served.version.scale
