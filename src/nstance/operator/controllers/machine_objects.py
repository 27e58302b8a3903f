"""What a Machine and its NstanceMachine show of an instance, on-demand or of a pool."""

import contextlib
from collections.abc import Mapping

from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object
from nstance.operator.controllers import resources
from nstance.operator.controllers.resources import Condition
from nstance.v1 import operator_pb2 as pb

InstanceState = pb.InstanceStatus | pb.InstanceEvent

CREATE_FAILED = "CreateFailed"
ENDED = frozenset({"deleted", "failed"})
LEAVING = frozenset({"draining", "deleting"})
DRAINED_BY_OPERATOR = {  # annotations of Machines, for Cluster API
    "machine.cluster.x-k8s.io/exclude-node-draining": "",
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach": "",
}


def pool_instance(item: Object) -> str:
    """The instance of a pool that an NstanceMachine stands for; empty: it asks for an on-demand instance."""
    found = resources.spec(item).get("instanceID")
    return found if isinstance(found, str) else ""


def addresses(instance: InstanceState) -> list[Object]:
    found = (("InternalIP", instance.ipv4), ("InternalIP", instance.ipv6), ("Hostname", instance.hostname))
    return [{"type": kind, "address": address} for kind, address in found if address]


def condition(instance: InstanceState) -> Condition:
    if instance.state == "running":
        # Older servers do not report readiness: a running instance counts as ready there.
        reason = "NotReady" if instance.not_ready else "Running"
        return Condition("Ready", not instance.not_ready, reason, instance.not_ready)
    if isinstance(instance, pb.InstanceStatus) and instance.state == "failed":  # events of it carry no message
        return Condition("Ready", False, CREATE_FAILED, f"{instance.reason}: {instance.message}")
    if instance.state in LEAVING:
        return Condition("Ready", False, "Leaving", instance.reason)
    return Condition("Ready", False, "Starting", f"the instance is {instance.state}")


def machine_status(instance: InstanceState, shard: str) -> Object:
    """The status of an NstanceMachine, without conditions."""
    is_running = instance.state == "running"
    status: Object = {
        "instanceID": instance.instance_id,
        "shard": shard,
        "failureDomain": shard,
        "state": instance.state,
        "ready": is_running,
    }
    if found := addresses(instance):
        status["addresses"] = found
    if is_running:
        status["initialization"] = {"provisioned": True}
    return status


def listed_provider_id(instance: InstanceState, node: Object | None, stored: str) -> str:
    """The provider ID to show. Once its node gave the ID, it is kept: Cluster API and cluster-autoscaler would otherwise
    look for a node with another ID."""
    return instance.provider_id and (resources.provider_id(node or {}) or stored or instance.provider_id)


async def update_machine(
    kube: Kube, machine: Object, instance: InstanceState, *, provider_id: str, node: Object | None
) -> None:
    """Writes what Cluster API's own controller writes where it runs."""
    if provider_id and resources.spec(machine).get("providerID") != provider_id:
        change = {"spec": {"providerID": provider_id}}
        await kube.patch(
            kinds.MACHINE, resources.name(machine), change, namespace=machine["metadata"].get("namespace", "")
        )
    status: Object = {"addresses": addresses(instance)} if addresses(instance) else {}
    if node is not None:
        status["nodeRef"] = {"name": resources.name(node)}
    await resources.write_status(kube, kinds.MACHINE, machine, status)


def node_annotations(machine: Object) -> dict[str, str]:
    """What Cluster API's own controller writes on the Machine's Node. cluster-autoscaler finds the Machine by it."""
    metadata, prefix = machine["metadata"], kinds.CAPI
    found = {
        resources.CLUSTER_LABEL: resources.spec(machine).get("clusterName", ""),
        f"{prefix}/cluster-namespace": metadata.get("namespace", ""),
        f"{prefix}/machine": resources.name(machine),
    }
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            found |= {f"{prefix}/owner-kind": owner["kind"], f"{prefix}/owner-name": owner["name"]}
    return found


async def exclude_from_drains(kube: Kube, machine: Object) -> None:
    """Cluster API must not drain a node before it lets its instance go: the shard waits for the operator's drain, with a
    deadline. Nor wait for the volumes of pods that are still there."""
    if not DRAINED_BY_OPERATOR.keys() <= resources.annotations(machine).keys():
        change = {"metadata": {"annotations": DRAINED_BY_OPERATOR}}
        with contextlib.suppress(errors.NotFoundError):
            await kube.patch(
                kinds.MACHINE, resources.name(machine), change, namespace=machine["metadata"].get("namespace", "")
            )


def node_reference(node: Object) -> Object:
    """As in the status of a MachinePool."""
    return {"apiVersion": "v1", "kind": kinds.NODE.name, "name": resources.name(node), "uid": resources.uid(node)}


def is_marked(machine: Object) -> bool:
    """Whether somebody chose it to leave when its pool shrinks, as cluster-autoscaler does."""
    annotations: Mapping[str, str] = resources.annotations(machine)
    return resources.DELETE_MACHINE in annotations or resources.is_being_deleted(machine)
