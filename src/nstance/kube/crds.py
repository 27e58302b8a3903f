"""Our custom resources: the one source of the schemas in `config/crd` and in the Helm chart (`make manifests`).

The trap: a CRD's schema prunes what it does not name, silently. A field that the operator writes and this file lacks is
simply not stored, so the tests write every field through a real API server.
"""

from typing import Any

from nstance.kube import kinds
from nstance.kube.kinds import Kind
from nstance.kube.port import Object

Schema = dict[str, Any]


def _text(about: str, **more: Any) -> Schema:
    return {"type": "string", "description": about, **more}


def _number(about: str, **more: Any) -> Schema:
    return {"type": "integer", "format": "int32", "description": about, **more}


def _flag(about: str) -> Schema:
    return {"type": "boolean", "description": about}


def _texts(about: str, **more: Any) -> Schema:
    return {"type": "array", "description": about, "items": {"type": "string"}, **more}


def _fields(about: str, properties: Schema, *, required: tuple[str, ...] = ()) -> Schema:
    schema = {"type": "object", "description": about, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _once(schema: Schema, name: str) -> Schema:
    """May be set, and then never changed."""
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
    "description": "What holds now, and why.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": _fields(
        "One condition.",
        {
            "type": _text("What it is about.", maxLength=316),
            "status": _text("True, False or Unknown.", enum=["True", "False", "Unknown"]),
            "reason": _text("One word for programs.", minLength=1, maxLength=1024),
            "message": _text("A sentence for people.", maxLength=32768),
            "lastTransitionTime": _text("When status last changed.", format="date-time"),
            "observedGeneration": {"type": "integer", "format": "int64", "description": "Of which spec this is said."},
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    ),
}
_PROVISIONED = _fields(
    "What Cluster API waits for.", {"provisioned": _flag("True once, and from then on, when it can be used.")}
)
_GENERATION: Schema = {"type": "integer", "format": "int64", "description": "The generation that the status speaks of."}
_MACHINE = {
    "group": _text("The group of the shard that the instance is made from.", **_NAME),
    "groupRef": {
        "description": "Another spelling of group: its name, or an object with a name.",
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "instanceType": _text("In place of the group's."),
    "vars": _VARS,
    "providerID": _text("Set by the operator: the VM, as the cloud names it."),
    "failureDomain": _text("The shard to make it on; empty: the operator chooses."),
}
_ADDRESSES: Schema = {
    "type": "array",
    "description": "How the instance is reached.",
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
                "Where the workload cluster's API server answers.",
                {"host": _text("Its host name or address."), "port": _number("Its port.", minimum=0, maximum=65535)},
            )
        },
    ),
    kinds.NSTANCE_MACHINE_POOL: _fields(
        "A group of instances, spread over shards.",
        {
            "group": _once(_text("The group's name on every shard.", **_NAME), "group"),
            "shards": _texts("The shards it is spread over, in order.", minItems=1, maxItems=256),
            "template": _text("The template of the configuration that its instances are made from."),
            "instanceType": _text("In place of the template's."),
            "subnetPool": _text("In place of the template's."),
            "vars": _VARS,
            "providerIDList": _texts("Set by the operator: the VMs of the pool, as the cloud names them."),
        },
        required=("group", "shards"),
    ),
    kinds.NSTANCE_SHARD_GROUP: _fields(
        "One pool's part on one shard. Made and changed by the operator.",
        {
            "group": _once(_text("The group's name on the shard.", **_NAME), "group"),
            "shard": _once(_text("The shard.", **_NAME), "shard"),
            "size": _number("How many instances this shard shall keep.", minimum=0),
            "template": _text("As in the pool."),
            "instanceType": _text("As in the pool."),
            "subnetPool": _text("As in the pool."),
            "vars": _VARS,
        },
        required=("group", "shard"),
    ),
    kinds.NSTANCE_MACHINE: _fields("One instance of its own, outside the size of its group.", _MACHINE),
    kinds.NSTANCE_MACHINE_TEMPLATE: _fields(
        "What machines made from it look like.",
        {
            "template": _fields(
                "The template.",
                {"spec": _once(_fields("As in NstanceMachine.", _MACHINE), "spec.template.spec")},
                required=("spec",),
            )
        },
        required=("template",),
    ),
}

_STATUSES: dict[Kind, Schema] = {
    kinds.NSTANCE_CLUSTER: _fields(
        "What the operator sees.",
        {
            "initialization": _PROVISIONED,
            "ready": _flag("All shards answer."),
            "failureDomains": {
                "type": "array",
                "description": "One for each shard.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": _fields(
                    "One failure domain.",
                    {
                        "name": _text("The shard."),
                        "controlPlane": _flag("Whether control plane machines may be there."),
                        "attributes": {
                            "type": "object",
                            "description": "More about it.",
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
        "What the shards say.",
        {
            "ready": _flag(
                "It was provisioned once, as Cluster API reads it. Whether all run, the condition Ready says."
            ),
            "replicas": _number("Instances there are."),
            "readyReplicas": _number("Of these, how many are ready."),
            "isStatic": _flag(
                "The group is in the server's configuration: only size, instanceType and vars can be changed."
            ),
            "infrastructureMachineKind": _text("The kind of the pool's machines, if it has one object for each."),
            "initialization": _PROVISIONED,
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_SHARD_GROUP: _fields(
        "What the shard says.",
        {
            "replicas": _number("Instances there are."),
            "readyReplicas": _number("Of these, how many are ready."),
            "providerIDs": _texts("The VMs, as the cloud names them."),
            "isStatic": _flag("The group is in the server's configuration."),
            "config": _fields(
                "The group as the server has it.",
                {
                    "template": _text("Its template."),
                    "size": _number("Its size."),
                    "sizeSource": _text("Where the size comes from: config, or api with who set it and when."),
                    "overrides": _texts("Settings of the server's configuration file that the API overrides."),
                    "instanceType": _text("Its instance type."),
                    "subnetPool": _text("Its subnet pool."),
                    "vars": _VARS,
                    "etag": _text("Its version."),
                    "paused": _flag("Nothing is made or deleted."),
                    "lastError": _text("What went wrong last."),
                },
            ),
            "lastSyncTime": _text("When the server last took the spec.", format="date-time"),
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_MACHINE: _fields(
        "What the shard says.",
        {
            "instanceID": _text("Chosen and stored here before the shard is asked: asking twice makes no second one."),
            "shard": _text("The shard that has it."),
            "state": _text("Its state there."),
            "ready": _flag(
                "It runs and has registered, as Cluster API reads it. Whether it is ready, the condition says."
            ),
            "initialization": _PROVISIONED,
            "addresses": _ADDRESSES,
            "failureDomain": _text("The shard that has it, as Cluster API reads it."),
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
            # Cluster API finds by this label which of our versions speaks which of its contracts.
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
