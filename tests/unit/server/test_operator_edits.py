"""Edits of groups as pure functions: quotas, etags, what is left out."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import dynamic as dynamics
from nstance.config import load
from nstance.config.dynamic import DynamicGroup, DynamicGroups
from nstance.config.model.settings import Settings
from nstance.model.group import Group
from nstance.model.ids import GroupKey, GroupName, Kind, TenantId
from nstance.server.api import group_edits, group_writer
from nstance.server.api.statuses import group_config
from nstance.server.config import group_changes
from nstance.v1.operator_pb2 import GroupConfig

ACME = TenantId("acme")
WEB = GroupKey(ACME, GroupName("web"))
STATIC = GroupKey(ACME, GroupName("static"))


def settings(**more: Any) -> Settings:
    document = {
        "cluster": {"id": "demo", "secrets": {"encryption_key": {"provider": "env", "source": "KEY"}}},
        "shard": {
            "infra": {"provider": "memory", "region": "here", "zone": "a"},
            "subnet_pools": {"main": ["subnet-1"], "other": ["subnet-2"]},
            "dynamic_subnet_pools": ["main"],
        },
        "tenants": {"acme": {}, "globex": {}},
        "templates": {"web": {"kind": "web", "arch": "amd64", "size": 4}},
        "groups": {"acme": {"static": {"template": "web", "size": 2, "subnet_pool": "other"}}},
        **more,
    }
    return load.load(json.dumps(document).encode(), shard=None, source="test")


SETTINGS = settings()


def refusal(edit: group_writer.Edit, dynamic: DynamicGroups = DynamicGroups()) -> GRPCError:  # noqa: B008
    with pytest.raises(GRPCError) as refused:
        edit(SETTINGS, dynamic)
    return refused.value


def upserted(config: GroupConfig, dynamic: DynamicGroups = DynamicGroups(), key: GroupKey = WEB) -> DynamicGroups:  # noqa: B008
    return group_edits.upsert(key, config, etag="")(SETTINGS, dynamic)


def test_vars_stand_in_the_file_in_their_order_whatever_the_wire_says() -> None:
    names = [f"v{number}" for number in range(20)]
    text = dynamics.dump(upserted(GroupConfig(template="web", vars=dict.fromkeys(names, ""))))
    assert re.findall(r'"(v\d+)"', text) == sorted(names)


def test_a_new_group_without_a_size_has_its_templates() -> None:
    made = upserted(GroupConfig(template="web"))
    found = group_writer.mine(SETTINGS, made, WEB)
    assert found is not None
    assert found.group.size == 4


def test_what_was_paused_stays_paused() -> None:
    made = dynamics.pause(upserted(GroupConfig(template="web", size=1)), [WEB], paused=True)
    assert upserted(GroupConfig(template="web", size=3), made).groups[WEB].paused


def test_a_static_group_may_be_told_again_what_it_is() -> None:
    same = GroupConfig(template="web", subnet_pool="other", size=5)
    assert upserted(same, key=STATIC).groups[STATIC].written() == {"size": 5}


def test_an_override_that_says_nothing_is_not_kept() -> None:
    changed = upserted(GroupConfig(instance_type="big"), key=STATIC)
    assert upserted(GroupConfig(), changed, key=STATIC) == DynamicGroups()


def test_etags() -> None:
    made = upserted(GroupConfig(template="web", size=1))
    found = group_writer.mine(SETTINGS, made, WEB)
    assert found is not None
    group_edits.upsert(WEB, GroupConfig(template="web", size=2), etag=found.etag)(SETTINGS, made)
    for edit in (
        group_edits.upsert(WEB, GroupConfig(template="web", size=2), etag="sha256:other"),
        group_edits.delete(WEB, etag="sha256:other"),
    ):
        assert refusal(edit, made).status is Status.ABORTED
    gone = group_edits.upsert(WEB, GroupConfig(template="web"), etag=found.etag)
    assert refusal(gone).status is Status.ABORTED


def test_the_subnet_pools_of_static_groups_are_not_for_the_api() -> None:
    refused = refusal(group_edits.upsert(WEB, GroupConfig(template="web", subnet_pool="other"), etag=""))
    assert (refused.status, (refused.message or "")[:18]) == (Status.INVALID_ARGUMENT, "config.subnet_pool")


def many(count: int, tenant: TenantId = ACME, **fields: Any) -> DynamicGroups:
    group = DynamicGroup(template="web", **fields)
    return DynamicGroups({GroupKey(tenant, GroupName(f"g{n}")): group for n in range(count)})


@pytest.mark.parametrize(
    "full",
    [
        many(dynamics.MAX_TENANT_GROUPS),
        many(2, size=dynamics.MAX_TENANT_INSTANCES // 2),
        many(20, vars={"a": "x" * 52_000}),
    ],
)
def test_a_tenant_that_has_too_much_gets_no_more_and_others_do(full: DynamicGroups) -> None:
    edit = group_edits.upsert(WEB, GroupConfig(template="web", size=100, vars={"b": "y" * 52_000}), etag="")
    assert refusal(edit, full).status is Status.RESOURCE_EXHAUSTED
    other = GroupKey(TenantId("globex"), GroupName("web"))
    group_edits.upsert(other, GroupConfig(template="web", size=100), etag="")(SETTINGS, full)


def test_pausing_takes_one_group_or_all_of_the_tenant() -> None:
    made = upserted(GroupConfig(template="web", size=1))
    made = dynamics.upsert(made, GroupKey(TenantId("globex"), GroupName("web")), DynamicGroup(template="web"))

    def paused(dynamic: DynamicGroups) -> set[str]:
        return {str(key) for key, group in dynamic.groups.items() if group.paused}

    everything = group_edits.pause(ACME, None, paused=True)(SETTINGS, made)
    assert paused(everything) == {"acme/web", "acme/static"}
    assert paused(group_edits.pause(ACME, WEB, paused=False)(SETTINGS, everything)) == {"acme/static"}
    assert group_edits.pause(ACME, None, paused=False)(SETTINGS, everything) == made
    absent = GroupKey(ACME, GroupName("absent"))
    assert refusal(group_edits.pause(ACME, absent, paused=True), made).status is Status.NOT_FOUND


@given(
    size=st.none() | st.integers(0, 10_000),
    instance_type=st.text(max_size=8),
    vars=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20)),
    drain=st.sampled_from(["", "0", "90s", "1h30m"]),
    surge=st.none() | st.integers(1, 5),
    args=st.dictionaries(st.text(max_size=5), st.integers() | st.booleans() | st.text(max_size=5)),
)
def test_what_the_api_set_can_be_read_and_sent_back(
    size: int | None, instance_type: str, vars: dict[str, str], drain: str, surge: int | None, args: dict[str, Any]
) -> None:
    """Reading a group's config and sending it back unchanged changes nothing."""
    config = GroupConfig(
        template="web",
        size=size,
        instance_type=instance_type,
        vars=vars,
        drain_timeout=drain,
        update_set=surge is not None,
        max_surge=surge or 0,
        args_json=json.dumps(args) if args else "",
    )
    try:
        made = upserted(config)
    except GRPCError as refused:
        assert refused.status is Status.INVALID_ARGUMENT  # noqa: PT017
        return
    assert upserted(group_config(made.groups[WEB]), made) == made


