"""What goes with its owner, what stays, and in which order."""

import pytest

from nstance.kube.api import status
from nstance.kube.api.cascade import Propagation
from nstance.kube.api.server import Target
from unit.kube.kube_api_world import World, owned_by

POOLS, MACHINES = "machinepools.cluster.x-k8s.io", "machines.cluster.x-k8s.io"


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_owned_goes_with_its_owner_down_to_the_last(world: World) -> None:
    pool = world.create(POOLS, "pool")
    machine = world.create(MACHINES, "machine", metadata=owned_by(pool))
    world.create("configmaps", "config", metadata=owned_by(machine))
    world.create("configmaps", "free")
    world.delete(POOLS, "pool")
    assert (world.names(MACHINES), world.names("configmaps")) == ([], ["free"])


def test_an_owner_of_the_same_name_is_another_owner(world: World) -> None:
    """The uid counts: what belonged to the first one does not belong to the second."""
    first = world.create(POOLS, "pool")
    world.delete(POOLS, "pool")
    world.create(POOLS, "pool")
    world.create(MACHINES, "late", metadata=owned_by(first))
    assert world.names(MACHINES) == []


def test_an_owner_of_an_unknown_kind_is_never_missed(world: World) -> None:
    stranger = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "uid": "u"}}
    world.create(MACHINES, "machine", metadata=owned_by(stranger))
    assert world.names(MACHINES) == ["machine"]


def test_a_second_owner_keeps_it(world: World) -> None:
    one, two = world.create(POOLS, "one"), world.create(POOLS, "two")
    both = owned_by(one)["ownerReferences"] + owned_by(two)["ownerReferences"]
    world.create(MACHINES, "machine", metadata={"ownerReferences": both})
    world.delete(POOLS, "one")
    left = world.get(MACHINES, "machine")["metadata"]["ownerReferences"]
    assert [each["name"] for each in left] == ["two"]
    world.delete(POOLS, "two")
    assert world.names(MACHINES) == []


def test_finalizers_of_the_owned_delay_only_them_in_the_background(world: World) -> None:
    pool = world.create(POOLS, "pool")
    world.create(MACHINES, "machine", metadata={**owned_by(pool), "finalizers": ["x/y"]})
    assert world.delete(POOLS, "pool")
    assert world.get(MACHINES, "machine")["metadata"]["deletionTimestamp"]


def test_in_the_foreground_the_owner_goes_last(world: World) -> None:
    pool = world.create(POOLS, "pool")
    machine = world.create(MACHINES, "machine", metadata={**owned_by(pool, block=True), "finalizers": ["x/y"]})
    world.create("configmaps", "config", metadata=owned_by(machine, block=True))
    assert not world.delete(POOLS, "pool", propagation=Propagation.FOREGROUND)
    assert world.get(POOLS, "pool")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert world.names("configmaps") == [], "it is deleted from the leaves up"
    world.patch(MACHINES, "machine", {"metadata": {"finalizers": None}})
    assert (world.names(MACHINES), world.names(POOLS)) == ([], [])


def test_orphans_stay_and_know_no_owner(world: World) -> None:
    pool = world.create(POOLS, "pool")
    world.create(MACHINES, "machine", metadata=owned_by(pool))
    world.delete(POOLS, "pool", propagation=Propagation.ORPHAN)
    assert world.get(MACHINES, "machine")["metadata"]["ownerReferences"] == []


DEFINITION = {
    "group": "example.com",
    "scope": "Namespaced",
    "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
    "versions": [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {
                "status": {},
                "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
            },
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "required": ["size"],
                            "properties": {
                                "size": {"type": "integer", "minimum": 0},
                                "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                            },
                        },
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            },
        },
        {"name": "v1alpha1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}},
    ],
}
WIDGETS = "widgets.example.com"


def test_a_definition_is_served_at_once_and_takes_its_objects_along(world: World) -> None:
    made = world.create("customresourcedefinitions.apiextensions.k8s.io", WIDGETS, spec=DEFINITION)
    assert {each["type"] for each in made["status"]["conditions"]} == {"Established", "NamesAccepted"}
    widget = world.create(WIDGETS, "a", spec={"size": 1, "unknown": True})
    assert widget["spec"] == {"size": 1, "color": "red"}, "unknown fields are dropped, defaults filled in"
    older = world.api.get(Target(world.api.served("example.com", "v1alpha1", "widgets"), "a", "default"))
    assert older["apiVersion"] == "example.com/v1alpha1"
    world.patch(WIDGETS, "a", {"spec": {"replicas": 3}}, subresource="scale")
    assert world.get(WIDGETS, "a")["spec"]["size"] == 3
    with pytest.raises(status.ApiError) as caught:
        world.create(WIDGETS, "b", spec={"size": -1, "color": "green"})
    assert [each["field"] for each in caught.value.details["causes"]] == ["spec.size", "spec.color"]
    world.delete("customresourcedefinitions.apiextensions.k8s.io", WIDGETS)
    with pytest.raises(status.ApiError, match="could not find the requested resource"):
        world.api.served("example.com", "v1", "widgets")
    assert world.api.store.all(WIDGETS) == []


def test_a_definition_waits_for_the_finalizers_of_its_objects(world: World) -> None:
    crds = "customresourcedefinitions.apiextensions.k8s.io"
    world.create(crds, WIDGETS, spec=DEFINITION)
    world.create(WIDGETS, "a", spec={"size": 1}, metadata={"finalizers": ["x/y"]})
    assert not world.delete(crds, WIDGETS)
    world.patch(WIDGETS, "a", {"metadata": {"finalizers": None}})
    assert WIDGETS not in world.names(crds)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scope": "Everywhere"}, "spec.scope"),
        ({"group": "other.com"}, "metadata.name"),
        ({"versions": []}, "spec.versions"),
        ({"names": {"plural": "widgets"}}, "spec.names.kind"),
        ({"versions": [{"name": "v1", "served": True, "storage": True}]}, "spec.versions[0].schema.openAPIV3Schema"),
        ({"versions": [{**DEFINITION["versions"][0], "storage": False}]}, "spec.versions"),
    ],
)
def test_unusable_definitions_are_refused(world: World, change: dict[str, object], field: str) -> None:
    with pytest.raises(status.ApiError) as caught:
        world.create("customresourcedefinitions.apiextensions.k8s.io", WIDGETS, spec={**DEFINITION, **change})
    assert field in [each["field"] for each in caught.value.details["causes"]]
