"""Labels, annotations and taints that a pool gives its Nodes.

They reach a Node twice. Vars of the group carry them into userdata, for the flags of the kubelet: a Node that registers with
its taints never gets a pod too early. And the operator writes them on the Node, which also works for labels that a kubelet
may not set, and for changes. What was written is noted on the Node, so that a removed one goes. The trap: a start-up
taint that a program has removed must not come back, also on a Node that is not ready yet, or not ready again. So each is
added once, before the Node is ready for the first time.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nstance.kube import kinds
from nstance.kube.port import Kube, Object, find
from nstance.operator.controllers import resources

LABELS_VAR = "kubelet_node_labels"  # as --node-labels takes them
TAINTS_VAR = "kubelet_register_with_taints"  # as --register-with-taints takes them
APPLIED_ANNOTATION = "nstance.dev/node-settings"  # JSON: the keys that the operator has written
KUBELET_VARS = (LABELS_VAR, TAINTS_VAR)
HINTS_ANNOTATION = "nstance.dev/autoscaler-hints"  # of a MachinePool: which of these the operator has written
AUTOSCALER_CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"
_RESERVED = ("kubernetes.io", "k8s.io")  # a kubelet refuses to start with other labels of these domains
_ALLOWED = ("node.kubernetes.io", "kubelet.kubernetes.io")


def settings_of(pool: Object | None) -> Object:
    return resources.as_object(resources.spec(pool or {}).get("node"))


def kubelet_vars(spec: Object) -> dict[str, str]:
    """The vars for kubelets that follow from a pool's spec."""
    node = resources.as_object(spec.get("node"))
    labels = resources.as_object(node.get("labels"))
    taints = [*(node.get("taints") or ()), *(node.get("startupTaints") or ())]
    found = {
        LABELS_VAR: _join_labels({key: labels[key] for key in labels if _is_allowed_for_kubelets(key)}),
        TAINTS_VAR: _join_taints(taints),
    }
    return {key: value for key, value in found.items() if value}


def autoscaler_hints(machine_pool: Object, settings: Object) -> dict[str, str | None]:
    """Changes of a MachinePool's annotations that tell cluster-autoscaler what a new Node will have, for a pool without
    nodes. A person's own value stays."""
    annotations = resources.annotations(machine_pool)
    ours = annotations.get(HINTS_ANNOTATION, "").split(",")
    wanted = {
        "labels": _join_labels(resources.as_object(settings.get("labels"))) or None,
        "taints": _join_taints(settings.get("taints") or ()) or None,
    }
    changes: dict[str, str | None] = {}
    for name, value in wanted.items():
        current = annotations.get(f"{AUTOSCALER_CAPACITY}/{name}")
        if current != value and (name in ours or current is None):
            changes[f"{AUTOSCALER_CAPACITY}/{name}"] = value
    if changes:
        kept = {name for name in ours if wanted.get(name)} | {
            key.rpartition("/")[2] for key, each in changes.items() if each
        }
        changes[HINTS_ANNOTATION] = ",".join(sorted(kept)) or None
    return changes


def _join_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def _join_taints(taints: Iterable[Object]) -> str:
    return ",".join(f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in taints)


def _is_allowed_for_kubelets(label: str) -> bool:
    domain = label.rpartition("/")[0]
    return not _is_in(domain, _RESERVED) or _is_in(domain, _ALLOWED)


def _is_in(domain: str, parents: tuple[str, ...]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in parents)


def node_patch(
    node: Object,
    settings: Object,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """The merge patch that gives the Node its settings; empty if it has them. `labels`: more labels. `annotations`: others,
    which are never removed."""
    applied = _applied(node)
    own = {
        "labels": {**resources.as_object(settings.get("labels")), **(labels or {})},
        "annotations": resources.as_object(settings.get("annotations")),
    }
    wanted = {**own, "annotations": {**(annotations or {}), **own["annotations"]}}
    taints = list(settings.get("taints") or ())
    noted: dict[str, list[str]] = {key: sorted(value) for key, value in own.items() if value}
    noted |= {"taints": [_taint_key(each) for each in taints]} if taints else {}
    startup = list(settings.get("startupTaints") or ())
    noted |= {"startupTaints": [_taint_key(each) for each in startup]} if startup else {}
    metadata: dict[str, Any] = {}
    for field, values in wanted.items():
        current = {"labels": resources.labels(node), "annotations": resources.annotations(node)}[field]
        change: dict[str, str | None] = {key: value for key, value in values.items() if current.get(key) != value}
        change |= dict.fromkeys(key for key in applied.get(field, ()) if key not in values and key in current)
        if change:
            metadata[field] = change
    if noted != applied:
        noted_as = json.dumps(noted, sort_keys=True) if noted else None
        metadata["annotations"] = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: noted_as}
    patch: Object = {"metadata": metadata} if metadata else {}
    if "startupTaints" not in applied and not resources.is_ready(node):
        taints += startup
    before = list(resources.spec(node).get("taints") or ())
    after = _merge_taints(before, taints, removed=set(applied.get("taints", ())))
    if after != before:
        patch["spec"] = {"taints": after or None}
    return patch


def _merge_taints(current: list[Object], wanted: list[Object], *, removed: set[str]) -> list[Object]:
    keys = {_taint_key(each): each for each in wanted}
    kept = [each for each in current if _taint_key(each) in keys or _taint_key(each) not in removed]
    merged = [
        each if each.get("value") == (found := keys.get(_taint_key(each), each)).get("value") else found
        for each in kept
    ]
    present = {_taint_key(each) for each in merged}
    return [*merged, *(each for key, each in keys.items() if key not in present)]


def _taint_key(taint: Object) -> str:
    return f"{taint['key']}:{taint['effect']}"


def _applied(node: Object) -> dict[str, list[str]]:
    try:
        found = json.loads(resources.annotations(node).get(APPLIED_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def apply(
    kube: Kube,
    node: Object,
    settings: Object,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Writes them on exactly the version that was read, because a list of taints is replaced as a whole."""
    if not node_patch(node, settings, labels, annotations):
        return
    found = await _read(kube, node)
    if found is not None and (patch := node_patch(found, settings, labels, annotations)):
        version = found["metadata"]["resourceVersion"]
        body = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}
        await kube.patch(kinds.NODE, resources.name(found), body)


async def _read(kube: Kube, node: Object) -> Object | None:
    found = await find(kube, kinds.NODE, resources.name(node))
    return found if found is not None and resources.uid(found) == resources.uid(node) else None
