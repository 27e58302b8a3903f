"""What `kubectl get` prints of core kinds: columns that no path into the object gives, because they are computed."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nstance.kube.api.values import at
from nstance.kube.port import Object

Cell = Callable[[Object, float], Any]  # of an object at a time


@dataclass(frozen=True, slots=True)
class Computed:
    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0


def duration(seconds: float) -> str:
    """As kubectl shows an age: coarser the longer it is."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y{days % 365}d"


def since(timestamp: Any, now: float) -> str:
    try:
        return duration(now - datetime.fromisoformat(str(timestamp)).timestamp())
    except ValueError:
        return "<unknown>"


def field(*path: str, default: Any = "<none>") -> Cell:
    return lambda body, now: at(body, path) if at(body, path) not in (None, "") else default


def _age(body: Object, now: float) -> str:
    return since(at(body, ("metadata", "creationTimestamp")), now)


def _count(*path: str) -> Cell:
    return lambda body, now: len(at(body, path) or ())


NAME = Computed("Name", field("metadata", "name"))
AGE = Computed("Age", _age)


def _node_status(body: Object, now: float) -> str:
    ready: Object = next((each for each in at(body, ("status", "conditions")) or () if each.get("type") == "Ready"), {})
    said = {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Unknown")
    return f"{said},SchedulingDisabled" if at(body, ("spec", "unschedulable")) else said


def _node_roles(body: Object, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = at(body, ("metadata", "labels")) or {}
    return ",".join(sorted(name.removeprefix(prefix) for name in labels if name.startswith(prefix))) or "<none>"


def _address(kind: str) -> Cell:
    def cell(body: Object, now: float) -> str:
        listed = at(body, ("status", "addresses")) or ()
        return next((str(each.get("address")) for each in listed if each.get("type") == kind), "<none>")

    return cell


def _pod_ready(body: Object, now: float) -> str:
    states = at(body, ("status", "containerStatuses")) or ()
    return f"{sum(bool(each.get('ready')) for each in states)}/{len(at(body, ('spec', 'containers')) or ())}"


def _pod_status(body: Object, now: float) -> str:
    if at(body, ("metadata", "deletionTimestamp")):
        return "Terminating"
    for each in at(body, ("status", "containerStatuses")) or ():
        waiting = at(each, ("state", "waiting", "reason"))
        if waiting:
            return str(waiting)
    return str(at(body, ("status", "reason")) or at(body, ("status", "phase")) or "Unknown")


def _restarts(body: Object, now: float) -> int:
    return sum(int(each.get("restartCount") or 0) for each in at(body, ("status", "containerStatuses")) or ())


def _of(have: tuple[str, ...], want: tuple[str, ...]) -> Cell:
    return lambda body, now: f"{at(body, have, 0)}/{at(body, want, 0)}"


def _event_seen(body: Object, now: float) -> str:
    seen = body.get("lastTimestamp") or body.get("eventTime") or at(body, ("metadata", "creationTimestamp"))
    return since(at(body, ("series", "lastObservedTime")) or seen, now)


def _event_object(body: Object, now: float) -> str:
    about = body.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _service_ports(body: Object, now: float) -> str:
    listed = at(body, ("spec", "ports")) or ()
    return ",".join(f"{each.get('port')}/{each.get('protocol', 'TCP')}" for each in listed) or "<none>"


_SIZED = (
    Computed("Ready", _of(("status", "readyReplicas"), ("spec", "replicas"))),
    Computed("Up-to-date", field("status", "updatedReplicas", default=0), "integer"),
    Computed("Available", field("status", "availableReplicas", default=0), "integer"),
)

COLUMNS: dict[str, tuple[Computed, ...]] = {
    "nodes": (
        NAME,
        Computed("Status", _node_status),
        Computed("Roles", _node_roles),
        AGE,
        Computed("Version", field("status", "nodeInfo", "kubeletVersion", default="")),
        Computed("Internal-IP", _address("InternalIP"), priority=1),
        Computed("External-IP", _address("ExternalIP"), priority=1),
        Computed("Provider-ID", field("spec", "providerID"), priority=1),
    ),
    "pods": (
        NAME,
        Computed("Ready", _pod_ready),
        Computed("Status", _pod_status),
        Computed("Restarts", _restarts, "integer"),
        AGE,
        Computed("IP", field("status", "podIP"), priority=1),
        Computed("Node", field("spec", "nodeName"), priority=1),
    ),
    "namespaces": (NAME, Computed("Status", field("status", "phase")), AGE),
    "secrets": (NAME, Computed("Type", field("type")), Computed("Data", _count("data"), "integer"), AGE),
    "configmaps": (NAME, Computed("Data", _count("data"), "integer"), AGE),
    "services": (
        NAME,
        Computed("Type", field("spec", "type", default="ClusterIP")),
        Computed("Cluster-IP", field("spec", "clusterIP")),
        Computed("Port(s)", _service_ports),
        AGE,
    ),
    "events": (
        Computed("Last Seen", _event_seen),
        Computed("Type", field("type")),
        Computed("Reason", field("reason")),
        Computed("Object", _event_object),
        Computed("Message", lambda body, now: str(body.get("message", "")).strip()),
        Computed("Count", field("count", default=1), "integer", priority=1),
        Computed("Name", field("metadata", "name"), priority=1),
    ),
    "leases.coordination.k8s.io": (NAME, Computed("Holder", field("spec", "holderIdentity", default="")), AGE),
    "poddisruptionbudgets.policy": (
        NAME,
        Computed("Min Available", field("spec", "minAvailable", default="N/A")),
        Computed("Max Unavailable", field("spec", "maxUnavailable", default="N/A")),
        Computed("Allowed Disruptions", field("status", "disruptionsAllowed", default=0), "integer"),
        AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (
        NAME,
        Computed("Created At", field("metadata", "creationTimestamp")),
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        NAME,
        Computed("Webhooks", _count("webhooks"), "integer"),
        AGE,
    ),
    "deployments.apps": (NAME, *_SIZED, AGE),
    "statefulsets.apps": (NAME, _SIZED[0], AGE),
    "daemonsets.apps": (
        NAME,
        Computed("Desired", field("status", "desiredNumberScheduled", default=0), "integer"),
        Computed("Ready", field("status", "numberReady", default=0), "integer"),
        AGE,
    ),
    "rolebindings.rbac.authorization.k8s.io": (
        NAME,
        Computed("Role", lambda body, now: f"{at(body, ('roleRef', 'kind'))}/{at(body, ('roleRef', 'name'))}"),
        AGE,
    ),
    "clusterrolebindings.rbac.authorization.k8s.io": (
        NAME,
        Computed("Role", lambda body, now: f"{at(body, ('roleRef', 'kind'))}/{at(body, ('roleRef', 'name'))}"),
        AGE,
    ),
}
