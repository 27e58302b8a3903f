"""PodDisruptionBudgets: how many pods may be disturbed, and whether this one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from nstance.kube.api import selectors, status, values
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


def healthy(pod: Object) -> bool:
    conditions = values.at(pod, ("status", "conditions")) or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def matching(budget: Object, pods: Sequence[Object]) -> list[Object]:
    matches = selectors.of_object(values.at(budget, ("spec", "selector")))
    return [pod for pod in pods if matches(pod["metadata"].get("labels") or {})]


def counted(budget: Object, pods: Sequence[Object], *, replicas: Callable[[Object], int | None]) -> Object:
    """The budget's status. `replicas` gives the size of a pod's controller, None where it has none that is known."""
    spec = budget.get("spec") or {}
    covered = [pod for pod in matching(budget, pods) if not _over(pod)]
    able = sum(map(healthy, covered))
    expected = _expected(covered, replicas)
    if "maxUnavailable" in spec:
        desired = max(0, expected - _number(spec["maxUnavailable"], expected))
    elif isinstance(spec.get("minAvailable"), int):
        desired, expected = spec["minAvailable"], len(covered)
    else:
        desired = _number(spec.get("minAvailable", 1), expected)
    return {
        "observedGeneration": budget["metadata"].get("generation", 1),
        "disruptionsAllowed": max(0, able - desired) if expected > 0 else 0,
        "currentHealthy": able,
        "desiredHealthy": desired,
        "expectedPods": expected,
    }


def refusal(pod: Object, budgets: Sequence[Object]) -> status.ApiError | None:
    """Why this pod may not be evicted now; the budgets are those of its namespace with their status up to date."""
    if _over(pod) or values.at(pod, ("status", "phase")) == "Pending" or pod["metadata"].get("deletionTimestamp"):
        return None
    over_it = [each for each in budgets if matching(each, [pod])]
    if not over_it:
        return None
    if len(over_it) > 1:
        text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        return status.ApiError(500, "InternalError", text)
    budget, count = over_it[0], over_it[0].get("status") or {}
    if not healthy(pod):
        always = values.at(budget, ("spec", "unhealthyPodEvictionPolicy")) == "AlwaysAllow"
        if always or count.get("currentHealthy", 0) >= count.get("desiredHealthy", 0) > 0:
            return None
    if count.get("disruptionsAllowed", 0) > 0:
        return None
    name, needs, has = budget["metadata"]["name"], count.get("desiredHealthy", 0), count.get("currentHealthy", 0)
    text = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
    return status.too_many(REFUSAL, [Cause("", text, "DisruptionBudget")])


def _over(pod: Object) -> bool:
    return values.at(pod, ("status", "phase")) in ("Succeeded", "Failed")


def _expected(pods: Sequence[Object], replicas: Callable[[Object], int | None]) -> int:
    """The sum of what the pods' controllers want; a pod without one counts for itself."""
    sizes: dict[str, int] = {}
    for pod in pods:
        owner = next((each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        size = None if owner is None else replicas(pod)
        if owner is None or size is None:
            sizes[pod["metadata"]["uid"]] = 1
        else:
            sizes[owner["uid"]] = size
    return sum(sizes.values())


def _number(value: Any, whole: int) -> int:
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
        return math.ceil(int(value[:-1]) * whole / 100)
    return int(value) if isinstance(value, int) or str(value).isdecimal() else 0
