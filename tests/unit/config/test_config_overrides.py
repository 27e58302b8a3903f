"""Overrides of the API: who set them, when, and the warning about them."""

import json
from typing import Any

import pytest

from nstance.config import dynamic as dynamics
from nstance.config import load, overrides, resolve
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.model.ids import GroupKey, GroupName, TenantId

WEB = GroupKey(TenantId("default"), GroupName("web"))
NEW = GroupKey(TenantId("default"), GroupName("new"))


def settings(**group: Any) -> Settings:
    document = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["s"]}},
        "defaults": {"vars": {"a": "default", "b": "default"}},
        "templates": {"web": {"kind": "web", "size": 4, "instance_type": "small", "vars": {"b": "template"}}},
        "groups": {"default": {"web": {"template": "web", **group}}},
    }
    return load.load(json.dumps(document))


def listed(text: str, **group: Any) -> list[tuple[str, str, str | None, str]]:
    given = dynamics.parse(text)
    resolved = resolve.resolve_groups(settings(**group), given)[WEB]
    return [
        (each.field, each.value, each.file_value, each.stamp.by if each.stamp else "")
        for each in overrides.list_overrides(given.groups.get(WEB), resolved.file)
    ]


def test_every_override_is_listed_with_the_value_in_the_file() -> None:
    text = """{"default": {"web": {
        "size": 3, "instance_type": "big", "vars": {"a": "x", "c": "y"},
        "set_by": {"size": {"by": "alice", "at": "2026-01-31T12:00:00Z"}}
    }}}"""
    assert listed(text, size=5) == [
        ("size", "3", "5", "alice"),
        ("instance_type", "big", "small", ""),
        ("vars.a", "x", "default", ""),
        ("vars.c", "y", None, ""),
    ]
    assert listed(text)[0] == ("size", "3", "4", "alice")  # the template's
    assert listed("{}", size=5) == []


def test_files_of_older_versions_load_and_stay_as_they_are() -> None:
    old = '{"default": {"web": {"size": 3, "paused": true}, "new": {"template": "web", "size": 1}}}'
    loaded = dynamics.parse(old)
    assert loaded.groups[WEB].set_by == {}
    assert dynamics.parse(dynamics.dump(loaded)) == loaded
    assert "set_by" not in dynamics.dump(loaded)
    assert resolve.resolve_groups(settings(), loaded)[WEB].group.size == 3


def test_who_and_when_survive_the_file() -> None:
    by = dynamics.stamp("opr-1", 1_769_860_800.9)
    made = dynamics.upsert(DynamicGroups(), WEB, dynamics.group(WEB, {"size": 3}), by=by)
    text = dynamics.dump(made)
    assert '"set_by": {"size": {"by": "opr-1", "at": "2026-01-31T12:00:00Z"}}' in text
    assert dynamics.parse(text) == made
    assert made.groups[WEB].set_by["size"].seconds == 1_769_860_800.0


@pytest.mark.parametrize("at", ["yesterday", "", "2026-01-31T12:00:00", 5])
def test_a_stamp_without_a_time_is_refused_with_its_place(at: object) -> None:
    text = json.dumps({"default": {"web": {"size": 1, "set_by": {"size": {"by": "x", "at": at}}}}})
    with pytest.raises(ConfigError) as refused:
        dynamics.parse(text)
    assert [problem.path for problem in refused.value.problems] == ["default.web.set_by.size.at"]


def test_a_warning_names_both_values_who_set_it_and_the_way_back() -> None:
    stamp = dynamics.stamp("alice", 1_769_860_800.0)
    size = overrides.Override(field="size", value="3", file_value="5", stamp=stamp)
    assert overrides.describe(WEB, size) == (
        "size 5 in the file has no effect: 3 was set through the API (by alice at 2026-01-31T12:00:00Z); "
        "to use the file: nstance-admin group update web --unset-size"
    )
    var = overrides.Override(field="vars.password", value="s3cret", file_value="other", stamp=None)
    assert overrides.describe(WEB, var) == (
        "var password in the file has no effect: another value was set through the API; "
        "to use the file: nstance-admin group update web --unset-var password"
    )
    assert (size.hides_file, var.hides_file) == (True, True)
    same = overrides.Override(field="size", value="5", file_value="5", stamp=None)
    assert not same.hides_file


def test_who_asked_for_what_instances_are_made_of() -> None:
    alice, bob = dynamics.stamp("alice", 1e9), dynamics.stamp("bob", 2e9)
    made = dynamics.upsert(DynamicGroups(), WEB, dynamics.group(WEB, {"size": 3}), by=alice)
    assert resolve.resolve_groups(settings(), made)[WEB].group.changed_by == "config"
    typed = dynamics.upsert(made, WEB, dynamics.group(WEB, {"size": 3, "instance_type": "big"}), by=bob)
    assert resolve.resolve_groups(settings(), typed)[WEB].group.changed_by == "bob"
    assert resolve.resolve_groups(settings(instance_type="big"), typed)[WEB].group.changed_by == "config"
    new = dynamics.upsert(typed, NEW, dynamics.group(NEW, {"template": "web"}), by=alice)
    assert resolve.resolve_groups(settings(), new)[NEW].group.changed_by == "alice"
