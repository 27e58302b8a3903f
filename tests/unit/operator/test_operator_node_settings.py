"""What a pool gives its Nodes: through vars, and as patches of a Node."""

import json

import pytest

from nstance.kube.port import Object
from nstance.operator.controllers import node_settings, pool_status, pools
from nstance.operator.controllers.pool_limits import Limit

SPOT = {"key": "spot", "value": "true", "effect": "NoSchedule"}
CNI = {"key": "cni", "effect": "NoExecute"}
SETTINGS: Object = {
    "labels": {"tier": "web", "kubernetes.io/role": "web"},
    "annotations": {"note": "x"},
    "taints": [SPOT],
    "startupTaints": [CNI],
}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def node(*, taints: list[Object] | None = None, status: Object | None = None, **metadata: Object) -> Object:
    return {"metadata": {"name": "n", **metadata}, "spec": {"taints": taints or []}, "status": status or {}}


def patched(item: Object, patch: Object) -> Object:
    metadata = dict(item["metadata"])
    for field in ("labels", "annotations"):
        changed = {**metadata.get(field, {}), **patch.get("metadata", {}).get(field, {})}
        metadata[field] = {key: value for key, value in changed.items() if value is not None}
    spec = {**item["spec"], **patch.get("spec", {})}
    return {**item, "metadata": metadata, "spec": {"taints": spec["taints"] or []}}


def test_vars_carry_what_a_kubelet_may_set_itself() -> None:
    assert node_settings.kubelet_vars({"node": SETTINGS, "vars": {"port": "1"}}) == {
        "kubelet_node_labels": "tier=web",  # a kubelet with a label of kubernetes.io does not start
        "kubelet_register_with_taints": "spot=true:NoSchedule,cni=:NoExecute",
    }
    assert not node_settings.kubelet_vars({"vars": {"port": "1"}})


@pytest.mark.parametrize(
    ("label", "is_sent"),
    [("node.kubernetes.io/x", True), ("a.node.kubernetes.io/x", True), ("x.k8s.io/y", False), ("mine.io/y", True)],
)
def test_labels_of_reserved_domains_are_left_to_the_operator(label: str, is_sent: bool) -> None:
    assert bool(node_settings.kubelet_vars({"node": {"labels": {label: "1"}}})) is is_sent


def test_a_new_node_gets_everything_once() -> None:
    first = patched(node(), node_settings.node_patch(node(), SETTINGS, {"id": "i"}))
    assert first["metadata"]["labels"] == {"tier": "web", "kubernetes.io/role": "web", "id": "i"}
    assert first["metadata"]["annotations"]["note"] == "x"
    assert first["spec"]["taints"] == [SPOT, CNI]
    assert not node_settings.node_patch(first, SETTINGS, {"id": "i"})


def test_a_removed_startup_taint_does_not_come_back() -> None:
    first = patched(node(), node_settings.node_patch(node(), SETTINGS))
    cleared = {**first, "spec": {"taints": [SPOT]}, "status": READY}
    assert not node_settings.node_patch(cleared, SETTINGS)
    assert "spec" not in node_settings.node_patch(node(taints=[SPOT], status=READY), SETTINGS)


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Ready", "status": "Unknown"}]}])
def test_a_removed_startup_taint_does_not_come_back_to_a_node_that_is_not_ready(status: Object) -> None:
    """Not yet, as when the network's agent is faster than the kubelet's report; or not again, as after an outage: there the
    taint would evict all pods, and nobody would remove it."""
    first = patched(node(), node_settings.node_patch(node(), SETTINGS))
    cleared = {**first, "spec": {"taints": [SPOT]}, "status": status}
    assert not node_settings.node_patch(cleared, SETTINGS)


def test_startup_taints_come_too_late_for_a_node_that_was_ready() -> None:
    first = patched(node(status=READY), node_settings.node_patch(node(status=READY), SETTINGS))
    assert first["spec"]["taints"] == [SPOT]
    assert not node_settings.node_patch({**first, "status": {}}, SETTINGS)


