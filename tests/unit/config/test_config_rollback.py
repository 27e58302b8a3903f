"""A rollback in `groups.jsonc`: an earlier revision stands in for the configured one, until that changes."""

import json
from typing import Any

import pytest

from nstance.config import dynamic as dynamics
from nstance.config import load, resolve, revision_spec
from nstance.config.dynamic import DynamicGroup, DynamicGroups, Rollback
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey, GroupName, TenantId

KEY = GroupKey(TenantId("default"), GroupName("web"))
NONE = DynamicGroups()


def settings(**template: Any) -> Settings:
    document = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["subnet-1"], "other": ["subnet-2"]}},
        "certificates": {"server": {"kind": "server", "cn": "{{ .Vars.name }}", "ttl": "36h"}},
        "defaults": {"vars": {"name": "x"}, "args": {"a": {"b": 1}}},
        "templates": {
            "web": {
                "kind": "web",
                "instance_type": "small",
                "subnet_pool": "main",
                "args": {"a": {"c": 2}},
                "vars": {"greeting": "hello"},
                "files": {
                    "motd": {"kind": "string", "template": "{{ .Vars.greeting }}"},
                    "tls.crt": {
                        "kind": "certificate",
                        "template": "server",
                        "key": {"source": "agent", "name": "tls.pub"},
                    },
                },
                "registration_timeout": "90s",
                "ready_timeout": "2m30s",
                **template,
            }
        },
        "groups": {"default": {"web": {"template": "web", "size": 3, "update": {"max_surge": 2}}}},
    }
    return load.load(json.dumps(document))


def one(settings: Settings, api: DynamicGroup | None = None) -> Resolved:
    groups = DynamicGroups({KEY: api}) if api is not None else NONE
    return resolve.resolve_groups(settings, groups)[KEY]


def rolled_back(good: Resolved, bad: Resolved) -> DynamicGroup:
    return DynamicGroup(
        rollback=Rollback(
            to=good.group.infra_hash,
            instead_of=bad.group.infra_hash,
            by="opr-1",
            template=good.spec.template,
            certificates=good.spec.certificates,
        )
    )


GOOD = one(settings())
BAD = settings(instance_type="large", args={"a": {"c": 3}}, vars={"greeting": "bye"}, files={}, subnet_pool="other")


def test_the_parts_of_a_revision_come_back_from_the_bucket() -> None:
    kept = revision_spec.parse(revision_spec.dump(GOOD.spec), source="x")
    assert kept == GOOD.spec
    assert kept.infra_hash == GOOD.group.infra_hash
    assert kept.template.args == {"a": {"b": 1, "c": 2}}
    assert kept.template.vars == {"name": "x", "greeting": "hello"}
    assert kept.template.ready_timeout == 150.0
    assert kept.certificates["server"].ttl == 36 * 3600.0


@pytest.mark.parametrize("body", [b"", b"{}", b'{"version": 2}', b'{"version": 1, "template": {"kind": 1}}', b"\xff"])
def test_parts_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(ConfigError):
        revision_spec.parse(body, source="x")


def test_an_earlier_revision_stands_in_for_the_configured_one() -> None:
    back = one(BAD, rolled_back(GOOD, one(BAD)))
    assert back.group.infra_hash == GOOD.group.infra_hash
    assert back.group.runtime_hash == GOOD.group.runtime_hash
    assert (back.group.instance_type, back.group.subnet_pool, back.group.subnets) == ("small", "main", ("subnet-1",))
    assert (back.files, back.vars, back.args) == (GOOD.files, GOOD.vars, GOOD.args)
    assert back.group.rolled_back_from == one(BAD).group.infra_hash
    assert back.group.changed_by == "opr-1"
    # What is no part of a revision stays as it is configured.
    assert (back.group.size, back.group.max_surge) == (3, 2)


def test_the_next_change_of_the_configuration_ends_it() -> None:
    rollback = rolled_back(GOOD, one(BAD))
    mended = settings(instance_type="medium")
    assert one(mended, rollback).group.instance_type == "medium"
    assert one(mended, rollback).group.rolled_back_from == ""


def test_it_survives_the_file() -> None:
    before = DynamicGroups({KEY: rolled_back(GOOD, one(BAD))})
    after = dynamics.parse(dynamics.dump(before))
    assert after == before
    assert resolve.resolve_groups(BAD, after)[KEY] == resolve.resolve_groups(BAD, before)[KEY]


def test_other_edits_keep_it() -> None:
    before = DynamicGroups({KEY: rolled_back(GOOD, one(BAD))})
    scaled = dynamics.upsert(before, KEY, DynamicGroup(size=5))
    assert scaled.groups[KEY].rollback == before.groups[KEY].rollback
    paused = dynamics.pause(before, [KEY], paused=True)
    assert paused.groups[KEY].rollback == before.groups[KEY].rollback
    assert dynamics.roll_back(before, KEY, None) == NONE


@pytest.mark.parametrize(
    ("update", "complaint"),
    [
        ({"max_surge": 0}, "no instance can be replaced"),
        ({"settle": "10s"}, 'expected order "serial"'),
        ({"pause_after_canary": "10m"}, "expected canary above 0"),
        ({"canary": 1, "pause_after_canary": "soon"}, 'expected a duration, "wait" or "stop"'),
        ({"canary": 1, "pause_after_canary": 5}, 'expected a duration, "wait" or "stop"'),
        ({"max_failures": 0}, "max_failures"),
        ({"order": "random"}, "serial"),
        ({"on_failure": "panic"}, "rollback"),
    ],
)
def test_updates_that_cannot_be(update: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dynamics.group(KEY, {"template": "web", "update": update})
    assert complaint in str(refused.value)


def test_how_a_group_is_updated() -> None:
    update = {"order": "serial", "settle": "30s", "canary": 2, "pause_after_canary": "5m", "on_failure": "rollback"}
    group = DynamicGroup.model_validate({"template": "web", "update": update})
    assert dynamics.parse(dynamics.dump(DynamicGroups({KEY: group}))).groups[KEY] == group
    current = settings()
    key = GroupKey(KEY.tenant, GroupName("api"))
    found = resolve.resolve_groups(current, DynamicGroups({key: group}))[key].group
    assert (found.order.value, found.settle, found.canary, found.pause_after_canary) == ("serial", 30.0, 2, 300.0)
    assert (found.on_failure.value, found.max_failures, found.ready_timeout) == ("rollback", 2, 150.0)
