"""Groups of the API: the file, the edits, and what a tenant may ask for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import dynamic, jsonc, load
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.model.ids import GroupKey, GroupName, TenantId

CONFIG = json.dumps(
    {
        "cluster": {"id": "c"},
        "shard": {
            "infra": {"provider": "aws"},
            "subnet_pools": {"open": ["s1"], "closed": ["s2"]},
            "dynamic_subnet_pools": ["open"],
        },
        "tenants": {"acme": {}},
        "load_balancers": {
            "lb": {"provider": "aws", "target_group_arns": ["x"]},
            "other": {"provider": "gcp", "instance_group_name": "x"},
        },
        "templates": {"t": {"kind": "abc"}, "fixed": {"kind": "abc", "subnet_pool": "closed"}},
        "groups": {"default": {"web": {"template": "t", "subnet_pool": "open"}}},
    }
)


def key(name: str, tenant: str = "default") -> GroupKey:
    return GroupKey(TenantId(tenant), GroupName(name))


def groups(**named: dict[str, Any]) -> DynamicGroups:
    return DynamicGroups({key(name): dynamic.group(key(name), value) for name, value in named.items()})


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load.load(CONFIG)


FULL = {
    "template": "t",
    "size": 3,
    "instance_type": "x",
    "subnet_pool": "open",
    "vars": {"a": "é\n"},
    "args": {"BlockDeviceMappings": [{"Ebs": {"VolumeSize": 8, "Encrypted": True, "Iops": None}}]},
    "drain_timeout": "1m30s",
    "load_balancers": ["lb"],
    "update": {"max_surge": 2, "max_unavailable": 1},
    "paused": True,
}


def test_a_file_is_read_back_as_it_was_written_and_is_made_for_people() -> None:
    before = DynamicGroups({**groups(web={"size": 2}, new=FULL).groups, key("x", "acme"): dynamic.group(key("x"), {})})
    text = dynamic.dump(before)
    assert dynamic.parse(text) == dynamic.parse(text.encode()) == before
    assert text.startswith("// ")
    assert "comments do not survive" in text
    assert '"drain_timeout": "1m30s"' in text
    assert jsonc.read(text, source="test").value == {
        "acme": {"x": {}},
        "default": {"new": FULL, "web": {"size": 2}},
    }
    assert dynamic.dump(before) == dynamic.dump(DynamicGroups(dict(reversed(before.groups.items()))))


def test_an_empty_file_has_no_groups() -> None:
    assert dynamic.parse(dynamic.dump(DynamicGroups())) == DynamicGroups()


@pytest.mark.parametrize(
    ("text", "path", "line", "says"),
    [
        ("[]", "groups", 1, "expected an object"),
        ('{"default":\n []}', "default", 2, "expected an object of groups"),
        ('{"default": {"web":\n {"size": "3"}}}', "default.web.size", 2, "expected a whole number"),
        ('{"default": {"web": {\n"sise": 3}}}', "default.web.sise", 2, "expected no such key"),
        ('{"default": {\n"../x": {}}}', 'default["../x"]', 2, "expected a name"),
        ('{"Default": {}}', "Default", 1, "expected a name"),
        ('{"default": {"web": {"paused": 1}}}', "default.web.paused", 1, "expected true or false"),
        ('{"default": {"web": {"size": NaN}}}', "default.web.size", 1, "finite number"),
        ('{"default": {"web": {}, "web": {}}}', "default.web", 1, "each key once"),
    ],
)
def test_a_bad_file_is_explained(text: str, path: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dynamic.parse(text)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (path, line)
    assert says in problem.message


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"size": -1}, "size", "at least 0"),
        ({"size": 2**31}, "size", "at most 10000"),
        ({"size": float("nan")}, "size", "whole number"),
        ({"size": True}, "size", "whole number"),
        ({"vars": {"a": "x" * 2**20}}, "vars.a", "at most 65,536 characters"),
        ({"drain_timeout": "soon"}, "drain_timeout", "expected a duration"),
        ({"update": {"max_surge": 0, "max_unavailable": 0}}, "update", "no instance can be replaced"),
        ({"kind": "abc"}, "kind", "no such key"),
    ],
)
def test_an_invalid_request_for_a_group_is_rejected(value: dict[str, object], path: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dynamic.group(key("new"), value)
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == (path, 0)
    assert says in problem.message


@pytest.mark.parametrize("name", ["", "../x", "A", "a--b", "*", "a/b", "x" * 33])
def test_an_invalid_group_name_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        dynamic.group(key(name), {"template": "t"})


@pytest.mark.parametrize(
    ("name", "value", "path", "says"),
    [
        ("web", {"size": 1, "instance_type": "x", "vars": {"a": "b"}, "paused": True}, "", ""),
        ("web", {"template": "t"}, "default.web.template", "for a static group"),
        ("web", {"subnet_pool": "open"}, "default.web.subnet_pool", "for a static group"),
        ("web", {"args": {"A": 1}}, "default.web.args", "for a static group"),
        ("new", FULL, "", ""),
        ("new", {"template": "t"}, "", ""),
        ("new", {"size": 1}, "default.new.template", "expected a template"),
        ("new", {"template": "tt"}, "default.new.template", 'found "tt"'),
        ("new", {"template": "t", "subnet_pool": "closed"}, "default.new.subnet_pool", "dynamic groups may use"),
        ("new", {"template": "fixed"}, "default.new.subnet_pool", "dynamic groups may use"),
        ("new", {"template": "t", "load_balancers": ["x"]}, "default.new.load_balancers[0]", "a load balancer"),
        ("new", {"template": "t", "load_balancers": ["other"]}, "default.new.load_balancers[0]", "of the provider aws"),
        ("new", {"template": "t", "args": {"UserData": ""}}, "default.new.args.UserData", "Nstance sets it"),
        ("new", {"template": "t", "args": {"KeyName": "{{ .X }}"}}, "default.new.args.KeyName", "expected a field"),
        (
            "new",
            {"template": "t", "args": {"ImageId": "{{ .Image.x }}"}},
            "default.new.args.ImageId",
            "name of an image",
        ),
    ],
)
def test_check(settings: Settings, name: str, value: dict[str, Any], path: str, says: str) -> None:
    found = dynamic.check(settings, groups(**{name: value}))
    assert [p.path for p in found] == ([path] if path else [])
    assert all(says in p.message for p in found)


def test_a_tenant_must_be_configured(settings: Settings) -> None:
    (problem,) = dynamic.check(settings, DynamicGroups({key("x", "acm"): dynamic.group(key("x"), {"template": "t"})}))
    assert (problem.path, problem.hint) == ("acm", "acme")


@pytest.mark.parametrize(
    ("count", "value", "says"),
    [
        (dynamic.MAX_TENANT_GROUPS, {"template": "t"}, ""),
        (dynamic.MAX_TENANT_GROUPS + 1, {"template": "t"}, "1,000 dynamic groups"),
        (2, {"template": "t", "size": 10_000}, ""),
        (3, {"template": "t", "size": 10_000}, "20,000 instances"),
        (20, {"template": "t", "vars": {"a": "x" * 60_000}}, "1,048,576 bytes"),
    ],
)
def test_a_tenant_has_a_quota(settings: Settings, count: int, value: dict[str, object], says: str) -> None:
    one = dynamic.group(key("x"), value)
    found = dynamic.check(settings, DynamicGroups({key(f"g{n}"): one for n in range(count)}))
    assert [p.path for p in found] == (["default"] if says else [])
    assert all(says in p.message for p in found)


def test_edits_give_new_values_and_keep_the_old() -> None:
    before = groups(web={"size": 1})
    after = dynamic.upsert(before, key("new"), dynamic.group(key("new"), {"template": "t"}))
    assert set(after.groups) == {key("web"), key("new")}
    assert set(dynamic.delete(after, key("web")).groups) == {key("new")}
    assert before == groups(web={"size": 1})
    assert dynamic.delete(before, key("nope")) == before


def test_pausing_survives_an_upsert_and_leaves_nothing_behind() -> None:
    paused = dynamic.pause(groups(web={"size": 1}), [key("web"), key("static")], paused=True)
    assert [g.paused for g in paused.groups.values()] == [True, True]
    scaled = dynamic.upsert(paused, key("web"), dynamic.group(key("web"), {"size": 5}))
    assert (scaled.groups[key("web")].paused, scaled.groups[key("web")].size) == (True, 5)
    resumed = dynamic.pause(scaled, [key("web"), key("static")], paused=False)
    assert resumed == groups(web={"size": 5})


@given(st.text(max_size=80) | st.binary(max_size=80))
def test_any_file_is_read_or_refused(text: str | bytes) -> None:
    try:
        parsed = dynamic.parse(text)
    except ConfigError:
        return
    assert dynamic.parse(dynamic.dump(parsed)) == parsed