def test_what_a_pool_no_longer_names_goes_and_what_others_wrote_stays() -> None:
    theirs = {"key": "maintenance", "effect": "NoSchedule"}
    before = node(taints=[theirs], labels={"zone": "a"})
    first = patched(before, node_settings.node_patch(before, SETTINGS))
    first["status"] = READY
    last = patched(first, node_settings.node_patch(first, {"labels": {"tier": "db"}}))
    assert last["metadata"]["labels"] == {"zone": "a", "tier": "db"}
    assert "note" not in last["metadata"]["annotations"]
    assert last["spec"]["taints"] == [theirs, CNI]  # the start-up taint belongs to the program that removes it
    assert json.loads(last["metadata"]["annotations"]["nstance.dev/node-settings"]) == {"labels": ["tier"]}


def test_annotations_of_a_machine_are_written_and_never_removed() -> None:
    """Cluster API writes the same ones where it runs. A pool's own value wins."""
    named = {"machine": "m", "note": "y"}
    first = patched(node(), node_settings.node_patch(node(), SETTINGS, annotations=named))
    assert first["metadata"]["annotations"].items() >= {"machine": "m", "note": "x"}.items()
    assert not node_settings.node_patch(first, SETTINGS, annotations=named)
    last = patched(first, node_settings.node_patch(first, {}))
    assert last["metadata"]["annotations"] == {"machine": "m"}
    taken_over = patched(first, node_settings.node_patch(first, {}, annotations=named))
    assert taken_over["metadata"]["annotations"] == {"machine": "m", "note": "y"}


def test_cluster_autoscaler_learns_what_a_new_node_will_have() -> None:
    labels, taints = (f"capacity.cluster-autoscaler.kubernetes.io/{each}" for each in ("labels", "taints"))
    pool: Object = {"metadata": {"annotations": {labels: "mine=1"}}}
    hints = node_settings.autoscaler_hints(pool, SETTINGS)
    assert hints == {taints: "spot=true:NoSchedule", "nstance.dev/autoscaler-hints": "taints"}  # a person's labels stay
    pool["metadata"]["annotations"] |= hints
    assert not node_settings.autoscaler_hints(pool, SETTINGS)
    assert node_settings.autoscaler_hints(pool, {}) == {taints: None, "nstance.dev/autoscaler-hints": None}
    assert not node_settings.autoscaler_hints({"metadata": {}}, {})


@pytest.mark.parametrize(
    ("replicas", "limit", "current", "wanted"),
    [(5, None, 0, 5), (5, 3, 0, 3), (2, 3, 0, 2), (5, 3, 4, 4), (3, 3, 4, 3), (2, 3, 4, 2)],
)
def test_a_limit_stops_growth_and_never_shrinks(replicas: int, limit: int | None, current: int, wanted: int) -> None:
    bound = Limit(limit, "") if limit is not None else None
    assert pools.wanted_replicas({"spec": {"replicas": replicas}}, bound, {"a": current}) == wanted


def test_a_pool_at_its_limit_says_so() -> None:
    reachable = {"type": "ShardReachable", "status": "True", "reason": "Connected"}
    group = {"spec": {"shard": "a"}, "status": {"replicas": 3, "readyReplicas": 3, "conditions": [reachable]}}
    pool: Object = {"metadata": {"name": "p"}, "spec": {}}
    limit = Limit(3, "spec.limits.instances allows 3")
    _, ready = pool_status.summarize(pool, {"spec": {"replicas": 5}}, [group], limit=limit)
    assert (ready.holds, ready.reason) == (False, "LimitReached")
    assert ready.message == "3 ready; 5 wanted, spec.limits.instances allows 3"
    _, ready = pool_status.summarize(pool, {"spec": {"replicas": 3}}, [group], limit=limit)
    assert ready.holds
