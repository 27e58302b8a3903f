"""Discovery: one document per group and version for old clients, one document for all for new ones."""

from collections.abc import Iterator

from nstance.kube.api import crd_objects, status
from nstance.kube.api.resources import Registry, Resource, Version
from nstance.kube.port import Object

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SUB_VERBS = ["get", "patch", "update"]
_SCALE = ("autoscaling", "v1", "Scale")


def versions(registry: Registry) -> dict[str, list[str]]:
    """The versions of every group, the preferred one first. The core group is empty."""
    found: dict[str, list[str]] = {}
    for resource in registry.all():
        names = found.setdefault(resource.group, [])
        names += [each.name for each in resource.versions if each.name not in names]
    return {group: sorted(names, key=crd_objects.priority) for group, names in sorted(found.items())}


def _served(registry: Registry, group: str, version: str) -> Iterator[tuple[Resource, Version]]:
    for resource in registry.all():
        if resource.group == group:
            yield from ((resource, each) for each in resource.versions if each.name == version)


def _subresources(resource: Resource, version: Version) -> Iterator[tuple[str, tuple[str, str, str], list[str]]]:
    """Name, group-version-kind, verbs."""
    own = (resource.group, version.name, resource.kind)
    if version.status:
        yield "status", own, _SUB_VERBS
    if version.scale is not None:
        yield "scale", _SCALE, _SUB_VERBS
    if resource.id == "pods":
        yield "eviction", ("policy", "v1", "Eviction"), ["create"]
    if resource.id == "serviceaccounts":
        yield "token", ("authentication.k8s.io", "v1", "TokenRequest"), ["create"]


def legacy(registry: Registry, path: str) -> Object | None:
    groups = versions(registry)
    parts = [part for part in path.split("/") if part]
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": groups[""]}
    if parts == ["apis"]:
        listed = [_group(name, names) for name, names in groups.items() if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if parts[0] == "apis" and len(parts) == 2 and groups.get(parts[1]):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
    group, version = ("", parts[1]) if parts[0] == "api" and len(parts) == 2 else (*parts[1:], "", "")[:2]
    if len(parts) > 3 or version not in groups.get(group, ()):
        raise status.no_such_path()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": list(_resources(registry, group, version)),
    }


def _group(name: str, names: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in names]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(registry: Registry, group: str, version: str) -> Iterator[Object]:
    for resource, each in _served(registry, group, version):
        names = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
        yield {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _VERBS,
            **{key: value for key, value in names.items() if value},
        }
        for name, (sub_group, sub_version, kind), verbs in _subresources(resource, each):
            entry = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
            foreign = {} if name == "status" else {"group": sub_group, "version": sub_version}
            yield {**entry, **foreign, "kind": kind, "verbs": verbs}


def aggregated(registry: Registry, *, core: bool, form: str) -> Object:
    listed = []
    for group, names in versions(registry).items():
        if core != (group == ""):
            continue
        shown = [
            {"version": name, "freshness": "Current", "resources": list(_aggregated(registry, group, name))}
            for name in names
        ]
        listed.append({"metadata": {"name": group, "creationTimestamp": None}, "versions": shown})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{form}",
        "metadata": {},
        "items": listed,
    }


def _kind(group: str, version: str, kind: str) -> Object:
    return {"group": group, "version": version, "kind": kind}


def _aggregated(registry: Registry, group: str, version: str) -> Iterator[Object]:
    for resource, each in _served(registry, group, version):
        names = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
        below = [
            {"subresource": name, "responseKind": _kind(*kind), "verbs": verbs}
            for name, kind, verbs in _subresources(resource, each)
        ]
        yield {
            "resource": resource.plural,
            "responseKind": _kind(group, version, resource.kind),
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "singularResource": resource.singular,
            "verbs": _VERBS,
            **{key: value for key, value in (*names.items(), ("subresources", below)) if value},
        }
