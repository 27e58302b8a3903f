"""CustomResourceDefinitions: from the object to a served resource.

A definition takes precedence over a built-in kind of the same name. Conversion webhooks are not called: all versions of an
object differ only in apiVersion.
"""

import re
from collections.abc import Iterator
from typing import Any

from nstance.kube.api import schema, values
from nstance.kube.api.resources import Column, Resource, ScalePaths, Version
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

ID = "customresourcedefinitions.apiextensions.k8s.io"


def find_faults(body: Object) -> Iterator[Cause]:
    """The problems of a definition."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        yield _required("spec")
        return
    names = spec.get("names") if isinstance(spec.get("names"), dict) else {}
    for field in ("plural", "kind"):
        if not isinstance(values.at(names, (field,)), str) or not values.at(names, (field,)):
            yield _required(f"spec.names.{field}")
    if not isinstance(spec.get("group"), str) or not spec["group"]:
        yield _required("spec.group")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        supported = 'supported values: "Cluster", "Namespaced"'
        yield Cause(
            "spec.scope", f'Unsupported value: "{spec.get("scope", "")}": {supported}', "FieldValueNotSupported"
        )
    expected = f"{values.at(names, ('plural',), '')}.{spec.get('group', '')}"
    if values.at(body, ("metadata", "name")) != expected:
        found = values.at(body, ("metadata", "name"), "")
        yield Cause("metadata.name", f'Invalid value: "{found}": must be spec.names.plural+"."+spec.group')
    yield from _version_faults(spec.get("versions"))


def _required(field: str) -> Cause:
    return Cause(field, "Required value", "FieldValueRequired")


def _version_faults(versions: Any) -> Iterator[Cause]:
    if not isinstance(versions, list) or not versions:
        yield _required("spec.versions")
        return
    stored = 0
    for number, version in enumerate(versions):
        path = f"spec.versions[{number}]"
        if not isinstance(version, dict) or not isinstance(version.get("name"), str):
            yield _required(f"{path}.name")
            continue
        stored += version.get("storage") is True
        if not isinstance(values.at(version, ("schema", "openAPIV3Schema")), dict):
            yield Cause(f"{path}.schema.openAPIV3Schema", "Required value: schemas are required", "FieldValueRequired")
        elif version["schema"]["openAPIV3Schema"].get("type") != "object":
            yield Cause(f"{path}.schema.openAPIV3Schema.type", "Invalid value: must be object at the root")
        else:
            yield from schema.find_schema_faults(version["schema"]["openAPIV3Schema"], f"{path}.schema.openAPIV3Schema")
    if stored != 1:
        yield Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version")


def resource(body: Object) -> Resource | None:
    """None if no version is served."""
    spec, names = body["spec"], body["spec"]["names"]
    served = [each for each in spec["versions"] if each.get("served")]
    if not served:
        return None
    return Resource(
        spec["group"],
        names["plural"],
        names["kind"],
        tuple(_version(each) for each in sorted(served, key=lambda each: priority(each["name"]))),
        spec["scope"] == "Namespaced",
        names.get("singular") or names["kind"].lower(),
        tuple(names.get("shortNames") or ()),
        tuple(names.get("categories") or ()),
        storage=next(each["name"] for each in spec["versions"] if each.get("storage")),
        custom=True,
    )


def _version(version: Object) -> Version:
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    fields = (each.get("jsonPath", "").removeprefix(".") for each in version.get("selectableFields") or ())
    return Version(
        version["name"],
        status="status" in subresources,
        scale=None if not isinstance(scale, dict) else _scale(scale),
        columns=_columns(version.get("additionalPrinterColumns") or ()),
        schema=version["schema"]["openAPIV3Schema"],
        fields=tuple(filter(None, fields)),
    )


def _scale(scale: Object) -> ScalePaths:
    def steps(name: str) -> tuple[str, ...]:
        return tuple(filter(None, str(scale.get(name) or "").split(".")))

    return ScalePaths(steps("specReplicasPath"), steps("statusReplicasPath"), steps("labelSelectorPath"))


def _columns(documents: Any) -> tuple[Column, ...]:
    columns = tuple(
        Column(
            str(each.get("name", "")),
            str(each.get("type", "string")),
            str(each.get("jsonPath", "")),
            str(each.get("format", "")),
            str(each.get("description", "")),
            int(each.get("priority", 0)),
        )
        for each in documents
    )
    return columns or (Column("Age", "date", ".metadata.creationTimestamp"),)


def priority(version: str) -> tuple[int, int, int, str]:
    """The sort key of preferred versions: stable before beta before alpha, newer first."""
    matched = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if matched is None:
        return (3, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[matched[2]]
    return (stage, -int(matched[1]), -int(matched[3] or 0), version)


def accepted_status(body: Object, now: str) -> Object:
    """The status of an accepted definition."""
    names = {"listKind": f"{body['spec']['names']['kind']}List", **body["spec"]["names"]}
    names.setdefault("singular", names["kind"].lower())
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [each["name"] for each in body["spec"]["versions"] if each.get("storage")]
    return {"acceptedNames": names, "conditions": conditions, "storedVersions": stored}
