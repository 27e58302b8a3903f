"""Our custom resources: the source of the CRDs in `config/crd` and in the Helm chart (`make manifests`)."""

from nstance.kube import kinds
from nstance.kube.crd_schemas import ROOT_RULES, SPECS, STATUSES, Schema
from nstance.kube.kinds import Kind
from nstance.kube.port import Object

_AGE = ("Age", "date", ".metadata.creationTimestamp")
_READY = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
_COLUMNS: dict[Kind, tuple[tuple[str, str, str], ...]] = {
    kinds.NSTANCE_CLUSTER: (_READY, ("Endpoint", "string", ".spec.controlPlaneEndpoint.host"), _AGE),
    kinds.NSTANCE_CONTROL_PLANE: (
        ("Available", "string", '.status.conditions[?(@.type=="Available")].status'),
        ("Endpoint", "string", ".spec.controlPlaneEndpoint.host"),
        _AGE,
    ),
    kinds.NSTANCE_MACHINE_POOL: (
        ("Group", "string", ".spec.group"),
        ("Shards", "string", ".spec.shards"),
        ("Replicas", "integer", ".status.replicas"),
        ("Ready", "integer", ".status.readyReplicas"),
        ("Static", "boolean", ".status.isStatic"),
        _AGE,
    ),
    kinds.NSTANCE_SHARD_GROUP: (
        ("Group", "string", ".spec.group"),
        ("Shard", "string", ".spec.shard"),
        ("Size", "integer", ".spec.size"),
        ("Replicas", "integer", ".status.replicas"),
        ("Ready", "integer", ".status.readyReplicas"),
        ("Reachable", "string", '.status.conditions[?(@.type=="ShardReachable")].status'),
        ("Valid", "string", '.status.conditions[?(@.type=="ConfigValid")].status'),
        _AGE,
    ),
    kinds.NSTANCE_MACHINE: (
        ("Group", "string", ".spec.group"),
        ("Instance", "string", ".status.instanceID"),
        ("Shard", "string", ".status.shard"),
        ("State", "string", ".status.state"),
        _READY,
        _AGE,
    ),
    kinds.NSTANCE_MACHINE_POOL_TEMPLATE: (("Group", "string", ".spec.template.spec.group"), _AGE),
    kinds.NSTANCE_MACHINE_TEMPLATE: (("Group", "string", ".spec.template.spec.group"), _AGE),
}
_SHORT_NAMES = {
    kinds.NSTANCE_CLUSTER: "nc",
    kinds.NSTANCE_CONTROL_PLANE: "ncp",
    kinds.NSTANCE_MACHINE_POOL: "nmp",
    kinds.NSTANCE_SHARD_GROUP: "nsg",
    kinds.NSTANCE_MACHINE: "nm",
    kinds.NSTANCE_CLUSTER_TEMPLATE: "nct",
    kinds.NSTANCE_CONTROL_PLANE_TEMPLATE: "ncpt",
    kinds.NSTANCE_BOOTSTRAP_CONFIG: "nbc",
    kinds.NSTANCE_BOOTSTRAP_CONFIG_TEMPLATE: "nbct",
    kinds.NSTANCE_MACHINE_POOL_TEMPLATE: "nmpt",
    kinds.NSTANCE_MACHINE_TEMPLATE: "nmt",
}
KINDS = tuple(SPECS)


def definition(kind: Kind) -> Object:
    """The CustomResourceDefinition of one of our kinds."""
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": SPECS[kind],
    }
    subresources: Schema = {}
    if kind in STATUSES:
        properties["status"] = STATUSES[kind]
        subresources["status"] = {}
    if kind == kinds.NSTANCE_SHARD_GROUP:
        subresources["scale"] = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    root: Schema = {
        "type": "object",
        "description": SPECS[kind]["description"],
        "properties": properties,
        "required": ["spec"],
    }
    if kind in ROOT_RULES:
        root["x-kubernetes-validations"] = [{"rule": rule, "message": text} for rule, text in ROOT_RULES[kind]]
    version: Schema = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": subresources,
        "additionalPrinterColumns": [
            {"name": name, "type": of, "jsonPath": path} for name, of, path in _COLUMNS.get(kind, (_AGE,))
        ],
    }
    return {
        "apiVersion": kinds.CUSTOM_RESOURCE_DEFINITION.api_version,
        "kind": kinds.CUSTOM_RESOURCE_DEFINITION.name,
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # These labels tell Cluster API which contracts each of our versions implements.
            "labels": {
                "cluster.x-k8s.io/provider": "infrastructure-nstance",
                "cluster.x-k8s.io/v1beta1": kind.version,
                "cluster.x-k8s.io/v1beta2": kind.version,
                # `clusterctl move` looks only at labelled kinds, and takes all objects of these with it.
                "clusterctl.cluster.x-k8s.io": "",
                "clusterctl.cluster.x-k8s.io/move": "",
            },
        },
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [_SHORT_NAMES[kind]],
                "categories": ["cluster-api", "nstance"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }
