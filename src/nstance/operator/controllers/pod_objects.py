"""What controllers need of pods: which ones ask for a node, which ones keep a node busy, and how much they mind leaving."""

from nstance.kube.port import Object
from nstance.operator.controllers import resources

GROUP = "on-demand.nstance.dev/group"
GATE = "nstance.dev/on-demand"  # a scheduling gate: the pod waits until it is bound to its own node
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"  # Kubernetes' own: pods with a lower one are deleted first
MIRROR_POD = "kubernetes.io/config.mirror"
DONE = frozenset({"Succeeded", "Failed"})


def must_evict(pod: Object) -> bool:
    """Not DaemonSet pods, which would come back at once, nor mirror pods, which only the node can end, nor finished
    ones."""
    owners = pod["metadata"].get("ownerReferences") or []
    return not (
        MIRROR_POD in resources.annotations(pod)
        or any(each.get("controller") and each.get("kind") == "DaemonSet" for each in owners)
        or resources.status(pod).get("phase") in DONE
    )


def deletion_cost(pod: Object) -> int:
    """0 if it has none, or something that is no number."""
    try:
        return int(resources.annotations(pod).get(DELETION_COST, "0"))
    except ValueError:
        return 0


def trim_pod(pod: Object) -> Object:
    """What is kept of a pod in memory. It has a nodeName only if it keeps the node busy."""
    annotations = resources.annotations(pod)
    kept = ["name", "namespace", "uid", "resourceVersion", "deletionTimestamp"]
    kept += ["annotations"] if GROUP in annotations else []
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    if DELETION_COST in annotations and GROUP not in annotations:
        metadata["annotations"] = {DELETION_COST: annotations[DELETION_COST]}
    trimmed: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "status": {"phase": resources.status(pod).get("phase")},
    }
    if GROUP in annotations and (gates := resources.spec(pod).get("schedulingGates")):
        trimmed["spec"] = {"schedulingGates": gates}
    node = resources.spec(pod).get("nodeName")
    if node and must_evict(pod):
        trimmed["spec"] = {"nodeName": node}
    return trimmed
