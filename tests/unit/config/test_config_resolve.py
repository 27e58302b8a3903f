"""Layers, hashes and etags: what changes what, and what must not."""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import dynamic, load, resolve
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.merge import merge
from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey, GroupName, TenantId

WEB = GroupKey(TenantId("default"), GroupName("web"))
NEW = GroupKey(TenantId("default"), GroupName("new"))
BASE: dict[str, Any] = {
    "cluster": {"id": "c"},
    "shard": {
        "infra": {"provider": "memory"},
        "subnet_pools": {"p": ["s1", "s2"], "q": ["s3"]},
        "dynamic_subnet_pools": ["q"],
        "default_drain_timeout": "7m",
    },
    "certificates": {"used": {"kind": "server", "cn": "a"}, "unused": {"kind": "client", "cn": "b"}},
    "defaults": {
        "vars": {"a": "default", "b": "default", "c": "default", "d": "default"},
        "args": {"Net": {"A": 1, "B": 1}, "Tags": [1, 2]},
        "userdata": {"content": "default"},
    },
    "templates": {
        "t": {
            "kind": "abc",
            "arch": "arm64",
            "files": {
                "crt": {"kind": "certificate", "template": "used", "key": {"source": "agent", "name": "k.pub"}},
                "note": {"kind": "string", "template": "n"},
            },
            "vars": {"b": "template", "c": "template", "d": "template"},
            "args": {"Net": {"B": 2, "C": 2}},
            "size": 4,
            "instance_type": "small",
        }
    },
    "groups": {
        "default": {
            "web": {
                "template": "t",
                "vars": {"c": "group", "d": "group"},
                "args": {"Net": {"C": 3}, "Tags": [3]},
                "subnet_pool": "p",
                "update": {"max_surge": 2},
            }
        }
    },
}


def resolved(
    document: Mapping[str, Any] = BASE, *, api: Mapping[str, Any] | None = None, key: GroupKey = WEB
) -> Resolved:
    groups = {key: dynamic.group(key, api)} if api is not None else {}
    return resolve.resolve_groups(load.load(json.dumps(document)), DynamicGroups(groups))[key]


def changed(path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    *parents, last = path.split("/")
    at = document
    for part in parents:
        at = at.setdefault(part, {})
    at[last] = value
    return document


def test_layers() -> None:
    web = resolved(api={"size": 9, "vars": {"d": "api"}})
    assert web.vars == {"a": "default", "b": "template", "c": "group", "d": "api"}
    assert web.args == {"Net": {"A": 1, "B": 2, "C": 3}, "Tags": [3]}
    assert web.userdata is not None
    assert web.userdata.content == "default"
    assert list(web.certificates) == ["used"]
    group = web.group
    assert (group.size, group.instance_type, group.subnet_pool, group.subnets) == (9, "small", "p", ("s1", "s2"))
    assert (group.drain_timeout, group.registration_timeout, group.max_surge, group.max_unavailable) == (420, 300, 2, 0)
    assert (group.static, group.paused, group.kind, web.arch) == (True, False, "abc", "arm64")


@pytest.mark.parametrize(
    ("api", "group", "template", "size"),
    [(None, None, None, 0), (None, None, 4, 4), (None, 3, 4, 3), (2, 3, 4, 2), (0, 3, 4, 0), (None, 0, 4, 0)],
)
def test_size_comes_from_the_highest_layer_that_has_one(
    api: int | None, group: int | None, template: int | None, size: int
) -> None:
    document = changed("templates/t/size", template)
    document["groups"]["default"]["web"]["size"] = group
    if template is None:
        del document["templates"]["t"]["size"]
    if group is None:
        del document["groups"]["default"]["web"]["size"]
    assert resolved(document, api={} if api is None else {"size": api}).group.size == size


def test_the_templates_own_userdata_wins() -> None:
    web = resolved(changed("templates/t/userdata", {"content": "own"}))
    assert web.userdata is not None
    assert web.userdata.content == "own"


def test_a_drain_timeout_of_zero_means_zero() -> None:
    assert resolved(changed("groups/default/web/drain_timeout", "0")).group.drain_timeout == 0


def test_a_dynamic_group_takes_the_only_pool_that_is_open_to_it() -> None:
    new = resolved(api={"template": "t", "drain_timeout": "1m", "update": {"max_unavailable": 1}}, key=NEW)
    assert (new.group.subnet_pool, new.group.subnets, new.group.static) == ("q", ("s3",), False)
    assert (new.group.drain_timeout, new.group.max_surge, new.group.max_unavailable) == (60, 1, 1)
    assert new.vars["c"] == "template"


RUNTIME, INFRA, NEITHER = (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("defaults/vars/a", "x", RUNTIME),
        ("groups/default/web/vars", {"c": "x"}, RUNTIME),
        ("templates/t/files/note/template", "x", RUNTIME),
        ("templates/t/files/more", {"kind": "json", "template": {}}, RUNTIME),
        ("certificates/used/cn", "x", RUNTIME),
        ("certificates/used/ttl", 5, RUNTIME),
        ("certificates/unused/cn", "x", NEITHER),
        ("defaults/args/Net", {"A": 9}, INFRA),
        ("groups/default/web/args", {"Tags": [4]}, INFRA),
        ("templates/t/instance_type", "large", INFRA),
        ("groups/default/web/instance_type", "large", INFRA),
        ("groups/default/web/subnet_pool", "q", INFRA),
        ("defaults/userdata/content", "x", INFRA),
        ("defaults/userdata/encoding", "gzip", INFRA),
        ("templates/t/userdata", {"content": "x"}, INFRA),
        ("templates/t/kind", "xyz", INFRA),
        ("templates/t/arch", "amd64", INFRA),
        ("templates/t/checks", {"up": {"kind": "tcp", "port": 80}, "unhealthy_after": "5m"}, NEITHER),
        ("groups/default/web/size", 9, NEITHER),
        ("groups/default/web/drain_timeout", "1s", NEITHER),
        ("groups/default/web/update", {"max_surge": 5}, NEITHER),
        ("shard/subnet_pools/p", ["s1", "s9"], NEITHER),
        ("images/x", {"fallback": "ami-1"}, NEITHER),
        ("defaults/args/Net/A", 1, NEITHER),  # the same value again
        ("certificates/used/ttl", 8760, NEITHER),  # the default, written out
        ("templates/t/vars/c", "hidden by the group", NEITHER),
    ],
)
def test_what_each_hash_covers(path: str, value: object, expected: tuple[bool, bool]) -> None:
    before, after = resolved().group, resolved(changed(path, value)).group
    assert (before.runtime_hash != after.runtime_hash, before.infra_hash != after.infra_hash) == expected


