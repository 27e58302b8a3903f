"""What a template can reach: no object of our own, whatever vars say; and what it prints that nobody has set."""

import json
from collections.abc import Mapping

import pytest

from nstance.config import load, resolve
from nstance.config.dynamic import DynamicGroups
from nstance.config.model.settings import Settings
from nstance.model.ids import GroupKey, GroupName, InstanceId, ShardId, TenantId
from nstance.model.instance import Instance, State
from nstance.server.workload import rendering
from nstance.server.workload.rendering import RenderContext, RenderError

KEY = GroupKey(TenantId("default"), GroupName("web"))


def settings(template: Mapping[str, object], *, prefix: str = "cluster/", **vars: str) -> Settings:
    configured = {
        "cluster": {"id": "demo", "storage": {"prefix": prefix}},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["subnet-1"]}},
        "templates": {"web": {"kind": "web", **template}},
        "groups": {"default": {"web": {"template": "web", "size": 1, "vars": vars}}},
    }
    return load.load(json.dumps(configured).encode(), source="test", shard=None)


def render_context(configured: Settings) -> tuple[RenderContext, resolve.Resolved]:
    made = RenderContext(
        settings=configured,
        shard=ShardId("one"),
        ca_bundle="CA",
        registration_addr="r:1",
        agent_addr="a:1",
        operator_addr="",
        images={},
    )
    return made, resolve.resolve_groups(configured, DynamicGroups())[KEY]


INSTANCE = Instance(id=InstanceId("web-1"), tenant=KEY.tenant, group=KEY.name, state=State.PENDING, created=1.0)


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("cluster/", "cluster/ca.sealed"),
        ("cluster/", "cluster/secret/token"),
        ("cluster/", "shard/other/journal/00000000000000000001.json"),
        ("cluster/", "../ca.sealed"),
        ("cluster/", "blobs/../cluster/ca.sealed"),
        ("cluster/", "/cluster/ca.sealed"),
        ("cluster/", "cluster//ca.sealed"),
        ("cluster/", ".nstance/locks/00"),
        ("cluster/", ""),
        ("mine/", "mine/ca.sealed"),
        ("mine", "mine/ca.sealed"),
        ("", "ca.sealed"),
        ("", "secret/token"),
        ("", "operator/acme.x.json"),
        ("", "operator-nonce/x"),
    ],
)
def test_no_var_leads_a_storage_file_to_one_of_our_own_objects(prefix: str, path: str) -> None:
    configured = settings({}, prefix=prefix, path=path)
    values = rendering.data(*render_context(configured), INSTANCE)
    with pytest.raises(RenderError, match="source: expected an object"):
        rendering.object_key("{{ .Vars.path }}", values, configured.cluster)


@pytest.mark.parametrize("path", ["blobs/web-1", "clusters/x", "sharding/x", "secret/mine"])
def test_other_objects_are_files(path: str) -> None:
    configured = settings({}, path=path)
    values = rendering.data(*render_context(configured), INSTANCE)
    assert rendering.object_key("{{ .Vars.path }}", values, configured.cluster) == path


def test_paths_that_are_printed_and_not_set_are_reported() -> None:
    content = "{{ .Vars.zone }} {{ .Vars.here }} {{ if .Vars.tested }}x{{ end }}{{ .Vars.zone }}"
    configured = settings({"userdata": {"content": content}, "args": {"a": "{{ .Vars.other }}"}}, here="yes")
    missing: list[str] = []
    made = rendering.request(
        *render_context(configured), INSTANCE, nonce="token", userdata=content.encode(), on_missing=missing.append
    )
    assert made.userdata == b" yes "
    assert missing == [".Vars.other", ".Vars.zone"]
