"""What the controllers decide, without anything around it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.kube.port import Object
from nstance.operator.controllers import drains, importing, machines, nodes, pods, pools, resources, shard_groups
from nstance.v1 import operator_pb2 as pb

names = st.text("abc", min_size=1, max_size=3)


# ---- spreading


@pytest.mark.parametrize(
    ("replicas", "shards", "expected"),
    [
        (7, ["a", "b", "c"], {"a": 3, "b": 2, "c": 2}),
        (2, ["b", "a", "c"], {"b": 1, "a": 1, "c": 0}),
        (0, ["a", "b"], {"a": 0, "b": 0}),
        (3, ["a", "a"], {"a": 3}),
        (3, [], {}),
    ],
)
def test_replicas_are_spread(replicas: int, shards: list[str], expected: dict[str, int]) -> None:
    assert pools.spread(replicas, shards) == expected


@given(st.integers(0, 10_000), st.lists(names, min_size=1))
def test_nothing_is_lost_in_spreading(replicas: int, shards: list[str]) -> None:
    parts = list(pools.spread(replicas, shards).values())
    assert sum(parts) == replicas
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


# ---- merge patches

values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(names, values, max_size=4)


def merged(old: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(each) for key, each in value.items() if each is not None}


@given(objects, objects)
def test_a_merge_change_does_what_it_says_and_nothing_twice(old: Object, wanted: Object) -> None:
    old, wanted = without_nulls(old), without_nulls(wanted)
    after = merged(old, resources.merge_patch(old, wanted))
    assert {key: after[key] for key in wanted} == wanted
    assert {key: value for key, value in after.items() if key not in wanted} == {
        key: value for key, value in old.items() if key not in wanted
    }
    assert resources.merge_patch(after, wanted) == {}


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    def merge(old: list[Object], condition: resources.Condition, generation: int, now: float) -> list[Object]:
        item = {"metadata": {"generation": generation}, "status": {"conditions": old}}
        return resources.merge_conditions(item, [condition], now=now)

    first = merge([], resources.Condition("Ready", False, "Scaling", "1 of 2"), 1, 0.0)
    other = {"type": "Other", "status": "True"}
    again = merge([*first, other], resources.Condition("Ready", False, "Scaling", "still"), 2, 60.0)
    assert again[0] == first[0] | {"message": "still", "observedGeneration": 2}
    assert again[1] == other
    turned = merge(again, resources.Condition("Ready", True, "AllReady"), 2, 90.0)
    assert turned[0]["lastTransitionTime"] == "1970-01-01T00:01:30Z"


# ---- groups


def group(**fields: Any) -> pb.GroupStatus:
    return pb.GroupStatus(key="web", template="web", **fields)


@pytest.mark.parametrize(
    ("spec", "found", "sent"),
    [
        ({"size": 2}, group(size=2), None),
        ({"size": 3}, group(size=2, config={"drain_timeout": "1m"}), {"size": 3, "drain_timeout": "1m"}),
        ({}, group(size=2), None),
        ({"size": 0}, group(size=2), {"size": 0}),
        ({"size": 1, "template": "web"}, None, {"size": 1, "template": "web"}),
        ({"size": 2, "template": "other"}, group(size=2), {"template": "other"}),
        ({"size": 2, "template": "other"}, group(size=2, static=True), None),
        ({"size": 2, "instanceType": "l"}, group(size=2, static=True), {"instance_type": "l"}),
        ({"vars": {"a": "b"}}, group(config={"vars": {"c": "d"}}), {"vars": {"a": "b"}}),
        ({"vars": {}}, group(config={"vars": {"c": "d"}}), {}),
        ({}, group(config={"vars": {"c": "d"}}), None),
        ({"subnetPool": "p"}, group(subnet_pool="p"), None),
    ],
)
def test_what_is_sent_to_a_shard(spec: Object, found: pb.GroupStatus | None, sent: dict[str, Any] | None) -> None:
    assert shard_groups.config_to_send(spec, found) == (None if sent is None else pb.GroupConfig(**sent))


def test_what_a_static_group_cannot_change() -> None:
    spec = {"template": "other", "subnetPool": "main"}
    found = group(subnet_pool="main", static=True)
    assert shard_groups.fixed_differences(spec, found) == ["template is 'web' there and 'other' here"]
    assert shard_groups.fixed_differences(spec, group()) == []


@pytest.mark.parametrize(
    ("instance", "status", "reason", "message"),
    [
        (pb.InstanceEvent(state="running", ready=True), True, "Running", ""),
        (pb.InstanceEvent(state="running", not_ready="failing checks: up"), False, "NotReady", "failing checks: up"),
        (pb.InstanceEvent(state="running"), True, "Running", ""),  # of a server that knows no readiness
        (pb.InstanceEvent(state="starting"), False, "Starting", "the instance is starting"),
        (pb.InstanceEvent(state="draining", reason="expiry"), False, "Leaving", "expiry"),
    ],
)
def test_when_a_machine_is_ready(instance: pb.InstanceEvent, status: bool, reason: str, message: str) -> None:
    assert machines.condition(instance) == resources.Condition("Ready", status, reason, message)


def test_where_a_size_comes_from_is_shown() -> None:
    source = pb.SizeSource(kind="api", by="opr-1", at_unix_ms=1_769_860_800_000, config_size=5)
    overridden = [pb.Override(field="vars.b", value="x"), pb.Override(field="size", value="3")]
    shown = shard_groups.group_status(pb.GroupStatus(size=3, size_source=source, overrides=overridden))
    assert shown["config"]["sizeSource"] == "api by opr-1 at 2026-01-31T12:00:00Z"
    assert shown["config"]["overrides"] == ["size", "vars.b"]
    config = shard_groups.group_status(pb.GroupStatus(size_source=pb.SizeSource(kind="config")))["config"]
    assert (config["sizeSource"], config["overrides"]) == ("config", [])


def test_a_pool_without_replicas_says_no_size() -> None:
    pool = {"spec": {"group": "web", "shards": ["a"], "vars": {"x": "y"}}}
    assert pools.shard_group_specs(pool, {"spec": {}}) == {"web--a": {"group": "web", "shard": "a", "vars": {"x": "y"}}}


def test_groups_are_imported_once_and_with_all_their_shards() -> None:
    a, b = {"web": group(size=2), "old": group()}, {"web": group(size=3), "new": group()}
    found = importing.groups_to_import({"a": a, "b": b}, {"b"}, known=["old"])
    assert {name: list(shards) for name, shards in found.items()} == {"new": ["b"], "web": ["a", "b"]}


# ---- nodes


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("i-1", "aws:///us-west-2a/i-1", True),
        ("aws:///us-west-2a/i-1", "i-1", True),
        ("aws:///us-west-2a/i-1", "aws:///us-west-2a/i-1", True),
        ("aws:///us-west-2a/i-1", "aws:///us-west-2b/i-1", False),
        ("gce://project/zone/vm-1", "vm-1", True),
        ("proxmox://one/104", "proxmox://two/104", False),
        ("dev:///dev-1/tst-1", "dev:///dev-1/tst-1", True),
        ("i-1", "i-11", False),
        ("", "", False),
        ("i-1", "", False),
    ],
)
def test_provider_ids_of_one_vm(ours: str, theirs: str, same: bool) -> None:
    assert nodes.same_vm(ours, theirs) is same


@pytest.mark.parametrize(
    ("metadata", "phase", "leaves"),
    [
        ({}, "Running", True),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "Running", False),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, "Running", False),
        ({"ownerReferences": [{"kind": "DaemonSet"}]}, "Running", True),
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, "Running", True),
        ({}, "Succeeded", False),
        ({}, "Failed", False),
    ],
)
def test_which_pods_leave_a_node(metadata: Object, phase: str, leaves: bool) -> None:
    assert drains.must_evict({"metadata": metadata, "status": {"phase": phase}}) is leaves


# ---- machines and pods


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        ({"group": "web"}, "web"),
        ({"groupRef": "web"}, "web"),
        ({"groupRef": {"name": "web"}}, "web"),
        ({"group": "web", "groupRef": "other"}, "web"),
        ({"groupRef": 5}, ""),
        ({"groupRef": {"name": 5}}, ""),
        ({}, ""),
    ],
)
def test_the_group_of_a_machine(spec: Object, group: str) -> None:
    assert machines.group_of({"spec": spec}) == group


class Link:
    def __init__(self, name: str, *, synced: bool = True, on_demand: int = 0) -> None:
        self.name, self.synced = name, synced
        self.groups = {"web": group()}
        self.instances = {str(n): pb.InstanceEvent(group="web", on_demand=True) for n in range(on_demand)}


class Links:
    def __init__(self, *links: Link) -> None:
        self._links = {link.name: link for link in links}

    def names(self) -> tuple[str, ...]:
        return tuple(self._links)

    def get(self, name: str) -> Any:
        return self._links.get(name)


@pytest.mark.parametrize(
    ("links", "wanted", "chosen"),
    [
        ((Link("a", on_demand=2), Link("b", on_demand=1)), "", "b"),
        ((Link("a"), Link("b")), "", "a"),
        ((Link("a", on_demand=2), Link("b", synced=False)), "", "a"),
        ((Link("a"), Link("b", synced=False)), "b", "b"),  # it was said where: that shard is waited for
        ((Link("a"),), "c", ""),
        ((Link("a", synced=False),), "", ""),
    ],
)
def test_the_shard_of_a_new_machine(links: tuple[Link, ...], wanted: str, chosen: str) -> None:
    shard, problem = machines.choose_shard(Links(*links), "web", wanted)
    assert shard == chosen
    assert bool(problem) is not bool(chosen)


@pytest.mark.parametrize("name", ["job", "j" * 253, "a." * 26 + "b"])
def test_a_machine_of_a_pod_has_a_name_that_fits(name: str) -> None:
    pod = {"metadata": {"name": name, "uid": "12345678-9abc"}}
    made = pods.machine_name(pod)
    assert len(made) <= 63
    assert made.endswith("-12345678")
    assert not made.removesuffix("-12345678").endswith(("-", "."))


def test_a_pod_is_trimmed_to_what_matters() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1", "annotations": {"x": "y"}},
        "spec": {"containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    kept = pods.trim_pod(pod)
    assert kept["metadata"] == {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"}
    assert "spec" not in kept
    asking = {**pod, "metadata": {**pod["metadata"], "annotations": {pods.GROUP: "web"}}}
    assert pods.wants_node(pods.trim_pod(asking), "demo--default")
    assert not pods.wants_node(pods.trim_pod({**asking, "status": {"phase": "Failed"}}), "demo--default")
    others = {**pod, "metadata": {**pod["metadata"], "annotations": {pods.GROUP: "web", pods.CLUSTER: "demo--other"}}}
    assert not pods.wants_node(pods.trim_pod(others), "demo--default")


# ---- what cannot be read

POOL = {"group": "web", "shards": ["a"]}


@pytest.mark.parametrize(
    ("pool", "replicas", "why"),
    [
        (POOL, 3, ""),
        (POOL, 0, ""),
        (POOL, None, ""),
        (POOL | {"template": None, "vars": None}, 1, ""),
        (POOL, -1, "spec.replicas: expected a number, 0 or more, found -1"),
        (POOL, "five", "spec.replicas: expected a number, 0 or more, found 'five'"),
        (POOL, True, "found True"),
        (POOL, 2**31, "found 2147483648"),
        (POOL, 1.5, "found 1.5"),
        ({"shards": ["a"]}, 1, "spec.group: expected text, found None"),
        (POOL | {"group": 7}, 1, "spec.group: expected text, found 7"),
        ({"group": "web"}, 1, "spec.shards: expected names of shards"),
        (POOL | {"shards": "a"}, 1, "spec.shards: expected names of shards"),
        (POOL | {"shards": [1]}, 1, "spec.shards: expected names of shards"),
        (POOL | {"shards": []}, 1, "at least one"),
        (POOL | {"template": ["x"]}, 1, "spec.template: expected text"),
        (POOL | {"vars": {"x": 1}}, 1, "spec.vars: expected a map of texts"),
        (POOL | {"vars": "x"}, 1, "spec.vars: expected a map of texts"),
    ],
)
def test_a_pool_that_cannot_be_read(pool: Object, replicas: object, why: str) -> None:
    problem = pools.find_problem({"spec": pool}, {"spec": {"replicas": replicas}})
    assert why in problem
    assert bool(problem) == bool(why)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"group": "web", "shard": "a", "size": 2}, ""),
        ({"group": "web", "shard": "a"}, ""),
        ({"group": "web", "shard": "b", "size": 2}, "expected those of its name, found those of web--b"),
        ({"group": "web", "shard": "a", "size": "2"}, "spec.size"),
        ({"group": "web", "shard": "a", "size": -1}, "spec.size"),
        ({"group": "web"}, "spec.shard: expected text, found None"),
        ({}, "spec.group"),
    ],
)
def test_a_shard_group_that_cannot_be_read(spec: Object, why: str) -> None:
    problem = shard_groups.find_problem({"metadata": {"name": "web--a"}, "spec": spec})
    assert why in problem
    assert bool(problem) == bool(why)


@pytest.mark.parametrize("group", [7, ["web"], {"name": "web"}, None, ""])
def test_a_group_that_is_no_text_is_none(group: object) -> None:
    assert machines.group_of({"spec": {"group": group}}) == ""


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ({"infrastructureRef": {"name": "a"}}, {"name": "a"}),
        ({"template": {"spec": {"infrastructureRef": {"name": "a"}}}}, {"name": "a"}),
        ({"infrastructureRef": [1]}, {}),
        ({"template": "text"}, {}),
        ({"template": {"spec": 3}}, {}),
        ("text", {}),
        (None, {}),
    ],
)
def test_what_a_machine_or_a_pool_refers_to(spec: object, reference: Object) -> None:
    assert resources.infrastructure({"spec": spec}) == reference
