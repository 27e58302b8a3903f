"""Values that would break out of a script, an env file or a JSON file; and how userdata is packed."""

import base64
import dataclasses
import gzip
import json
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import load, resolve
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.workload import EnvFile, JsonFile
from nstance.model.ids import GroupKey, GroupName, InstanceId, ShardId, TenantId
from nstance.model.instance import Instance, State
from nstance.providers.port import CreateRequest
from nstance.server.workload import rendering
from nstance.server.workload.rendering import RenderContext, RenderError

KEY = GroupKey(TenantId("default"), GroupName("web"))
HOSTILE = [
    "\n#cloud-config\nruncmd: [reboot]",
    "'; rm -rf /; '",
    '"; id; "',
    "$(id)",
    "`id`",
    "\\",
    "a\tb",
    "{{ .Nonce }}",
]


def world(content: str, *, encoding: str = "plain", value: str = "") -> tuple[RenderContext, resolve.Resolved]:
    configured = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["subnet-1"]}},
        "templates": {"web": {"kind": "web", "userdata": {"encoding": encoding, "content": content}}},
        "groups": {"default": {"web": {"template": "web", "size": 1, "vars": {"x": value}}}},
    }
    settings = load.load(json.dumps(configured).encode(), source="test", shard=None)
    around = RenderContext(
        settings=settings,
        shard=ShardId("one"),
        ca_bundle="CA",
        registration_addr="r:1",
        agent_addr="a:1",
        operator_addr="",
        images={},
    )
    return around, resolve.resolve_groups(settings, DynamicGroups())[KEY]


def made(content: str, *, encoding: str = "plain", value: str = "") -> bytes:
    around, group = world(content, encoding=encoding, value=value)
    instance = Instance(id=InstanceId("web-1"), tenant=KEY.tenant, group=KEY.name, state=State.PENDING, created=1.0)
    return rendering.request(around, group, instance, nonce="token", userdata=content.encode()).userdata


@pytest.mark.parametrize("value", HOSTILE)
def test_userdata_is_raw_as_in_go(value: str) -> None:
    assert made("x={{ .Vars.x }}", value=value).decode() == f"x={value}"


@pytest.mark.parametrize("value", HOSTILE)
def test_shquote_keeps_a_value_one_word(value: str) -> None:
    assert shlex.split(made("echo {{ shquote .Vars.x }}", value=value).decode()) == ["echo", value]


@given(st.text())
def test_a_json_file_holds_any_value(value: str) -> None:
    spec = JsonFile(kind="json", template={"x": "{{ .Vars.x }}"})
    assert json.loads(rendering.json_file(spec, {"Vars": {"x": value}})) == {"x": value}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_env_file_holds_a_value_on_its_line_or_refuses_it(value: str) -> None:
    spec = EnvFile(kind="env", template={"X": "{{ .Vars.x }}", "Y": "after"})
    try:
        text = rendering.env_file(spec, {"Vars": {"x": value}}).decode()
    except RenderError:
        assert any(ord(c) < 32 or c == "\x7f" for c in value)
        return
    first, second, end = text.split("\n")
    assert (second, end) == ('Y="after"', "")
    quoted = re.fullmatch(r'X="((?:[^"\\$`]|\\["\\$`])*)"', first)
    assert quoted is not None
    assert re.sub(r"\\(.)", r"\1", quoted[1]) == value


def test_encodings() -> None:
    plain = b"boot web-1"
    packed = made("boot {{ .Instance.ID }}", encoding="gzip")
    assert made("boot {{ .Instance.ID }}") == gzip.decompress(packed) == plain
    assert base64.b64decode(made("boot {{ .Instance.ID }}", encoding="base64")) == plain
    assert gzip.decompress(base64.b64decode(made("boot {{ .Instance.ID }}", encoding="base64+gzip"))) == plain
    assert packed == made("boot {{ .Instance.ID }}", encoding="gzip")  # a request can be repeated byte by byte


def test_userdata_has_an_upper_limit() -> None:
    with pytest.raises(RenderError):
        made("x" * (rendering.MAX_USERDATA_BYTES + 1))


@pytest.mark.parametrize(
    ("balancer", "right"),
    [
        ({"provider": "memory"}, True),
        ({"provider": "memory", "instance_group_name": "x"}, False),
        ({"provider": "memory", "target_group_arns": ["x"]}, False),
        ({"provider": "aws"}, False),
    ],
)
def test_what_a_load_balancer_is_configured_with(balancer: dict[str, object], right: bool) -> None:
    configured = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}},
        "load_balancers": {"front": balancer},
    }
    if right:
        load.load(json.dumps(configured).encode(), source="test", shard=None)
    else:
        with pytest.raises(ConfigError, match="expected"):
            load.load(json.dumps(configured).encode(), source="test", shard=None)


