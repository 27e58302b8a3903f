"""The objects that stand for an instance of a pool, as Cluster API's contract has them. Pure."""

from nstance.kube import kinds
from nstance.kube.port import Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.machine_objects import DRAINED_BY_OPERATOR
from nstance.v1 import operator_pb2 as pb

REMOVED_ANNOTATION = "nstance.dev/removed-machines"  # of a MachinePool: UIDs of Machines for which it was shrunk
RELEASED_ANNOTATION = "nstance.dev/released"  # of a Machine that the operator deletes: its instance is not meant
REMEDIATED = "OwnerRemediated"  # a condition that a MachineHealthCheck sets to False on an unhealthy Machine


def nstance_machine_manifest(event: pb.InstanceEvent, shard: str, pool: Object, machine_pool: Object) -> Object:
    """The pool is no controller of it: Cluster API makes the Machine that."""
    metadata = {
        "name": event.instance_id,
        "labels": _labels(machine_pool),
        "ownerReferences": [resources.owner_reference(pool, kinds.NSTANCE_MACHINE_POOL)],
        "finalizers": [resources.FINALIZER],
    }
    spec: Object = {"instanceID": event.instance_id, "group": event.group, "failureDomain": shard}
    if event.provider_id:
        spec["providerID"] = event.provider_id
    return resources.manifest(kinds.NSTANCE_MACHINE, metadata, spec)


def machine_manifest(item: Object, machine_pool: Object) -> Object:
    """As Cluster API's MachinePool controller creates it. The finalizer keeps it until its instance is gone."""
    template = resources.as_object(resources.spec(machine_pool).get("template"))
    inherited = resources.as_object(template.get("metadata"))
    name = resources.name(item)
    metadata: Object = {
        "name": name,
        "labels": {**(inherited.get("labels") or {}), **_labels(machine_pool)},
        "ownerReferences": [resources.owner_reference(machine_pool, kinds.MACHINE_POOL, controller=True)],
        "finalizers": [resources.FINALIZER],
    }
    metadata["annotations"] = {**(inherited.get("annotations") or {}), **DRAINED_BY_OPERATOR}
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE.name, "name": name}
    cluster = resources.spec(machine_pool).get("clusterName", "")
    spec: Object = {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    if found := resources.provider_id(item):
        spec["providerID"] = found
    return resources.manifest(kinds.MACHINE, metadata, spec)


def _labels(machine_pool: Object) -> dict[str, str]:
    return {
        resources.CLUSTER_LABEL: str(resources.spec(machine_pool).get("clusterName", "")),
        resources.POOL_LABEL: resources.label_value(resources.name(machine_pool)),
    }


def removed_machines(machine_pool: Object) -> list[str]:
    found = resources.annotations(machine_pool).get(REMOVED_ANNOTATION, "")
    return [each for each in found.split(",") if each]


def needs_remediation(machine: Object) -> bool:
    return resources.condition(machine, REMEDIATED).get("status") == "False"


def instance_of(machine: Object) -> str:
    """The instance that a Machine of one of our pools stands for; empty for all other Machines."""
    reference = resources.infrastructure(machine)
    is_ours = resources.POOL_LABEL in resources.labels(machine) and reference.get("kind") == kinds.NSTANCE_MACHINE.name
    return str(reference.get("name", "")) if is_ours else ""
