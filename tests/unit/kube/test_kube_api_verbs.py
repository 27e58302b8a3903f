"""What an API server promises about writes, as stock clients rely on it."""

from typing import Any

import pytest

from nstance.kube.api import status
from nstance.kube.api.patches import Patch
from nstance.kube.api.server import Options, Target
from unit.kube.kube_api_world import World

POOLS = "machinepools.cluster.x-k8s.io"


@pytest.fixture
def world() -> World:
    return World()


def refused(code: int, reason: str = "", text: str = "") -> Any:
    def fits(error: status.ApiError) -> bool:
        return error.code == code and reason in error.reason and text in error.message

    return pytest.raises(status.ApiError, check=fits)


def test_create_fills_in_what_the_server_owns(world: World) -> None:
    made = world.create(
        POOLS, "a", spec={"replicas": 1}, status={"replicas": 9}, metadata={"uid": "mine", "generation": 7}
    )
    meta = made["metadata"]
    assert made["apiVersion"] == "cluster.x-k8s.io/v1beta2"
    assert meta["namespace"] == "default"
    assert meta["uid"] != "mine"
    assert meta["generation"] == 1
    assert meta["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert "status" not in made, "the status belongs to the subresource"


def test_one_version_counter_for_everything(world: World) -> None:
    first = int(world.create("nodes", "a")["metadata"]["resourceVersion"])
    second = int(world.create("configmaps", "a")["metadata"]["resourceVersion"])
    world.delete("nodes", "a")
    assert (second, world.api.store.version) == (first + 1, first + 2)


def test_generated_names_differ_and_are_names(world: World) -> None:
    served = world.served("pods")
    made = {
        world.api.create(served, {"metadata": {"generateName": "web-"}}, namespace="default")["metadata"]["name"]
        for _ in range(20)
    }
    assert len(made) == 20
    assert all(name.startswith("web-") and len(name) == 9 for name in made)


@pytest.mark.parametrize(
    ("resource", "body", "code", "text"),
    [
        pytest.param("nodes", {"metadata": {"name": "Bad_Name"}}, 422, "metadata.name: Invalid value", id="name"),
        pytest.param("nodes", {"metadata": {}}, 422, "name or generateName is required", id="no name"),
        pytest.param(
            "nodes", {"metadata": {"name": 5}}, 400, "metadata.name: expected a string", id="name is a number"
        ),
        pytest.param("nodes", {"metadata": []}, 400, "metadata: expected an object", id="metadata is a list"),
        pytest.param("nodes", [], 400, "expected an object of kind Node", id="no object"),
        pytest.param("nodes", {"kind": "Pod", "metadata": {"name": "a"}}, 400, "found 'Pod'", id="wrong kind"),
        pytest.param(
            "nodes", {"apiVersion": "v2", "metadata": {"name": "a"}}, 400, "API version in the data (v2)", id="version"
        ),
        pytest.param(
            "nodes", {"metadata": {"name": "a", "labels": {"a b": "c"}}}, 422, "metadata.labels", id="label key"
        ),
        pytest.param(
            "nodes", {"metadata": {"name": "a", "labels": {"a": "b/c"}}}, 422, "metadata.labels", id="label value"
        ),
        pytest.param(
            "nodes", {"metadata": {"name": "a", "labels": {"a": 1}}}, 400, "a map of strings", id="label type"
        ),
        pytest.param("nodes", {"metadata": {"name": "a", "finalizers": ["x y"]}}, 422, "finalizers", id="finalizer"),
        pytest.param(
            "nodes",
            {"metadata": {"name": "a", "ownerReferences": [{"name": "b"}]}},
            422,
            "[0].uid: Required",
            id="owner",
        ),
        pytest.param(
            "nodes", {"metadata": {"name": "a", "resourceVersion": "1"}}, 400, "should not be set", id="version set"
        ),
        pytest.param(
            "pods", {"metadata": {"name": "a", "namespace": "b"}}, 400, "does not match", id="other namespace"
        ),
        pytest.param("secrets", {"metadata": {"name": "a"}, "data": {"k": "%"}}, 422, "base64", id="secret data"),
    ],
)
def test_bad_objects_are_refused(world: World, resource: str, body: object, code: int, text: str) -> None:
    served = world.served(resource)
    before = world.api.store.version
    with refused(code, text=text):
        world.api.create(served, body, namespace="default" if served.resource.namespaced else "")
    assert world.api.store.version == before


def test_a_status_names_the_object_and_every_fault(world: World) -> None:
    with pytest.raises(status.ApiError) as caught:
        world.create("nodes", "Bad", metadata={"labels": {"a b": "c"}})
    document = caught.value.document()
    assert document["status"] == "Failure"
    assert document["reason"] == "Invalid"
    assert document["details"]["kind"] == "Node"
    assert [each["field"] for each in document["details"]["causes"]] == ["metadata.name", "metadata.labels"]


def test_namespaces_must_exist_and_live(world: World) -> None:
    with refused(404, text='namespaces "nowhere" not found'):
        world.api.create(world.served("pods"), {"metadata": {"name": "a"}}, namespace="nowhere")
    world.create("namespaces", "b")
    pod = {"metadata": {"name": "a", "finalizers": ["x/y"]}}
    world.api.create(world.served("pods"), pod, namespace="b")
    world.delete("namespaces", "b")
    assert world.get("namespaces", "b")["status"]["phase"] == "Terminating"
    with refused(403, text="being terminated"):
        world.api.create(world.served("pods"), {"metadata": {"name": "c"}}, namespace="b")
    world.api.patch(Target(world.served("pods"), "a", "b"), {"metadata": {"finalizers": None}}, how=Patch.MERGE)
    assert "b" not in world.names("namespaces")
    with refused(403):
        world.delete("namespaces", "default")


def test_stale_writes_conflict(world: World) -> None:
    read = world.create(POOLS, "a", spec={"replicas": 1})
    world.patch(POOLS, "a", {"spec": {"replicas": 2}})
    with refused(409, "Conflict", "the object has been modified"):
        world.api.replace(world.target(POOLS, "a"), read)
    stale = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}, "spec": {"replicas": 3}}
    with refused(409, "Conflict"):
        world.patch(POOLS, "a", stale)
    with refused(422, text="must be specified for an update"):
        world.api.replace(world.target(POOLS, "a"), {"metadata": {"name": "a"}})
    with refused(409, "AlreadyExists"):
        world.create(POOLS, "a")


