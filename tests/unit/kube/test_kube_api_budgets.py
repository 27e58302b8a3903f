"""Eviction, as a drain meets it."""

from typing import Any

import pytest

from nstance.kube.api import status
from unit.kube.kube_api_world import World, owned_by

BUDGETS = "poddisruptionbudgets.policy"


def pods(world: World, count: int, *, ready: int | None = None, **metadata: Any) -> None:
    for number in range(count):
        world.create("pods", f"web-{number}", metadata={"labels": {"app": "web"}, **metadata})
        state = "True" if ready is None or number < ready else "False"
        body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": state}]}}
        world.patch("pods", f"web-{number}", body, subresource="status")


def budget(world: World, **spec: Any) -> dict[str, Any]:
    world.create(BUDGETS, "guard", spec={"selector": {"matchLabels": {"app": "web"}}, **spec})
    return world.get(BUDGETS, "guard")["status"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("count", "ready", "spec", "allowed"),
    [
        (3, 3, {"minAvailable": 2}, 1),
        (3, 2, {"minAvailable": 2}, 0),
        (3, 3, {"minAvailable": "50%"}, 1),
        (3, 3, {"maxUnavailable": 1}, 1),
        (3, 2, {"maxUnavailable": 1}, 0),
        (4, 4, {"maxUnavailable": "50%"}, 2),
        (3, 3, {"minAvailable": 0}, 3),
        (0, 0, {"minAvailable": 0}, 0),
        (3, 3, {"maxUnavailable": 0}, 0),
    ],
)
def test_how_many_may_be_disturbed(count: int, ready: int, spec: dict[str, Any], allowed: int) -> None:
    world = World()
    pods(world, count, ready=ready)
    assert budget(world, **spec)["disruptionsAllowed"] == allowed


def test_a_controller_says_how_many_there_should_be() -> None:
    world = World()
    controller = world.create("replicasets.apps", "web", spec={"replicas": 4})
    pods(world, 3, **owned_by(controller, controller=True))
    assert budget(world, maxUnavailable=1) == {
        "observedGeneration": 1,
        "disruptionsAllowed": 0,
        "currentHealthy": 3,
        "desiredHealthy": 3,
        "expectedPods": 4,
    }


def test_a_budget_refuses_with_its_cause_until_it_is_released() -> None:
    world = World()
    pods(world, 2)
    budget(world, minAvailable=1)
    world.api.evict("web-0", namespace="default")
    with pytest.raises(status.ApiError) as caught:
        world.api.evict("web-1", namespace="default")
    refused = caught.value.document()
    assert (refused["code"], refused["reason"]) == (429, "TooManyRequests")
    assert refused["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget guard needs 1 healthy pods and has 1 currently",
        }
    ]
    world.delete(BUDGETS, "guard")
    world.api.evict("web-1", namespace="default")
    assert world.names("pods") == []


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_pods_that_do_not_run_are_not_guarded(phase: str) -> None:
    world = World()
    pods(world, 1)
    budget(world, minAvailable=1)
    world.patch("pods", "web-0", {"status": {"phase": phase}}, subresource="status")
    world.api.evict("web-0", namespace="default")


def test_a_sick_pod_goes_only_while_the_healthy_ones_suffice() -> None:
    world = World()
    pods(world, 3, ready=2)
    budget(world, minAvailable=2)
    world.api.evict("web-2", namespace="default")
    world = World()
    pods(world, 3, ready=1)
    budget(world, minAvailable=2)
    with pytest.raises(status.ApiError, match="disruption budget"):
        world.api.evict("web-2", namespace="default")
    world.patch(BUDGETS, "guard", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    world.api.evict("web-2", namespace="default")


def test_two_budgets_over_one_pod_are_an_error_of_the_setup() -> None:
    world = World()
    pods(world, 2)
    budget(world, minAvailable=0)
    world.create(BUDGETS, "second", spec={"selector": {}})
    with pytest.raises(status.ApiError, match="more than one PodDisruptionBudget"):
        world.api.evict("web-0", namespace="default")


def test_eviction_of_another_pod_by_that_name_is_a_conflict() -> None:
    world = World()
    pods(world, 1)
    with pytest.raises(status.ApiError) as caught:
        world.api.evict("web-0", namespace="default", uid="of-the-first-one")
    assert caught.value.code == 409
    with pytest.raises(status.ApiError) as caught:
        world.api.evict("nobody", namespace="default")
    assert caught.value.code == 404
