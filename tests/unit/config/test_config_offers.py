"""Alternatives for lack of capacity: merging, hashes, and what is rejected with its path."""

import copy
import json
from typing import Any

import pytest

from nstance.config import dynamic, load, resolve, revision_spec
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.model.group import Group, Preference
from nstance.model.ids import GroupKey, GroupName, TenantId

WEB = GroupKey(TenantId("default"), GroupName("web"))


def document(template: dict[str, Any], group: dict[str, Any], *, provider: str = "aws", **shard: Any) -> dict[str, Any]:
    return {
        "cluster": {"id": "c"},
        "shard": {"infra": {"provider": provider}, "subnet_pools": {"p": ["s1", "s2"]}, **shard},
        "templates": {"t": {"kind": "web", **template}},
        "groups": {"default": {"web": {"template": "t", "size": 1, **group}}},
    }


def resolved(template: dict[str, Any], group: dict[str, Any], api: dict[str, Any] | None = None, **shard: Any) -> Group:
    groups = {WEB: dynamic.group(WEB, api)} if api is not None else {}
    settings = load.load(json.dumps(document(template, group, **shard)))
    return resolve.resolve_groups(settings, DynamicGroups(groups))[WEB].group


BOTH = {"instance_types": ["a", "b"], "markets": ["spot", "on-demand"], "prefer": "strict"}


@pytest.mark.parametrize(
    ("template", "group", "api", "types"),
    [
        ({"instance_type": "a"}, {}, None, ("a",)),
        ({"instance_types": ["a", "b"]}, {}, None, ("a", "b")),
        ({"instance_types": ["a", "b"]}, {"instance_type": "c"}, None, ("c",)),
        ({"instance_type": "a"}, {"instance_types": ["b", "c"]}, None, ("b", "c")),
        ({"instance_types": ["a", "b"]}, {"instance_types": ["c"]}, {"instance_type": "d"}, ("d",)),
        ({"instance_types": ["a", "b"]}, {}, {"size": 2}, ("a", "b")),
        ({}, {}, None, ()),
    ],
)
def test_the_nearest_layer_decides_about_types(
    template: dict[str, Any], group: dict[str, Any], api: dict[str, Any] | None, types: tuple[str, ...]
) -> None:
    found = resolved(template, group, api)
    assert (found.instance_types, found.instance_type) == (types, types[0] if types else "")


def test_the_other_keys() -> None:
    found = resolved(BOTH, {})
    assert (found.markets, found.prefer, found.capacity_retry) == (("spot", "on-demand"), Preference.STRICT, 180.0)
    found = resolved(BOTH, {"markets": ["spot"], "prefer": "loose", "capacity_retry": "1m"}, capacity_retry="9m")
    assert (found.markets, found.prefer, found.capacity_retry) == (("spot",), Preference.LOOSE, 60.0)
    assert resolved({}, {}, capacity_retry="9m").capacity_retry == 540.0
    assert (resolved({}, {}).markets, resolved({}, {}).prefer) == ((), Preference.LOOSE)


def test_the_lists_are_part_of_the_infra_hash_and_preference_is_not() -> None:
    one = resolved({"instance_type": "a"}, {}).infra_hash
    assert resolved({"instance_types": ["a"]}, {}).infra_hash == one  # makes the same instances
    lists = resolved({"instance_types": ["a", "b"]}, {}).infra_hash
    assert len({one, lists, resolved({"instance_types": ["b", "a"]}, {}).infra_hash}) == 3
    assert resolved({"instance_type": "a", "markets": ["spot"]}, {}).infra_hash != one
    assert resolved(BOTH, {}).infra_hash == resolved(BOTH | {"prefer": "loose"}, {"capacity_retry": "1m"}).infra_hash


def test_a_revision_is_stored_with_its_lists() -> None:
    settings = load.load(json.dumps(document(BOTH, {})))
    spec = resolve.resolve_groups(settings, DynamicGroups())[WEB].spec
    again = revision_spec.parse(revision_spec.dump(spec), source="here")
    assert (again.infra_hash, again.template.instance_types) == (spec.infra_hash, ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"template": {"instance_type": "a"}}, "templates.t", "expected instance_type or instance_types, found both"),
        ({"template": {"instance_types": []}}, "templates.t.instance_types", "expected at least one value"),
        (
            {"template": {"instance_types": ["a", "a"]}},
            "templates.t.instance_types",
            'expected each value once, found "a"',
        ),
        ({"template": {"markets": ["spot", "spot"]}}, "templates.t.markets", "expected each value once"),
        ({"template": {"markets": ["spott"]}}, "templates.t.markets[0]", 'expected "spot" or "on-demand"'),
        ({"group": {"prefer": "always"}}, "groups.default.web.prefer", 'expected "loose" or "strict"'),
        ({"group": {"capacity_retry": "0"}}, "groups.default.web.capacity_retry", "expected"),
        (
            {"group": {"update": {"max_surge": 0, "max_unavailable": 1}}},
            "groups.default.web.update.max_surge",
            "expected max_surge above 0 with prefer strict",
        ),
        ({"provider": "proxmox"}, "templates.t.markets", "expected no markets: the provider proxmox has none"),
        ({"provider": "proxmox"}, "groups.default.web.instance_types[1]", 'expected an instance type such as "cpu:4'),
    ],
)
def test_what_cannot_work_is_rejected_with_its_path(changes: dict[str, Any], path: str, message: str) -> None:
    changes = copy.deepcopy(changes)
    text = json.dumps(document(BOTH | changes.pop("template", {}), changes.pop("group", {}), **changes))
    with pytest.raises(ConfigError) as caught:
        load.load(text)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert path in found, found
    assert found[path].startswith(message)
