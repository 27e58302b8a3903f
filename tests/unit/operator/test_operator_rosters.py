"""Which node is which VM, and which VMs a pool lists: Cluster API deletes the Nodes of those that it does not."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.kube.port import Object
from nstance.operator.controllers import pools
from nstance.operator.controllers.nodes import INSTANCE_LABEL, Nodes, is_node_of
from nstance.operator.controllers.rosters import Rosters
from nstance.v1 import operator_pb2 as pb


class NodeMirror:
    """Tells of nodes as a mirror does."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.synced = asyncio.Event()
        self.synced.set()
        self._callbacks: list[Callable[[Object | None, Object | None], None]] = []

    def listen(self, callback: Callable[[Object | None, Object | None], None]) -> None:
        self._callbacks.append(callback)

    def put(self, name: str, new: Object | None) -> None:
        old = self.objects.pop(("", name), None)
        if new is not None:
            self.objects["", name] = new
        for callback in self._callbacks:
            callback(old, new)


def node(name: str, *, vm: str = "", instance: str = "", **status: object) -> Object:
    labels = {INSTANCE_LABEL: instance} if instance else {}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"providerID": vm} if vm else {},
        "status": status,
    }


def nodes_of(mirror: NodeMirror) -> Nodes:
    return Nodes(cast(Any, None), cast(Any, mirror))


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (None, "i-1"),
        (node("web-1"), "i-1"),
        (node("web-1", vm="aws:///zone/i-1"), "aws:///zone/i-1"),
        (node("ip-10-0-0-1", instance="web-1", vm="other://x"), "other://x"),
        (node("ip-10-0-0-1", vm="aws:///zone/i-1"), "aws:///zone/i-1"),
        (node("ip-10-0-0-1", vm="aws:///zone/i-2"), "i-1"),
    ],
)
def test_a_vm_is_named_as_its_node_names_it(found: Object | None, named: str) -> None:
    mirror = NodeMirror()
    nodes = nodes_of(mirror)
    if found is not None:
        mirror.put(found["metadata"]["name"], found)
    assert nodes.provider_id_of("web-1", "i-1") == named


NAMES = st.sampled_from(["a", "b", "c"])
VMS = st.sampled_from(["", "a", "x", "s:///z/x", "s:///y/x", "t://b"])
STEPS = st.lists(st.tuples(NAMES, st.none() | st.tuples(VMS, st.sampled_from(["", "a", "b"]))), max_size=12)


@given(steps=STEPS, instance=NAMES, vm=VMS)
def test_a_node_is_found_as_if_all_were_looked_at(
    steps: list[tuple[str, tuple[str, str] | None]], instance: str, vm: str
) -> None:
    mirror = NodeMirror()
    nodes = nodes_of(mirror)
    for name, new in steps:
        mirror.put(name, None if new is None else node(name, vm=new[0], instance=new[1]))
    possible = [each for each in mirror.objects.values() if is_node_of(each, instance, vm)]
    found = nodes.find(instance, vm)
    assert found in possible if possible else found is None


def event(state: str = "running", *, vm_gone: bool = False, on_demand: bool = False) -> pb.InstanceEvent:
    return pb.InstanceEvent(
        instance_id="web-1", provider_id="i-1", group="web", state=state, vm_gone=vm_gone, on_demand=on_demand
    )


@pytest.mark.parametrize(
    ("last", "listed"),
    [
        (event("draining"), ["i-1"]),
        (event("deleting"), ["i-1"]),
        (event("running"), ["i-1"]),  # the group's status was heard before the instance's
        (event("draining", vm_gone=True), []),
        (event("deleted"), []),
        (event("failed"), []),
    ],
)
def test_a_vm_is_listed_until_it_is_gone(last: pb.InstanceEvent, listed: list[str]) -> None:
    """It does not count from the moment on that it drains; a Node deleted then would be deleted under its pods."""
    changes: list[tuple[str, str]] = []
    rosters = Rosters(nodes_of(NodeMirror()), lambda *key: changes.append(key))
    rosters.update("a", event())
    assert rosters.provider_ids("a", "web", ["i-1", "i-2"]) == ["i-1", "i-2"]
    rosters.update("a", last)
    assert rosters.provider_ids("a", "web", []) == listed
    assert changes == [("a", "web")] * (1 if listed else 2)


def test_instances_on_demand_are_not_the_pools() -> None:
    rosters = Rosters(nodes_of(NodeMirror()), lambda *key: None)
    rosters.update("a", event(on_demand=True))
    assert rosters.provider_ids("a", "web", []) == []


def test_a_shard_that_was_removed_is_forgotten() -> None:
    rosters = Rosters(nodes_of(NodeMirror()), lambda *key: None)
    rosters.update("a", event())
    rosters.update("b", event())
    rosters.remove_shard("a")
    assert (rosters.provider_ids("a", "web", []), rosters.provider_ids("b", "web", [])) == ([], ["i-1"])


def test_nothing_is_listed_before_the_nodes_were_read() -> None:
    mirror = NodeMirror()
    mirror.synced.clear()
    rosters = Rosters(nodes_of(mirror), lambda *key: None)
    rosters.update("a", event())
    assert rosters.provider_ids("a", "web", ["i-1"]) is None


def test_a_new_node_is_a_change_and_a_heartbeat_is_not() -> None:
    mirror, changes = NodeMirror(), list[tuple[str, str]]()
    rosters = Rosters(nodes_of(mirror), lambda *key: changes.append(key))
    rosters.update("a", event())
    changes.clear()
    mirror.put("ip-10-0-0-1", node("ip-10-0-0-1", vm="aws:///zone/i-1"))
    assert changes == [("a", "web")]
    assert rosters.provider_ids("a", "web", ["i-1"]) == ["aws:///zone/i-1"]
    mirror.put("ip-10-0-0-1", node("ip-10-0-0-1", vm="aws:///zone/i-1", phase="Running"))
    assert changes == [("a", "web")]
    mirror.put("ip-10-0-0-1", None)
    assert changes == [("a", "web")] * 2


REACHABLE = {"conditions": [{"type": "ShardReachable", "status": "True"}]}


@pytest.mark.parametrize(
    ("before", "group", "ready"),
    [
        ({}, {"replicas": 0, "readyReplicas": 0, **REACHABLE}, True),
        ({}, {"replicas": 0, "readyReplicas": 0}, False),  # nobody has answered yet
        ({"initialization": {"provisioned": True}}, {"replicas": 0, "readyReplicas": 0}, True),
    ],
)
def test_a_pool_is_ready_for_cluster_api_once_and_for_all(before: Object, group: Object, ready: bool) -> None:
    """While `ready` is false Cluster API follows neither replicas nor nodes; whether all run, the condition says."""
    pool = {"metadata": {"name": "web"}, "spec": {"group": "web", "shards": ["a"]}, "status": before}
    machine_pool = {"metadata": {"name": "web"}, "spec": {"replicas": 3}}
    parts = [{"metadata": {"name": "web--a"}, "spec": {"shard": "a"}, "status": group}]
    status, condition = pools.summarize(pool, machine_pool, parts)
    assert (status["ready"], status.get("initialization")) == (ready, {"provisioned": True} if ready else None)
    assert condition.holds is False