def test_checks_have_a_hash_of_their_own() -> None:
    assert (resolved().checks_hash, resolved().group.unhealthy_after) == ("", None)
    up = {"kind": "tcp", "port": 80}
    one = resolved(changed("templates/t/checks", {"up": up, "unhealthy_after": "5m"}))
    assert (one.checks["up"].interval, one.checks["up"].failures) == (5.0, 3)
    assert one.group.unhealthy_after == 300.0
    assert one.checks_hash == resolved(changed("templates/t/checks", {"up": up | {"interval": "5s"}})).checks_hash
    assert one.checks_hash != resolved(changed("templates/t/checks", {"up": up | {"interval": "6s"}})).checks_hash


def test_hashes_do_not_depend_on_the_order_of_keys_and_have_the_agreed_form() -> None:
    group = resolved().group
    again = resolved(json.loads(json.dumps(BASE, sort_keys=True))).group
    assert again == group
    for text in (group.runtime_hash, group.infra_hash):
        assert text.startswith("sha256:")
        assert len(text) == 7 + 64


def test_hashes_are_the_same_in_every_version() -> None:
    """A new field with a default, or another JSON spelling, must not rotate every fleet: change these only on purpose."""
    group = resolved().group
    infra = (
        '{"arch":"arm64","args":{"Net":{"A":1,"B":2,"C":3},"Tags":[3]},"instance_type":"small","kind":"abc",'
        '"subnet_pool":"p","userdata":{"content":"default"}}'
    )
    runtime = (
        '{"certificates":{"used":{"cn":"a","kind":["server"]}},'
        '"files":{"crt":{"key":{"name":"k.pub","source":"agent"},"kind":"certificate","template":"used"},'
        '"note":{"kind":"string","template":"n"}},'
        '"vars":{"a":"default","b":"template","c":"group","d":"group"}}'
    )
    assert group.infra_hash == "sha256:" + hashlib.sha256(infra.encode()).hexdigest()
    assert group.runtime_hash == "sha256:" + hashlib.sha256(runtime.encode()).hexdigest()


@pytest.mark.parametrize(
    ("api", "differs"),
    [
        ({}, False),
        ({"size": 4}, False),
        ({"size": 5}, True),
        ({"instance_type": "x"}, True),
        ({"vars": {"z": ""}}, True),
        ({"paused": True}, True),
    ],
)
def test_the_etag_follows_the_effective_config(api: dict[str, object], differs: bool) -> None:
    assert (resolved(api=api).etag != resolved().etag) == differs


def test_an_on_demand_request_is_one_more_layer() -> None:
    web = resolved()
    one = resolve.resolve_on_demand(web, instance_type="large", vars={"a": "request"})
    assert (one.group.instance_type, one.vars["a"], one.vars["c"]) == ("large", "request", "group")
    assert one.group.vars == one.vars
    assert one.group.infra_hash == resolved(api={"instance_type": "large"}).group.infra_hash
    assert one.group.runtime_hash == resolved(api={"vars": {"a": "request"}}).group.runtime_hash
    assert (web.vars["a"], web.group.instance_type) == ("default", "small")
    assert resolve.resolve_on_demand(web) == web


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'default\.new\.template: .*"nope"'):
        resolved(api={"template": "nope"}, key=NEW)


def test_what_a_removed_static_group_left_behind_is_no_group() -> None:
    settings = load.load(json.dumps(BASE))
    left = DynamicGroups({NEW: dynamic.group(NEW, {"size": 3, "paused": True})})
    assert list(resolve.resolve_groups(settings, left)) == [WEB]


_OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers() | st.lists(st.integers(), max_size=2), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.integers() | inner, max_size=3),
    max_leaves=8,
)


@given(_OBJECTS, _OBJECTS, _OBJECTS)
def test_merging_is_associative_leaves_its_layers_alone_and_shares_nothing(a: Any, b: Any, c: Any) -> None:
    before = copy.deepcopy((a, b, c))
    merged = merge(a, b, c)
    assert merged == merge(merge(a, b), c)
    assert merge(a, {}) == a == merge({}, a)
    _scribble(merged)
    assert (a, b, c) == before


def _scribble(value: Any) -> None:
    if isinstance(value, dict):
        for child in value.values():
            _scribble(child)
        value["scribble"] = 1
    elif isinstance(value, list):
        value.append("scribble")


@pytest.mark.parametrize(
    ("low", "high", "merged"),
    [
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"x": 1}}, {"a": 3}, {"a": 3}),
        ({"a": 3}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
    ],
)
def test_merge(low: Any, high: Any, merged: Any) -> None:
    assert merge(low, high) == merged
