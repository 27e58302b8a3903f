"""Values that would break out of a script, an env file or a JSON file; and how userdata is packed."""

import base64
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
    told = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["subnet-1"]}},
        "templates": {"web": {"kind": "web", "userdata": {"encoding": encoding, "content": content}}},
        "groups": {"default": {"web": {"template": "web", "size": 1, "vars": {"x": value}}}},
    }
    settings = load.load(json.dumps(told).encode(), source="test", shard=None)
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
        made("x" * (rendering.MAX_USERDATA + 1))


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
    told = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}},
        "load_balancers": {"front": balancer},
    }
    if right:
        load.load(json.dumps(told).encode(), source="test", shard=None)
    else:
        with pytest.raises(ConfigError, match="expected"):
            load.load(json.dumps(told).encode(), source="test", shard=None)
