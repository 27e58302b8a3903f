"""The part of OpenAPI that kubectl needs: which writes the server can validate, and the text of `explain`.

Only applied CRDs have schemas. The trap: a patch operation with strategic merge would make kubectl compute patches from
these schemas, which have no merge keys; without it, kubectl uses its built-in ones. Version 2 is empty: kubectl asks for it
when it applies a List, which has no schema.
"""

from nstance.dev.k8s import discovery
from nstance.kube.api.resources import Registry, Resource, Version
from nstance.kube.port import Object

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")


def index(registry: Registry) -> Object:
    paths = [
        f"apis/{group}/{version}" if group else f"api/{version}"
        for group, names in discovery.versions(registry).items()
        for version in names
    ]
    revision = registry.revision
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={revision}"} for path in paths}}


def document(registry: Registry, path: str) -> Object:
    """The document of `api/v1` or `apis/{group}/{version}`."""
    group, version = ("", path.removeprefix("api/")) if path.startswith("api/") else path.split("/")[1:3]
    paths: Object = {}
    schemas: Object = {_META: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for resource in registry.all():
        for each in resource.versions:
            if (resource.group, each.name) == (group, version):
                schemas[_name(resource, each)] = _schema(resource, each)
                paths |= _paths(resource, each)
    return {
        "openapi": "3.0.0",
        "info": {"title": "dev-k8s", "version": "v1.32.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _name(resource: Resource, version: Version) -> str:
    reverse = ".".join(reversed((resource.group or "core.api.k8s.io").split(".")))
    return f"{reverse}.{version.name}.{resource.kind}"


def _gvk(resource: Resource, version: Version) -> Object:
    return {"group": resource.group, "version": version.name, "kind": resource.kind}


def _schema(resource: Resource, version: Version) -> Object:
    schema = version.schema or {}
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    plain = {"spec": {**free, "description": "The desired state. dev-k8s accepts any JSON here."}}
    if version.status:
        plain["status"] = {**free, "description": "The observed state. dev-k8s accepts any JSON here."}
    own = {
        "apiVersion": {"type": "string", "description": "The group and version of the schema of this object."},
        "kind": {"type": "string", "description": "The kind of this object."},
        "metadata": {
            "allOf": [{"$ref": f"#/components/schemas/{_META}"}],
            "description": "Standard object's metadata.",
        },
    }
    properties = {**(schema.get("properties") or plain), **own}
    other = {key: value for key, value in schema.items() if key not in ("properties", "type")}
    hint = ": apply its CRD to see more" if resource.custom else ""
    description = f"{resource.kind}, for which dev-k8s has no schema{hint}."
    return {
        "description": description,
        **other,
        "type": "object",
        "properties": properties,
        "x-kubernetes-group-version-kind": [_gvk(resource, version)],
    }


def _paths(resource: Resource, version: Version) -> Object:
    base = f"/apis/{resource.group}/{version.name}" if resource.group else f"/api/{version.name}"
    path = f"{base}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{base}/{resource.plural}"
    query = [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in _QUERY]
    reference = {"schema": {"$ref": f"#/components/schemas/{_name(resource, version)}"}}
    media = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")

    def operation(action: str, *kinds: str) -> Object:
        return {
            "parameters": query,
            "requestBody": {"content": dict.fromkeys(kinds, reference)},
            "responses": {"200": {"description": "OK", "content": {"application/json": reference}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(resource, version),
        }

    return {
        path: {"post": operation("post", "application/json")},
        f"{path}/{{name}}": {"put": operation("put", "application/json"), "patch": operation("patch", *media)},
    }


def version_2() -> bytes:
    """A protobuf of an OpenAPI v2 document with a title and nothing else: swagger = 1, info = 2 (title = 1, version = 2),
    paths = 8, definitions = 9."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    info = field(1, b"dev-k8s") + field(2, b"v1.32.0")
    return field(1, b"2.0") + field(2, info) + field(8, b"") + field(9, b"")
