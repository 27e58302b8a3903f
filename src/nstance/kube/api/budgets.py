"""PodDisruptionBudgets: how many pods may be evicted, and whether a given pod may."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from nstance.kube.api import selectors, status, values
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


def is_healthy(pod: Object) -> bool:
    conditions = values.at(pod, ("status", "conditions")) or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def matching(budget: Object, pods: Sequence[Object]) -> list[Object]:
    matches = selectors.label_matcher(values.at(budget, ("spec", "selector")))
    return [pod for pod in pods if matches(pod["metadata"].get("labels") or {})]


def compute_status(budget: Object, pods: Sequence[Object], *, replicas: Callable[[Object], int | None]) -> Object:
    """The budget's status. `replicas` returns the size of a pod's controller, None if unknown."""
    spec = budget.get("spec") or {}
    covered = [pod for pod in matching(budget, pods) if not _is_finished(pod)]
    healthy = sum(map(is_healthy, covered))
    expected = _expected(covered, replicas)
    if "maxUnavailable" in spec:
        desired = max(0, expected - _number(spec["maxUnavailable"], expected))
    elif isinstance(spec.get("minAvailable"), int):
        desired, expected = spec["minAvailable"], len(covered)
    else:
        desired = _number(spec.get("minAvailable", 1), expected)
    return {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "disruptionsAllowed": max(0, healthy - desired) if expected > 0 else 0,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
    }


def refusal(pod: Object, budgets: Sequence[Object]) -> status.ApiError | None:
    """Why a pod may not be evicted now. `budgets`: those of its namespace, with current status."""
    if (
        _is_finished(pod)
        or values.at(pod, ("status", "phase")) == "Pending"
        or pod["metadata"].get("deletionTimestamp")
    ):
        return None
    covering = [each for each in budgets if matching(each, [pod])]
    if not covering:
        return None
    if len(covering) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        return status.ApiError(500, "InternalError", text)
    budget, count = covering[0], covering[0].get("status") or {}
    if not is_healthy(pod):
        always_allow = values.at(budget, ("spec", "unhealthyPodEvictionPolicy")) == "AlwaysAllow"
        if always_allow or count.get("currentHealthy", 0) >= count.get("desiredHealthy", 0) > 0:
            return None
    if count.get("disruptionsAllowed", 0) > 0:
        return None
    name, needs, has = budget["metadata"]["name"], count.get("desiredHealthy", 0), count.get("currentHealthy", 0)
    text = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
    return status.too_many(REFUSAL, [Cause("", text, "DisruptionBudget")])


def _is_finished(pod: Object) -> bool:
    return values.at(pod, ("status", "phase")) in ("Succeeded", "Failed")


def _expected(pods: Sequence[Object], replicas: Callable[[Object], int | None]) -> int:
    """The sum of the sizes of the pods' controllers; a pod without a controller counts as one."""
    sizes: dict[str, int] = {}
    for pod in pods:
        owner = next((each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        size = None if owner is None else replicas(pod)
        if owner is None or size is None:
            sizes[pod["metadata"]["uid"]] = 1
        else:
            sizes[owner["uid"]] = size
    return sum(sizes.values())


def _number(value: Any, total: int) -> int:
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
        return math.ceil(int(value[:-1]) * total / 100)
    return int(value) if isinstance(value, int) or str(value).isdecimal() else 0
