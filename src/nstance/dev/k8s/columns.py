"""Columns of `kubectl get` for core kinds, which are computed instead of read from a path."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nstance.kube.api.values import at
from nstance.kube.port import Object

Cell = Callable[[Object, float], Any]  # from an object and the current time


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0


def format_duration(seconds: float) -> str:
    """An age as kubectl prints it: less precise the longer it is."""
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y{days % 365}d"


def format_age(timestamp: Any, now: float) -> str:
    try:
        return format_duration(now - datetime.fromisoformat(str(timestamp)).timestamp())
    except ValueError:
        return "<unknown>"


def field(*path: str, default: Any = "<none>") -> Cell:
    return lambda body, now: at(body, path) if at(body, path) not in (None, "") else default


def _age(body: Object, now: float) -> str:
    return format_age(at(body, ("metadata", "creationTimestamp")), now)


def _count(*path: str) -> Cell:
    return lambda body, now: len(at(body, path) or ())


NAME = ComputedColumn("Name", field("metadata", "name"))
AGE = ComputedColumn("Age", _age)


def _node_status(body: Object, now: float) -> str:
    ready: Object = next((each for each in at(body, ("status", "conditions")) or () if each.get("type") == "Ready"), {})
    text = {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Unknown")
    return f"{text},SchedulingDisabled" if at(body, ("spec", "unschedulable")) else text


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


def _event_seen(body: Object, now: float) -> str:
    seen = body.get("lastTimestamp") or body.get("eventTime") or at(body, ("metadata", "creationTimestamp"))
    return format_age(at(body, ("series", "lastObservedTime")) or seen, now)


def _event_object(body: Object, now: float) -> str:
    about = body.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


COLUMNS: dict[str, tuple[ComputedColumn, ...]] = {
    "nodes": (
        NAME,
        ComputedColumn("Status", _node_status),
        ComputedColumn("Roles", _node_roles),
        AGE,
        ComputedColumn("Version", field("status", "nodeInfo", "kubeletVersion", default="")),
        ComputedColumn("Internal-IP", _address("InternalIP"), priority=1),
        ComputedColumn("External-IP", _address("ExternalIP"), priority=1),
        ComputedColumn("Provider-ID", field("spec", "providerID"), priority=1),
    ),
    "pods": (
        NAME,
        ComputedColumn("Ready", _pod_ready),
        ComputedColumn("Status", _pod_status),
        ComputedColumn("Restarts", _restarts, "integer"),
        AGE,
        ComputedColumn("IP", field("status", "podIP"), priority=1),
        ComputedColumn("Node", field("spec", "nodeName"), priority=1),
    ),
    "namespaces": (NAME, ComputedColumn("Status", field("status", "phase")), AGE),
    "secrets": (NAME, ComputedColumn("Type", field("type")), ComputedColumn("Data", _count("data"), "integer"), AGE),
    "configmaps": (NAME, ComputedColumn("Data", _count("data"), "integer"), AGE),
    "events": (
        ComputedColumn("Last Seen", _event_seen),
        ComputedColumn("Type", field("type")),
        ComputedColumn("Reason", field("reason")),
        ComputedColumn("Object", _event_object),
        ComputedColumn("Message", lambda body, now: str(body.get("message", "")).strip()),
        ComputedColumn("Count", field("count", default=1), "integer", priority=1),
        ComputedColumn("Name", field("metadata", "name"), priority=1),
    ),
    "leases.coordination.k8s.io": (NAME, ComputedColumn("Holder", field("spec", "holderIdentity", default="")), AGE),
    "poddisruptionbudgets.policy": (
        NAME,
        ComputedColumn("Min Available", field("spec", "minAvailable", default="N/A")),
        ComputedColumn("Max Unavailable", field("spec", "maxUnavailable", default="N/A")),
        ComputedColumn("Allowed Disruptions", field("status", "disruptionsAllowed", default=0), "integer"),
        AGE,
    ),
}