def on_base(content: str, *, agent: dict[str, object], urls: dict[str, str] | None = None, **vars: str) -> str:
    return request_on_base(content, agent=agent, urls=urls, **vars).userdata.decode()


def request_on_base(
    content: str, *, agent: dict[str, object], urls: dict[str, str] | None = None, **vars: str
) -> CreateRequest:
    configured = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["subnet-1"]}},
        "agent": agent,
        "templates": {"web": {"kind": "web", "arch": "arm64", "userdata": {"base": "agent", "content": content}}},
        "groups": {"default": {"web": {"template": "web", "size": 1, "vars": vars}}},
    }
    settings = load.load(json.dumps(configured).encode(), source="test", shard=None)
    context = dataclasses.replace(world("x")[0], settings=settings, agent_urls=urls or {})
    group = resolve.resolve_groups(settings, DynamicGroups())[KEY]
    instance = Instance(id=InstanceId("web-1"), tenant=KEY.tenant, group=KEY.name, state=State.PENDING, created=1.0)
    return rendering.request(context, group, instance, nonce="token", userdata=content.encode())


def test_the_base_comes_before_the_groups_own_commands() -> None:
    script = on_base(
        "echo {{ .Instance.ID }}\n", agent={"url": "https://x/{arch}.tar.gz", "sha256": {"arm64": "a" * 64}}
    )
    assert script.startswith("#!/bin/sh\n")
    assert "url='https://x/arm64.tar.gz'" in script
    assert "a" * 64 in script
    assert script.endswith("\necho web-1\n")


def test_a_script_for_another_shell_keeps_its_first_line() -> None:
    script = on_base("#!/bin/bash -e\necho own\n", agent={})
    assert script.startswith("#!/bin/bash -e\n# Installs and starts the Nstance agent")
    assert script.count("#!") == 1


@pytest.mark.parametrize("first", ["#!/usr/bin/python3", "#cloud-config"])
def test_only_a_shell_script_can_follow_the_base(first: str) -> None:
    with pytest.raises(RenderError, match="expected a shell script after the base agent"):
        on_base(first + "\n", agent={})


def test_vars_of_the_group_choose_another_agent() -> None:
    vars = {"AgentURL": "https://y/{arch}.pyz", "AgentSHA256": "b" * 64}
    script = on_base("", agent={"url": "https://x/agent", "sha256": "a" * 64}, **vars)
    assert "url='https://y/aarch64.pyz'" in script
    assert "b" * 64 in script
    assert "a" * 64 not in script


def test_an_object_of_the_bucket_waits_for_its_signed_url() -> None:
    agent: dict[str, object] = {"object": "agents/{arch}.tar.gz"}
    with pytest.raises(rendering.NotFetchedError, match=r"agents/arm64\.tar\.gz is not signed yet"):
        on_base("", agent=agent)
    assert "url='https://signed'" in on_base("", agent=agent, urls={"agents/arm64.tar.gz": "https://signed"})
    assert "url='https://y'" in on_base("", agent=agent, AgentURL="https://y")


def test_a_url_that_is_signed_again_is_the_same_request() -> None:
    """Otherwise a create of unknown outcome would end as stale every two minutes."""
    agent: dict[str, object] = {"object": "agents/{arch}.tar.gz"}
    first, again = (
        request_on_base(
            "echo {{ .Agent.URL }}", agent=agent, urls={"agents/arm64.tar.gz": f"https://x?signed={number}"}
        )
        for number in (1, 2)
    )
    assert first.userdata != again.userdata
    assert rendering.request_hash(first) == rendering.request_hash(again)
    other = request_on_base("echo other", agent=agent, urls={"agents/arm64.tar.gz": "https://x?signed=1"})
    assert rendering.request_hash(other) != rendering.request_hash(first)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"url": "ftp://x"}, "expected a URL that starts with"),
        ({"url": "https://x", "object": "a"}, "a url or an object, found both"),
        ({"url": "https://x", "sha256": "abc"}, "expected a SHA-256 checksum"),
        ({"sha256": "a" * 64}, "a url or an object for the sha256"),
        ({"url": "https://x/{arch}", "sha256": "a" * 64}, "one sha256 per architecture"),
        ({"object": "cluster/agent"}, "expected an object of your own"),
    ],
)
def test_an_agent_that_cannot_be_fetched_is_rejected(agent: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as found:
        on_base("", agent=agent)
    assert message in str(found.value)
    assert found.value.problems[0].path.startswith("agent")
