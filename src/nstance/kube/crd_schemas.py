"""The schemas of our custom resources, with the rules that the API server checks itself (CEL).

The trap: an API server silently drops fields that the schema does not name, so the tests write every field that the
operator uses through a real API server.
"""

from typing import Any

from nstance.kube import kinds
from nstance.kube.kinds import Kind

Schema = dict[str, Any]


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def _number(description: str, **more: Any) -> Schema:
    return {"type": "integer", "format": "int32", "description": description, **more}


def _map_of_texts(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _texts(description: str, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": {"type": "string"}, **more}


def _fields(description: str, properties: Schema, *, required: tuple[str, ...] = ()) -> Schema:
    schema = {"type": "object", "description": description, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _rules(schema: Schema, *rules: tuple[str, str]) -> Schema:
    """Each rule is a CEL expression and the sentence for a person whose change breaks it."""
    return schema | {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _immutable(schema: Schema, name: str) -> Schema:
    """Cannot be changed once it is set."""
    return _rules(schema, ("self == oldSelf", f"{name} cannot be changed: make a new object instead"))


def _template(name: str, spec: Schema) -> Schema:
    """The spec of a template kind."""
    metadata = _fields(
        "Labels and annotations of objects that are created from it.",
        {key: _map_of_texts(f"Their {key}.") for key in ("labels", "annotations")},
    )
    inner = {"metadata": metadata, "spec": _immutable(spec, "spec.template.spec")}
    return _fields(
        f"A template for {name}.",
        {"template": _fields("The template.", inner, required=("spec",))},
        required=("template",),
    )


_NAME = {"minLength": 1, "maxLength": 63}
_VARS = _map_of_texts("Template variables, merged over the configuration's.")
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
    "instanceID": _immutable(
        _text(
            "Set by the operator: the instance of a pool that this object stands for. Empty: an on-demand instance of its "
            "own."
        ),
        "instanceID",
    ),
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

_TAINTS: Schema = {
    "type": "array",
    "maxItems": 50,
    "items": _fields(
        "One taint.",
        {
            "key": _text("Its key.", minLength=1, maxLength=316),
            "value": _text("Its value.", maxLength=63),
            "effect": _text("What it does.", enum=["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        },
        required=("key", "effect"),
    ),
}
_NODE = _fields(
    "What the Nodes of these instances get, through the flags of the kubelet (vars) and by the operator.",
    {
        "labels": _map_of_texts("Labels."),
        "annotations": _map_of_texts("Annotations."),
        "taints": _TAINTS | {"description": "Taints."},
        "startupTaints": _TAINTS | {"description": "Taints of a new Node; something else removes them."},
    },
)
_ENDPOINT = {
    "controlPlaneEndpoint": _fields(
        "The address of the workload cluster's API server.",
        {"host": _text("Its host name or address."), "port": _number("Its port.", minimum=0, maximum=65535)},
    )
}

SPECS: dict[Kind, Schema] = {
    kinds.NSTANCE_CLUSTER: _fields("The Nstance cluster behind a Cluster API Cluster.", _ENDPOINT),
    kinds.NSTANCE_CONTROL_PLANE: _fields(
        "The control plane of the workload cluster, as Cluster API sees it: it exists, and Nstance does not create it.",
        _ENDPOINT | {"version": _text("Its Kubernetes version. A ClusterClass writes it; nothing here follows it.")},
    ),
    kinds.NSTANCE_BOOTSTRAP_CONFIG: _fields(
        "No bootstrap data, for a ClusterClass, which needs an object that says so. Instances boot with Nstance's own "
        "userdata.",
        {},
    ),
    kinds.NSTANCE_MACHINE_POOL: _rules(
        _fields(
            "A group of instances, spread over shards.",
            {
                "group": _immutable(_text("The group's name on every shard.", **_NAME), "group"),
                "shards": _rules(
                    _texts("The shards that it is spread over, in order.", minItems=1, maxItems=256)
                    | {"items": {"type": "string", "maxLength": 63}},
                    ("self.all(each, self.exists_one(other, other == each))", "expected each shard once"),
                ),
                "template": _text("The template that its instances are created from."),
                "instanceType": _text("Overrides the value of the template."),
                "subnetPool": _text("Overrides the value of the template."),
                "vars": _VARS,
                "shardSizes": {
                    "type": "object",
                    "description": "Sizes for single shards. They hold while they add up to the replicas of the MachinePool; "
                    "the operator removes them when the replicas change.",
                    "maxProperties": 256,
                    "additionalProperties": {"type": "integer", "format": "int32", "minimum": 0},
                },
                "node": _NODE,
                "limits": _fields(
                    "Bounds of the pool, whatever its replicas say.",
                    {
                        "instances": _number(
                            "It does not grow beyond this number; it is never shrunk to it.", minimum=0
                        ),
                        "hourlyCost": {
                            "type": "number",
                            "description": "The same for what its instances cost per hour, at the prices of the shards.",
                            "minimum": 0,
                        },
                    },
                ),
                "providerIDList": _texts("Set by the operator: the provider IDs of the pool's VMs."),
            },
            required=("group", "shards"),
        ),
        (
            "!has(self.shardSizes) || self.shardSizes.all(shard, shard in self.shards)",
            "shardSizes: expected only shards of spec.shards",
        ),
    ),
    kinds.NSTANCE_SHARD_GROUP: _fields(
        "The part of a pool that is in one shard. Managed by the operator.",
        {
            "group": _immutable(_text("The group's name on the shard.", **_NAME), "group"),
            "shard": _immutable(_text("The shard.", **_NAME), "shard"),
            "size": _number("The desired number of instances in this shard.", minimum=0),
            "removeFirst": _texts(
                "Instances that leave first when the group shrinks to this size, in this order.", maxItems=10_000
            ),
            "template": _text("As in the pool."),
            "instanceType": _text("As in the pool."),
            "subnetPool": _text("As in the pool."),
            "vars": _VARS,
            "nodeVars": {
                **_VARS,
                "description": "Vars for kubelets, from the node settings of the pool. Other vars stay.",
            },
        },
        required=("group", "shard"),
    ),
    kinds.NSTANCE_MACHINE: _rules(
        _fields("An on-demand instance, or an instance of a pool (instanceID).", _MACHINE),
        (
            "has(self.instanceID) == has(oldSelf.instanceID)",
            "instanceID cannot be added or removed: it is the operator's",
        ),
    ),
}
SPECS |= {
    kinds.NSTANCE_CLUSTER_TEMPLATE: _template("NstanceClusters", SPECS[kinds.NSTANCE_CLUSTER]),
    kinds.NSTANCE_CONTROL_PLANE_TEMPLATE: _template("NstanceControlPlanes", SPECS[kinds.NSTANCE_CONTROL_PLANE]),
    kinds.NSTANCE_BOOTSTRAP_CONFIG_TEMPLATE: _template(
        "NstanceBootstrapConfigs", SPECS[kinds.NSTANCE_BOOTSTRAP_CONFIG]
    ),
    kinds.NSTANCE_MACHINE_POOL_TEMPLATE: _template("NstanceMachinePools", SPECS[kinds.NSTANCE_MACHINE_POOL]),
    kinds.NSTANCE_MACHINE_TEMPLATE: _template("NstanceMachines", _fields("As in NstanceMachine.", _MACHINE)),
}

# Rules about the whole object: a static group is in the shards' configuration.
_SAME_TEXT = "has(self.spec.{0}) == has(oldSelf.spec.{0}) && (!has(self.spec.{0}) || self.spec.{0} == oldSelf.spec.{0})"
_NOT_STATIC = "!has(oldSelf.status) || !has(oldSelf.status.isStatic) || !oldSelf.status.isStatic"
ROOT_RULES: dict[Kind, tuple[tuple[str, str], ...]] = {
    kinds.NSTANCE_MACHINE_POOL: tuple(
        (
            f"{_NOT_STATIC} || ({same})",
            f"spec.{name} cannot be changed: the group is static, it is in its shards' configuration; change it there. "
            "Size, instanceType and vars can be changed here",
        )
        for name, same in (
            ("shards", "self.spec.shards == oldSelf.spec.shards"),
            ("template", _SAME_TEXT.format("template")),
            ("subnetPool", _SAME_TEXT.format("subnetPool")),
        )
    ),
}

STATUSES: dict[Kind, Schema] = {
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
                        "attributes": _map_of_texts("Further attributes."),
                    },
                    required=("name",),
                ),
            },
            "conditions": _CONDITIONS,
        },
    ),
    kinds.NSTANCE_CONTROL_PLANE: _fields(
        "Observed state.",
        {
            "initialization": _fields(
                "What Cluster API waits for.",
                {"controlPlaneInitialized": _flag("The API server answered; stays true.")},
            ),
            "initialized": _flag("The same, in the contract v1beta1."),
            "ready": _flag("The API server answers."),
            "externalManagedControlPlane": _flag("True: there are no Machines of control plane nodes."),
            "version": _text("The version of the spec, for a ClusterClass."),
            "conditions": _CONDITIONS,
        },
    ),
    # The API server itself answers for it: there is never anything to wait for.
    kinds.NSTANCE_BOOTSTRAP_CONFIG: _fields(
        "Constant.",
        {
            "dataSecretName": _text("Empty: there is no bootstrap data."),
            "ready": _flag("For the contract v1beta1."),
            "initialization": _fields("For Cluster API.", {"dataSecretCreated": _flag("Nothing is missing.")}),
        },
    )
    | {"default": {"dataSecretName": "", "ready": True, "initialization": {"dataSecretCreated": True}}},
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
            "infrastructureMachineKind": _text("The kind of the objects that stand for the pool's instances."),
            "capacity": _map_of_texts(
                "What one instance offers to pods; cluster-autoscaler needs it to scale from zero."
            ),
            "nodeInfo": _fields(
                "What a node of this pool runs on.",
                {"architecture": _text("amd64 or arm64."), "operatingSystem": _text("linux.")},
            ),
            "instances": {
                "type": "array",
                "description": "The first hundred instances, by name.",
                "maxItems": 100,
                "items": _fields(
                    "One instance.",
                    {
                        "instanceName": _text("Its ID."),
                        "providerID": _text("The provider ID of its VM."),
                        "shard": _text("The shard that it is in."),
                        "state": _text("Its state in the shard."),
                        "ready": _flag("Running, with its files, and all checks pass."),
                        "addresses": _ADDRESSES,
                    },
                ),
            },
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
            "ownedFields": _texts(
                "Fields that the spec has set at the shard. One that it no longer names is cleared there."
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
