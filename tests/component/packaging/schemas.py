"""Checks manifests against schemas: our CRDs always, those of Kubernetes and Cluster API where Go has downloaded them."""

import functools
import json
from typing import Any

import yaml

from component.packaging.references import Manifest
from nstance.kube import crds
from nstance.kube.api import schema
from support import go_programs, real_kube


def own_faults(manifest: Manifest) -> list[str]:
    """Of our kinds."""
    return _faults(manifest, _own().get(manifest["kind"]))


def cluster_api_faults(manifest: Manifest) -> list[str]:
    return _faults(manifest, _cluster_api().get((manifest["apiVersion"], manifest["kind"])))


def kubernetes_faults(manifest: Manifest) -> list[str]:
    return _faults(manifest, _kubernetes(manifest["apiVersion"], manifest["kind"]))


def knows_kubernetes() -> bool:
    return bool(_kubernetes("apps/v1", "Deployment"))


def _faults(manifest: Manifest, wanted: Manifest | None) -> list[str]:
    if wanted is None:
        return []
    wanted = {**wanted, "properties": {**wanted["properties"], "metadata": {"type": "object"}}}
    wanted["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    _, unknown = schema.prune(manifest, wanted)
    return [f"unknown field {path}" for path in unknown] + [str(each) for each in schema.find_faults(manifest, wanted)]


@functools.cache
def _own() -> dict[str, Manifest]:
    return {kind.name: _structure(crds.definition(kind), kind.version) for kind in crds.KINDS}


@functools.cache
def _cluster_api() -> dict[tuple[str, str], Manifest]:
    source = go_programs.module_folder("sigs.k8s.io/cluster-api", real_kube.CLUSTER_API)
    found = {}
    for path in sorted(source.glob("config/crd/bases/cluster.x-k8s.io_*.yaml")) if source is not None else []:
        definition = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for version in definition["spec"]["versions"]:
            key = f"{definition['spec']['group']}/{version['name']}", definition["spec"]["names"]["kind"]
            found[key] = version["schema"]["openAPIV3Schema"]
    return found


def _structure(definition: Manifest, name: str) -> Manifest:
    [found] = [version for version in definition["spec"]["versions"] if version["name"] == name]
    return found["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


@functools.cache
def _swagger() -> Manifest:
    source = go_programs.module_folder("k8s.io/kubernetes", real_kube.KUBERNETES)
    path = source / "api/openapi-spec/swagger.json" if source is not None else None
    return json.loads(path.read_text())["definitions"] if path is not None and path.exists() else {}


@functools.cache
def _kubernetes(version: str, kind: str) -> Manifest | None:
    group, _, number = version.rpartition("/")
    wanted = {"group": group, "kind": kind, "version": number}
    for definition in _swagger().values():
        if wanted in definition.get("x-kubernetes-group-version-kind", []):
            return _resolve(definition, ())  # type: ignore[no-any-return]
    return None


def _resolve(value: Any, seen: tuple[str, ...]) -> Any:
    """With the definitions that it refers to; one that refers to itself allows anything there."""
    if isinstance(value, list):
        return [_resolve(each, seen) for each in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if reference is None:
        return {key: _resolve(each, seen) for key, each in value.items() if key != "description"}
    name = reference.rpartition("/")[2]
    if name in seen or name.endswith(("JSONSchemaProps", "JSON")):
        return {"x-kubernetes-preserve-unknown-fields": True, "type": "object"}
    definition = _swagger()[name]
    if definition.get("format") == "int-or-string":
        return {"x-kubernetes-int-or-string": True}
    if name.endswith("Quantity"):
        return {"x-kubernetes-int-or-string": True}
    return _resolve(definition, (*seen, name))
