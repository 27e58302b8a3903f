"""What the controllers decide, without anything around it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.kube.port import Object
from nstance.operator.controllers import (
    importing,
    machine_objects,
    machines,
    nodes,
    pod_objects,
    pods,
    pool_sizes,
    pools,
    resources,
    shard_groups,
    victims,
)
from nstance.operator.controllers.node_settings import LABELS_VAR
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
    assert pool_sizes.spread(replicas, shards) == expected


@given(st.integers(0, 10_000), st.lists(names, min_size=1))
def test_nothing_is_lost_in_spreading(replicas: int, shards: list[str]) -> None:
    parts = list(pool_sizes.spread(replicas, shards).values())
    assert sum(parts) == replicas
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize(
    ("replicas", "current", "chosen", "pinned", "expected"),
    [
        (5, {"a": 2, "b": 2}, "", None, {"a": 3, "b": 2}),
        (5, {"a": 4, "b": 0}, "", None, {"a": 4, "b": 1}),
        (8, {"a": 4, "b": 0}, "", None, {"a": 4, "b": 4}),
        (3, {"a": 4, "b": 1}, "", None, {"a": 2, "b": 1}),
        (4, {"a": 3, "b": 2}, "b", None, {"a": 3, "b": 1}),
        (4, {"a": 3, "b": 3}, "ab", None, {"a": 2, "b": 2}),
        (5, {"a": 3, "b": 3}, "ab", None, {"a": 2, "b": 3}),
        (5, {"a": 3, "b": 2}, "ab", None, {"a": 3, "b": 2}),
        (4, {"a": 3, "b": 0}, "b", None, {"a": 3, "b": 1}),
        (4, {}, "", {"a": 4, "b": 0}, {"a": 4, "b": 0}),
        (4, {"a": 2, "b": 2}, "", {"a": 4}, {"a": 4, "b": 0}),
        (5, {"a": 4, "b": 0}, "", {"a": 4, "b": 0}, {"a": 4, "b": 1}),
        (4, {"a": 4}, "", None, {"a": 2, "b": 2}),
        (4, {"a": 2, "b": 2, "c": 2}, "", None, {"a": 2, "b": 2}),
    ],
)
def test_replicas_are_divided(
    replicas: int, current: dict[str, int], chosen: str, pinned: dict[str, int] | None, expected: dict[str, int]
) -> None:
    victims = [pool_sizes.Chosen(shard, f"web-{shard}") for shard in chosen]
    assert pool_sizes.divide(replicas, "ab", current, chosen=victims, pinned=pinned) == expected


@given(st.integers(0, 2**31 - 1), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 20), min_size=1))
def test_a_pool_that_changes_its_replicas_moves_nothing(replicas: int, current: dict[str, int]) -> None:
    sizes = pool_sizes.divide(replicas, current, current)
    assert sum(sizes.values()) == replicas
    changes = [sizes[shard] - current[shard] for shard in current]
    assert all(each >= 0 for each in changes) if replicas >= sum(current.values()) else max(changes) <= 0
    even = pool_sizes.spread(sum(current.values()), current)
    assert pool_sizes.divide(replicas, current, even) == pool_sizes.spread(replicas, current)


def test_a_shard_learns_who_leaves_first_only_while_it_shrinks() -> None:
    pool = {"spec": {"group": "web", "shards": ["a", "b"]}}
    chosen = [pool_sizes.Chosen("b", "web-1"), pool_sizes.Chosen("b", "web-2")]

    def specs(replicas: int) -> dict[str, Object]:
        machine_pool = {"spec": {"replicas": replicas}}
        return pools.shard_group_specs(pool, machine_pool, current={"a": 2, "b": 2}, chosen=chosen)

    assert specs(4)["web--b"] == {"group": "web", "shard": "b", "size": 2}
    assert specs(3)["web--b"] == {"group": "web", "shard": "b", "size": 1, "removeFirst": ["web-1"]}
    assert specs(2)["web--b"] == {"group": "web", "shard": "b", "size": 0, "removeFirst": ["web-1", "web-2"]}
    assert specs(3)["web--a"] == {"group": "web", "shard": "a", "size": 2}
    assert specs(5)["web--a"] == {"group": "web", "shard": "a", "size": 3, "removeFirst": None}


def test_long_names_get_the_label_that_cluster_api_gives_them() -> None:
    assert resources.label_value("web") == "web"
    assert resources.label_value("a" * 63) == "a" * 63
    assert resources.label_value("a" * 64) == "hash_2W8PhQ_z"


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


@pytest.mark.parametrize(
    ("spec", "owned", "config", "sent"),
    [
        ({}, ["instanceType"], {"instance_type": "l"}, {}),
        ({"instanceType": ""}, ["instanceType"], {"instance_type": "l"}, {}),
        ({}, [], {"instance_type": "l"}, None),
        ({}, ["vars"], {"vars": {"a": "b"}}, {}),
        (
            {},
            ["subnetPool", "vars"],
            {"subnet_pool": "p", "vars": {"a": "b"}, "drain_timeout": "1m"},
            {"drain_timeout": "1m"},
        ),
        ({"vars": {"c": "d"}}, ["vars"], {"vars": {"a": "b"}}, {"vars": {"c": "d"}}),
        ({}, ["instanceType", "vars"], {}, None),
        ({"nodeVars": {LABELS_VAR: "x"}}, [], {"vars": {"a": "b"}}, {"vars": {"a": "b", LABELS_VAR: "x"}}),
        ({}, ["nodeVars"], {"vars": {"a": "b", LABELS_VAR: "x"}}, {"vars": {"a": "b"}}),
        ({"nodeVars": {LABELS_VAR: "x"}, "vars": {LABELS_VAR: "y"}}, [], {}, {"vars": {LABELS_VAR: "y"}}),
        ({"nodeVars": {LABELS_VAR: "x"}}, ["vars"], {"vars": {"a": "b"}}, {"vars": {LABELS_VAR: "x"}}),
    ],
)
def test_what_the_spec_no_longer_names_goes_back_to_the_template(
    spec: Object, owned: list[str], config: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    found = pb.GroupStatus(key="web", template="web", instance_type="l", config=config)
    assert shard_groups.config_to_send(spec, found, owned) == (None if sent is None else pb.GroupConfig(**sent))


def test_what_only_the_shard_has_is_named() -> None:
    found = pb.GroupStatus(config={"template": "t", "instance_type": "l", "subnet_pool": "p", "vars": {"a": "b"}})
    assert shard_groups.unnamed_settings({"subnetPool": "p"}, found) == [
        "template is 't'",
        "instanceType is 'l'",
        "vars has a",
    ]
    found.config.vars[LABELS_VAR] = "x"
    assert shard_groups.unnamed_settings({"nodeVars": {LABELS_VAR: "x"}}, found)[-1] == "vars has a"
    assert shard_groups.owned_fields({"instanceType": "", "subnetPool": "p", "vars": {"a": "b"}}) == [
        "subnetPool",
        "vars",
    ]


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
    assert machine_objects.condition(instance) == resources.Condition("Ready", status, reason, message)


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
    a, b = {"web": group(size=2), "old": group()}, {"web": group(size=3), "new": group(), "old": group()}
    known = [("old", "a"), ("old", "b")]
    found = importing.pools_to_import({"a": a, "b": b}, {"b"}, known=known)
    assert {each.name: list(each.found) for each in found} == {"nstance-new": ["b"], "nstance-web": ["a", "b"]}


def test_shards_that_differ_are_imported_apart() -> None:
    plain, typed = group(size=1, static=True), group(size=4, static=True, config={"instance_type": "l"})
    shards = {"a": {"web": plain}, "b": {"web": typed}, "c": {"web": plain}, "d": {"web": group(size=0)}}
    found = importing.pools_to_import(shards, shards, known=[])
    assert {each.name: {shard: one.size for shard, one in each.found.items()} for each in found} == {
        "nstance-web": {"a": 1, "c": 1},
        "nstance-web-b": {"b": 4},
        "nstance-web-d": {"d": 0},
    }
    # After a crash between two of them, the others follow, under the same names.
    rest = importing.pools_to_import(shards, shards, known=[("web", "a"), ("web", "c")], taken=["nstance-web"])
    assert [each.name for each in rest] == ["nstance-web-b", "nstance-web-d"]
    body = importing.nstance_machine_pool_manifest(found[1], cluster="demo", owner={"metadata": {"name": "x"}})
    assert body["spec"] == {"group": "web", "shards": ["b"], "shardSizes": {"b": 4}, "instanceType": "l"}


def test_static_groups_of_another_template_or_type_are_imported_apart() -> None:
    """Of the configuration files: one pool would say the capacity of one of them, and change both."""
    shards = {
        name: {
            "web": pb.GroupStatus(
                key="web", template=template, own_instance_type=type, static=True, vars={"zone": name}
            )
        }
        for name, template, type in (("a", "web", "l"), ("b", "db", "l"), ("c", "web", "s"), ("d", "web", "l"))
    }
    found = importing.pools_to_import(shards, shards, known=[])
    assert {each.name: list(each.found) for each in found} == {
        "nstance-web": ["a", "d"],
        "nstance-web-b": ["b"],
        "nstance-web-c": ["c"],
    }
    body = importing.nstance_machine_pool_manifest(found[1], cluster="demo", owner={"metadata": {"name": "x"}})
    assert body["spec"] == {"group": "web", "shards": ["b"], "shardSizes": {"b": 0}}


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
    assert pod_objects.must_evict({"metadata": metadata, "status": {"phase": phase}}) is leaves


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
    kept = pod_objects.trim_pod(pod)
    assert kept["metadata"] == {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"}
    assert "spec" not in kept
    asking = {**pod, "metadata": {**pod["metadata"], "annotations": {pods.GROUP: "web"}}}
    assert pods.wants_node(pod_objects.trim_pod(asking), "demo--default")
    assert not pods.wants_node(pod_objects.trim_pod({**asking, "status": {"phase": "Failed"}}), "demo--default")
    others = {**pod, "metadata": {**pod["metadata"], "annotations": {pods.GROUP: "web", pods.CLUSTER: "demo--other"}}}
    assert not pods.wants_node(pod_objects.trim_pod(others), "demo--default")


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


# ---- who leaves


def test_idle_nodes_leave_before_busy_ones_and_old_ones_before_new_ones() -> None:
    def event(**fields: Any) -> pb.InstanceEvent:
        return pb.InstanceEvent(group="web", **{"state": "running", "ready": True, **fields})

    def pod(node: str, cost: str = "", **metadata: Any) -> Object:
        annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost else {}
        whole = {
            "metadata": {"name": "p", "annotations": annotations, **metadata},
            "spec": {"nodeName": node, "containers": [{}]},
        }
        return pod_objects.trim_pod(whole)

    instances = {
        "web-1": event(),  # busy and dear
        "web-2": event(),  # busy
        "web-3": event(),  # only a DaemonSet's pod
        "web-4": event(),  # empty, but its Node asks to stay
        "web-5": event(ready=False),
        "web-6": event(state="starting", ready=False),
        "web-7": event(),  # empty
    }
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
    loads = victims.node_loads([pod("n1", cost="100"), pod("n1"), pod("n2", cost="no number"), pod("n3", **daemon)])
    assert loads == {"n1": victims.NodeLoad(2, 100), "n2": victims.NodeLoad(1, 0)}
    nodes: dict[str, Object | None] = {f"web-{n}": {"metadata": {"name": f"n{n}"}} for n in range(1, 6)}
    nodes["web-4"] = {"metadata": {"name": "n4", "annotations": {"nstance.dev/deletion-cost": "5"}}}
    order = victims.order_victims(instances, nodes, loads)
    assert order == ["web-6", "web-5", "web-3", "web-7", "web-4", "web-2", "web-1"]
