"""Our custom resources: the source of the schemas in `config/crd` and in the Helm chart (`make manifests`).

The trap: an API server silently drops fields that the schema does not name, so the tests write every field that the
operator uses through a real API server.
"""

from typing import Any

from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object

Schema = dict[str, Any]


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def _number(description: str, **more: Any) -> Schema:
    return {"type": "integer", "format": "int32", "description": description, **more}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _texts(description: str, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": {"type": "string"}, **more}


def _fields(description: str, properties: Schema, *, required: tuple[str, ...] = ()) -> Schema:
    schema = {"type": "object", "description": description, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _immutable(schema: Schema, name: str) -> Schema:
    """Cannot be changed once it is set."""
    rule = {"rule": "self == oldSelf", "message": f"{name} cannot be changed: make a new object instead"}
    return schema | {"x-kubernetes-validations": [rule]}


_NAME = {"minLength": 1, "maxLength": 63}
_VARS: Schema = {
    "type": "object",
    "description": "Template variables, merged over the configuration's.",
    "additionalProperties": {"type": "string"},
}
_CONDITIONS: Schema = {
    "type": "array",
    "description": "Current state, and why.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": _fields(
        "One condition.",
        {
            "type": _text("The name of the condition.", maxLength=316),
            "status": _text("True, False or Unknown.", enum=["True", "False", "Unknown"]),
            "reason": _text("One word, for programs.", minLength=1, maxLength=1024),
            "message": _text("A sentence, for people.", maxLength=32768),
            "lastTransitionTime": _text("When status last changed.", format="date-time"),
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The generation that the condition is about.",
            },
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    ),
}
_PROVISIONED = _fields(
    "What Cluster API waits for.", {"provisioned": _flag("True as soon as it can be used; stays true.")}
)
_GENERATION: Schema = {"type": "integer", "format": "int64", "description": "The generation that the status is about."}
_MACHINE = {
    "group": _text("The group that the instance is created from.", **_NAME),
    "groupRef": {
        "description": "Another spelling of group: its name, or an object with a name.",
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "instanceType": _text("Overrides the instance type of the group."),
    "vars": _VARS,
    "providerID": _text("Set by the operator: the provider ID of the VM."),
    "failureDomain": _text("The shard to create it in; empty: the operator chooses."),
}
_ADDRESSES: Schema = {
    "type": "array",
    "description": "The addresses of the instance.",
    "items": _fields(
        "One address.",
        {"type": _text("InternalIP, Hostname …"), "address": _text("The address itself.")},
        required=("type", "address"),
    ),
}

_SPECS: dict[Kind, Schema] = {
    kinds.NSTANCE_CLUSTER: _fields(
        "The Nstance cluster behind a Cluster API Cluster.",
        {
            "controlPlaneEndpoint": _fields(
                "The address of the workload cluster's API server.",
                {"host": _text("Its host name or address."), "port": _number("Its port.", minimum=0, maximum=65535)},
            )
        },
    ),
    kinds.NSTANCE_MACHINE_POOL: _fields(
        "A group of instances, spread over shards.",
        {
            "group": _immutable(_text("The group's name on every shard.", **_NAME), "group"),
            "shards": _texts("The shards that it is spread over, in order.", minItems=1, maxItems=256),
            "template": _text("The template that its instances are created from."),
            "instanceType": _text("Overrides the value of the template."),
            "subnetPool": _text("Overrides the value of the template."),
            "vars": _VARS,
            "providerIDList": _texts("Set by the operator: the provider IDs of the pool's VMs."),
        },
        required=("group", "shards"),
    ),
    kinds.NSTANCE_SHARD_GROUP: _fields(
        "The part of a pool that is in one shard. Managed by the operator.",
        {
            "group": _immutable(_text("The group's name on the shard.", **_NAME), "group"),
            "shard": _immutable(_text("The shard.", **_NAME), "shard"),
            "size": _number("The desired number of instances in this shard.", minimum=0),
            "template": _text("As in the pool."),
            "instanceType": _text("As in the pool."),
            "subnetPool": _text("As in the pool."),
            "vars": _VARS,
        },
        required=("group", "shard"),
    ),
    kinds.NSTANCE_MACHINE: _fields("An on-demand instance, on top of the size of its group.", _MACHINE),
    kinds.NSTANCE_MACHINE_TEMPLATE: _fields(
        "A template for NstanceMachines.",
        {
            "template": _fields(
                "The template.",
                {"spec": _immutable(_fields("As in NstanceMachine.", _MACHINE), "spec.template.spec")},
                required=("spec",),
            )
        },
        required=("template",),
    ),
}

_STATUSES: dict[Kind, Schema] = {
    kinds.NSTANCE_CLUSTER: _fields(
        "Observed state.",
        {
            "initialization": _PROVISIONED,
            "ready": _flag("All shards are reachable."),
            "failureDomains": {
                "type": "array",
                "description": "One for each shard.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": _fields(
                    "One failure domain.",
                    {
                        "name": _text("The shard."),
                        "controlPlane": _flag("Whether control plane machines may be placed in it."),
                        "attributes": {
                            "type": "object",
                            "description": "Further attributes.",
                            "additionalProperties": {"type": "string"},
                        },
                    },
                    required=("name",),
                ),
            },
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_MACHINE_POOL: _fields(
        "Observed state.",
        {
            "ready": _flag(
                "True once it was provisioned, for Cluster API. The condition Ready says whether all instances run."
            ),
            "replicas": _number("The number of instances."),
            "readyReplicas": _number("The number of ready instances."),
            "isStatic": _flag(
                "The group is in the server's configuration: only size, instanceType and vars can be changed."
            ),
            "infrastructureMachineKind": _text("The kind of the pool's machine objects, if it has any."),
            "initialization": _PROVISIONED,
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_SHARD_GROUP: _fields(
        "Observed state.",
        {
            "replicas": _number("The number of instances."),
            "readyReplicas": _number("The number of ready instances."),
            "providerIDs": _texts("The provider IDs of the VMs."),
            "isStatic": _flag("The group is in the server's configuration."),
            "config": _fields(
                "The group's configuration on the server.",
                {
                    "template": _text("Its template."),
                    "size": _number("Its size."),
                    "sizeSource": _text("Where the size comes from: config, or api with who set it and when."),
                    "overrides": _texts("Settings of the server's configuration file that the API overrides."),
                    "instanceType": _text("Its instance type."),
                    "subnetPool": _text("Its subnet pool."),
                    "vars": _VARS,
                    "etag": _text("Its version."),
                    "paused": _flag("No instance is created or deleted."),
                    "lastError": _text("The last error."),
                },
            ),
            "lastSyncTime": _text("When the server last accepted the spec.", format="date-time"),
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_MACHINE: _fields(
        "Observed state.",
        {
            "instanceID": _text("Stored before the shard is asked, so that asking twice creates one instance."),
            "shard": _text("The shard that it is in."),
            "state": _text("Its state in the shard."),
            "ready": _flag(
                "True once it has registered, for Cluster API. The condition Ready says whether it is ready."
            ),
            "initialization": _PROVISIONED,
            "addresses": _ADDRESSES,
            "failureDomain": _text("The shard that it is in, for Cluster API."),
            "conditions": _CONDITIONS,
        },
    ),
}

_AGE = ("Age", "date", ".metadata.creationTimestamp")
_READY = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
_COLUMNS: dict[Kind, tuple[tuple[str, str, str], ...]] = {
    kinds.NSTANCE_CLUSTER: (_READY, ("Endpoint", "string", ".spec.controlPlaneEndpoint.host"), _AGE),
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
    kinds.NSTANCE_MACHINE_TEMPLATE: (("Group", "string", ".spec.template.spec.group"), _AGE),
}
_SHORT_NAMES = {
    kinds.NSTANCE_CLUSTER: "nc",
    kinds.NSTANCE_MACHINE_POOL: "nmp",
    kinds.NSTANCE_SHARD_GROUP: "nsg",
    kinds.NSTANCE_MACHINE: "nm",
    kinds.NSTANCE_MACHINE_TEMPLATE: "nmt",
}
KINDS = tuple(_SPECS)


def definition(kind: Kind) -> Object:
    """The CustomResourceDefinition of one of our kinds."""
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": _SPECS[kind],
    }
    subresources: Schema = {}
    if kind in _STATUSES:
        properties["status"] = _STATUSES[kind]
        subresources["status"] = {}
    if kind == kinds.NSTANCE_SHARD_GROUP:
        subresources["scale"] = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    version: Schema = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": _SPECS[kind]["description"],
                "properties": properties,
                "required": ["spec"],
            }
        },
        "subresources": subresources,
        "additionalPrinterColumns": [{"name": name, "type": of, "jsonPath": path} for name, of, path in _COLUMNS[kind]],
    }
    return {
        "apiVersion": kinds.CUSTOM_RESOURCE_DEFINITION.api_version,
        "kind": kinds.CUSTOM_RESOURCE_DEFINITION.name,
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # This label tells Cluster API which contract each of our versions implements.
            "labels": {"cluster.x-k8s.io/provider": "infrastructure-nstance", "cluster.x-k8s.io/v1beta2": kind.version},
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