def test_changes_are_told_without_values_of_vars() -> None:
    old = Group(key=WEB, size=3, template="web", kind=Kind("web"), vars={"password": "s3cret", "same": "x"})
    new = Group(key=WEB, size=6, template="web", kind=Kind("web"), vars={"password": "other", "same": "x"}, paused=True)
    assert group_changes.describe(old, new) == "size 3 → 6; vars password changed; paused"
    assert group_changes.describe(old, replace(old, drain_timeout=360_000_000.0)) == "drain timeout 5m → 4166d16h"
    assert group_changes.describe(None, new) == "group created with size 6"
    assert group_changes.describe(new, None) == "group deleted"
    assert group_changes.describe(old, old) == ""


ALICE = dynamics.stamp("alice", 1_700_000_000.0)
BOB = dynamics.stamp("bob", 1_700_000_060.0)


def test_a_value_names_who_set_it_until_somebody_sets_another() -> None:
    made = group_edits.upsert(STATIC, GroupConfig(size=3, vars={"a": "b"}), by=ALICE)(SETTINGS, DynamicGroups())
    assert made.groups[STATIC].set_by == {"size": ALICE, "vars": ALICE}
    again = group_edits.upsert(STATIC, GroupConfig(size=3, vars={"a": "b"}), by=BOB)(SETTINGS, made)
    assert again == made
    changed = group_edits.upsert(STATIC, GroupConfig(size=4, vars={"a": "b"}), by=BOB)(SETTINGS, made)
    assert changed.groups[STATIC].set_by == {"size": BOB, "vars": ALICE}
    paused = group_edits.pause(ACME, STATIC, paused=True, by=BOB)(SETTINGS, made)
    assert paused.groups[STATIC].set_by == {"size": ALICE, "vars": ALICE, "paused": BOB}
    assert group_edits.pause(ACME, STATIC, paused=False, by=BOB)(SETTINGS, paused) == made