def test_generation_counts_only_changes_of_the_spec(world: World) -> None:
    def generation(body: object, **options: str) -> int:
        return int(world.patch(POOLS, "a", body, **options)["metadata"]["generation"])

    world.create(POOLS, "a", spec={"replicas": 1})
    assert generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert generation({"status": {"replicas": 1}}, subresource="status") == 1
    assert generation({"spec": {"replicas": 2}}) == 2
    assert generation({"spec": {"replicas": 2}}) == 2
    world.create("nodes", "n")
    assert "generation" not in world.get("nodes", "n")["metadata"]


def test_a_write_that_changes_nothing_is_no_change(world: World) -> None:
    before = world.create(POOLS, "a", spec={"replicas": 1})
    assert world.patch(POOLS, "a", {"spec": {"replicas": 1}}) == before
    assert world.api.store.version == int(before["metadata"]["resourceVersion"])


def test_status_and_object_do_not_touch_each_other(world: World) -> None:
    world.create(POOLS, "a", spec={"replicas": 1})
    changed = world.patch(POOLS, "a", {"spec": {"replicas": 5}, "status": {"replicas": 1}}, subresource="status")
    assert (changed["spec"], changed["status"]) == ({"replicas": 1}, {"replicas": 1})
    changed = world.patch(POOLS, "a", {"spec": {"replicas": 5}, "status": {"replicas": 7}})
    assert (changed["spec"], changed["status"]) == ({"replicas": 5}, {"replicas": 1})
    world.create("configmaps", "c")
    with refused(404):
        world.patch("configmaps", "c", {"status": {}}, subresource="status")


