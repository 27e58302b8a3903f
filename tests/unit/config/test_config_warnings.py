"""What is valid and probably a mistake, with its place."""

import json
from typing import Any

import pytest

from nstance.config import dynamic as dynamics
from nstance.config import load, resolve
from nstance.config.checks import warnings

AWS = {"provider": "aws"}
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def document(**more: Any) -> dict[str, Any]:
    return {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "subnet_pools": {"main": ["s"]}},
        "templates": {"web": {"kind": "web", **more.pop("template", {})}},
        "groups": {"default": {"web": {"template": "web", "size": 2, **more.pop("group", {})}}},
        **more,
    }


def found(config: dict[str, Any], groups: str = "{}") -> list[tuple[str, str]]:
    text = json.dumps(config, indent=1)
    settings, dynamic = load.load(text), dynamics.parse(groups)
    findings = warnings.find_warnings(settings, resolve.resolve_groups(settings, dynamic), dynamic)
    problems = load.locate(text, findings, source="config")
    assert all(problem.line for problem in problems)
    return [(problem.path, problem.message) for problem in problems]


def test_a_good_configuration_has_none() -> None:
    assert found(document(group={"update": {"max_surge": 1, "max_unavailable": 1}})) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"files": {"f": {"kind": "string", "template": "{{ .Vars.x }}"}}}, "templates.web.files.f.template"),
        ({"files": {"f": {"kind": "env", "template": {"X": "{{ .Vars.x }}"}}}}, "templates.web.files.f.template.X"),
        ({"files": {"f": {"kind": "storage", "source": "a/{{ .Vars.x }}"}}}, "templates.web.files.f.source"),
        ({"args": {"A": ["{{ .Vars.x | upper }}"]}}, "templates.web.args.A[0]"),
    ],
)
def test_a_var_that_no_layer_defines_is_named_where_it_is_used(template: dict[str, Any], path: str) -> None:
    message = "var x is not defined for default/web: it renders empty; set it in vars"
    assert found(document(template=template)) == [(path, message)]
    for layer in ({"defaults": {"vars": {"x": "1"}}}, {"group": {"vars": {"x": "1"}}}):
        assert found(document(template=template, **layer)) == []
    assert found(document(template={**template, "vars": {"x": "1"}})) == []
    assert found(document(template=template), '{"default": {"web": {"vars": {"x": "1"}}}}') == []


def test_a_var_that_is_only_tested_for_may_be_undefined() -> None:
    text = '{{ if .Vars.x }}{{ .Vars.x }}{{ end }}{{ .Vars.y | default "z" }}{{ .Instance.ID }}{{ .Cluster.CACert }}'
    assert found(document(template={"files": {"f": {"kind": "string", "template": text}}})) == []


def test_userdata_certificates_and_groups_of_the_api_are_looked_at() -> None:
    config = document(
        shard={"infra": AWS, "subnet_pools": {"main": ["s"]}},
        certificates={"c": {"kind": "server", "dns": ["{{ .Vars.name }}"]}},
        template={
            "userdata": {"content": "{{ .Nonce }} {{ .Vars.u }}"},
            "files": {"c": {"kind": "certificate", "template": "c", "key": {"source": "agent", "name": "k.pub"}}},
        },
        group={"vars": {"name": "x"}},
    )
    api = '{"default": {"api": {"template": "web", "vars": {"u": "1"}}}}'
    assert sorted(found(config, api)) == [
        ("certificates.c.dns[0]", "var name is not defined for default/api: it renders empty; set it in vars"),
        ("templates.web.userdata.content", "var u is not defined for default/web: it renders empty; set it in vars"),
    ]


def test_what_the_api_overrides_is_named_at_the_files_value() -> None:
    config = document(group={"size": 5, "vars": {"a": "1", "b": "1"}, "instance_type": "big"})
    api = '{"default": {"web": {"size": 3, "vars": {"a": "2", "b": "1"}, "instance_type": "big"}}}'
    assert [path for path, _ in found(config, api)] == ["groups.default.web.size", "groups.default.web.vars.a"]
    assert found(document(group={"size": 5}), '{"default": {"web": {"size": 5}}}') == []


@pytest.mark.parametrize(
    ("group", "shard", "path"),
    [
        ({"update": {"max_unavailable": 2}}, None, "groups.default.web.update.max_unavailable"),
        ({"drain_timeout": "5m", "args": SPOT}, AWS, "groups.default.web.drain_timeout"),
        ({"args": SPOT}, AWS, "groups.default.web"),
    ],
)
def test_limits_that_cannot_be_kept(group: dict[str, Any], shard: Any, path: str) -> None:
    more = {"shard": {"infra": shard, "subnet_pools": {"main": ["s"]}}} if shard else {}
    [(place, message)] = found(document(group=group, **more))
    assert place.startswith(path)
    assert "max_unavailable 2 of size 2" in message or "120s after its notice" in message or "2m after" in message
    kept = {"update": {"max_unavailable": 1}} if shard is None else {**group, "drain_timeout": "90s"}
    assert found(document(group=kept, **more)) == []


def test_many_groups_are_one_warning() -> None:
    config = document(template={"files": {"f": {"kind": "string", "template": "{{ .Vars.x }}"}}})
    config["groups"]["default"] |= {f"g{n}": {"template": "web"} for n in range(2000)}
    [(_, message)] = found(config)
    assert message.endswith("and 1998 more: it renders empty; set it in vars")


def test_an_offer_without_a_price_is_named_once_for_all_groups() -> None:
    prices = {"hourly": {"m7": {"spot": 0.03, "on-demand": 0.1}, "m6": {"spot": 0.02}}}
    config = document(template={"instance_types": ["m7", "m6"], "markets": ["spot", "on-demand"]})
    assert found(config) == []  # no prices: nothing to say
    config["shard"]["prices"] = prices
    config["groups"]["default"]["api"] = {"template": "web", "size": 1}
    message = "no price for on-demand m6 of default/api, default/web: what they cost is not known"
    assert found(config) == [("shard.prices.hourly", message)]
    config["shard"]["prices"] = {"hourly": {**prices["hourly"], "*": 1}}
    assert found(config) == []


def test_instances_without_a_type_have_the_price_of_all_other_types() -> None:
    config = document()
    config["shard"]["prices"] = {"hourly": {"m7": 1}}
    assert [message for _, message in found(config)] == [
        "no price for instances without a type of default/web: what they cost is not known"
    ]
    config["shard"]["prices"]["hourly"]["*"] = 0.02
    assert found(config) == []