def test_what_is_unset_follows_the_configuration_file_again() -> None:
    told = GroupConfig(size=3, instance_type="big", vars={"a": "b", "c": "d"})
    made = group_edits.upsert(STATIC, told, by=ALICE)(SETTINGS, DynamicGroups())

    def unset(config: GroupConfig, *names: str) -> dict[str, object]:
        changed = group_edits.upsert(STATIC, config, unset=names, by=BOB)(SETTINGS, made)
        written = changed.groups[STATIC].written() if STATIC in changed.groups else {}
        return {name: value for name, value in written.items() if name != "set_by"}

    read = GroupConfig(instance_type="big", vars={"a": "b", "c": "d"})  # as it was read, without the size
    assert unset(read, "size") == {"instance_type": "big", "vars": {"a": "b", "c": "d"}}
    assert unset(read, "instance_type") == {"size": 3, "vars": {"a": "b", "c": "d"}}
    assert unset(read, "vars.a") == {"size": 3, "instance_type": "big", "vars": {"c": "d"}}
    assert unset(read, "vars") == {"size": 3, "instance_type": "big"}
    assert unset(read, "size", "instance_type", "vars") == {}
    found = group_writer.mine(SETTINGS, group_edits.upsert(STATIC, read, unset=["size"])(SETTINGS, made), STATIC)
    assert found is not None
    assert found.group.size == 2


@pytest.mark.parametrize("name", ["", "template", "paused", "vars.", "size.x", "VARS"])
def test_only_overrides_can_be_unset(name: str) -> None:
    with pytest.raises(GRPCError) as caught:
        group_edits.upsert(STATIC, GroupConfig(), unset=[name])
    refused = caught.value
    assert (refused.status, (refused.message or "")[:6]) == (Status.INVALID_ARGUMENT, "unset:")


def test_a_size_is_not_unset_where_the_file_says_none() -> None:
    """The group would have size 0, and all of its instances would go."""
    bare = settings(
        templates={"web": {"kind": "web"}}, groups={"acme": {"static": {"template": "web", "subnet_pool": "other"}}}
    )
    made = group_edits.upsert(STATIC, GroupConfig(size=3))(bare, DynamicGroups())
    with pytest.raises(GRPCError, match="says no size") as refused:
        group_edits.upsert(STATIC, GroupConfig(), unset=["size"])(bare, made)
    assert refused.value.status is Status.FAILED_PRECONDITION
    with pytest.raises(GRPCError, match="not both"):
        group_edits.upsert(STATIC, GroupConfig(size=1), unset=["size"])