def test_scale(world: World) -> None:
    world.create(POOLS, "a", spec={"replicas": 1})
    world.patch(POOLS, "a", {"status": {"replicas": 1, "selector": "x=y"}}, subresource="status")
    scale = world.api.get(world.target(POOLS, "a", "scale"))
    assert scale["kind"] == "Scale"
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, {"replicas": 1, "selector": "x=y"})
    world.patch(POOLS, "a", {"spec": {"replicas": 6}}, subresource="scale")
    assert world.get(POOLS, "a")["spec"]["replicas"] == 6
    with refused(409):
        world.api.replace(world.target(POOLS, "a", "scale"), scale)
    with refused(422, text="spec.replicas"):
        world.patch(POOLS, "a", {"spec": {"replicas": -1}}, subresource="scale")
    world.create("configmaps", "c")
    with refused(404):
        world.patch("configmaps", "c", {"spec": {"replicas": 1}}, subresource="scale")


def test_finalizers_hold_a_deleted_object(world: World) -> None:
    world.create(POOLS, "a", metadata={"finalizers": ["x/y"]}, spec={})
    assert not world.delete(POOLS, "a")
    assert not world.delete(POOLS, "a"), "asking twice changes nothing"
    assert world.get(POOLS, "a")["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
    with refused(422, text="no new finalizers"):
        world.patch(POOLS, "a", {"metadata": {"finalizers": ["x/y", "x/z"]}})
    world.patch(POOLS, "a", {"metadata": {"finalizers": []}})
    assert world.names(POOLS) == []
    with refused(404, text='machinepools.cluster.x-k8s.io "a" not found'):
        world.get(POOLS, "a")


def test_deletion_may_be_conditional(world: World) -> None:
    made = world.create("pods", "a")
    with refused(409, text="UID in precondition"):
        world.delete("pods", "a", uid="another")
    with refused(409, text="ResourceVersion in precondition"):
        world.delete("pods", "a", version="1")
    assert world.delete("pods", "a", uid=made["metadata"]["uid"], version=made["metadata"]["resourceVersion"])


def test_dry_run_changes_nothing(world: World) -> None:
    before = world.api.store.version
    made = world.api.create(world.served("nodes"), {"metadata": {"name": "a"}}, options=Options(dry_run=True))
    assert made["metadata"]["uid"]
    assert world.api.store.version == before
    world.create("nodes", "b")
    world.delete("nodes", "b", dry_run=True)
    world.patch("nodes", "b", {"spec": {"unschedulable": True}}, options=Options(dry_run=True))
    assert world.get("nodes", "b").get("spec") is None


def test_apply_makes_and_merges(world: World) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    by = {"how": Patch.APPLY, "options": Options(manager="tests")}
    world.patch("configmaps", "a", body, **by)
    world.patch("configmaps", "a", {**body, "data": {"y": "2"}}, **by)
    assert world.get("configmaps", "a")["data"] == {"x": "1", "y": "2"}
    with refused(400, text="fieldManager is required"):
        world.patch("configmaps", "a", body, how=Patch.APPLY)


def test_secrets_may_be_written_as_text(world: World) -> None:
    made = world.create("secrets", "a", stringData={"k": "v"})
    assert (made["data"], made["type"]) == ({"k": "dg=="}, "Opaque")
    assert "stringData" not in made


def test_tokens_are_well_formed_and_expire(world: World) -> None:
    import base64
    import json

    world.create("serviceaccounts", "robot")
    token, expires = world.api.token("robot", namespace="default", seconds=3600)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == "system:serviceaccount:default:robot"
    assert claims["exp"] == expires == world.clock.now + 3600
    with refused(404):
        world.api.token("nobody", namespace="default", seconds=3600)
    with refused(422, text="less than 10 minutes"):
        world.api.token("robot", namespace="default", seconds=60)
