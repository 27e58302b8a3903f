"""`-o jsonpath=...`: what people write with kubectl works here, and a mistake is named."""

import contextlib
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from nstance.admin import main, output
from nstance.admin.jsonpath import JsonPathError, Template

ROWS: list[dict[str, Any]] = [
    {"group": "web", "size": 3, "vars": {"a.b": "x"}, "rollout": {"outcome": "complete"}, "error": None},
    {"group": "api", "size": 12, "vars": {}, "rollout": {"outcome": "halted"}, "error": "no image"},
]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.items[*].group}", "web api"),
        ("{[*].group}", "web api"),
        ("{$[*].group}", "web api"),
        ("{.items[0].group}", "web"),
        ("{[-1].group}", "api"),
        ("{[0:1].group}", "web"),
        ("{[1:].group}", "api"),
        ("[*].group", "web api"),
        ("{[0].rollout.outcome}", "complete"),
        ("{[0]['group']}", "web"),
        ("{[0].vars['a.b']}", "x"),
        ("{..outcome}", "complete halted"),
        ("{[*].rollout.*}", "complete halted"),
        ("{[?(@.size>5)].group}", "api"),
        ('{[?(@.group=="web")].size}', "3"),
        ("{[?(@.rollout.outcome!='halted')].group}", "web"),
        ("{[?(@.error)].group}", "api"),
        ("{[?(@.error==null)].group}", "web"),
        ("{[?(@.nothing)].group}", ""),
        ('{range [*]}{.group}{"\\t"}{.size}{"\\n"}{end}', "web\t3\napi\t12\n"),
        ("groups: {[*].group}!", "groups: web api!"),
        ("{[0].vars}", '{"a.b":"x"}'),
        ("{[*].error}", " no image"),
        ('{"}{"}', "}{"),
    ],
)
def test_paths(template: str, expected: str) -> None:
    assert Template(template).render(ROWS) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{[0].gruop}", "there is no key gruop (did you mean group?)"),
        ("{[0].xyz}", "there is no key xyz (there are: group, size, vars, rollout, error)"),
        ("{[7].group}", "there is no [7]: the list has 2 elements"),
        ("{.group}", "expected an object with group, found a list"),
        ("{[0].group[*]}", "expected a list"),
        ("{[0].group", "expected braces in pairs"),
        ("{[*}", "expected a path"),
        ("{end}", "expected {range ...} before {end}"),
        ("{range [*]}", "expected {end}"),
        ("{[?(@.size>x)].group}", "expected a number"),
    ],
)
def test_mistakes_say_what_was_expected(template: str, expected: str) -> None:
    with pytest.raises(JsonPathError) as error:
        Template(template).render(ROWS)
    assert expected in str(error.value)


@given(st.text(alphabet="{}[]()?@.*:'\"\\ab01=-> \n", max_size=30))
def test_no_template_does_anything_but_render_or_complain(text: str) -> None:
    with contextlib.suppress(JsonPathError):
        assert isinstance(Template(text).render(ROWS), str)


def test_names_are_what_commands_take() -> None:
    instance = {"shard": "a", "instance_id": "web-1", "group": "web", "revision": "r"}
    assert output.document([instance, ROWS[0]], "name") == "web-1\nweb\n"
    assert output.document({"shards": [{"shard": "a", "etag": "x"}]}, "name") == "a\n"
    assert output.document([{"kid": "k1", "use": "signs"}], "name") == "k1\n"
    assert output.document([], "name") == ""


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("jsno", "expected one of table, json, yaml, name and jsonpath=PATH, found 'jsno' (did you mean json?)"),
        ("jsonpath=", "expected one of"),
        ("jsonpath={.a", "expected braces in pairs"),
    ],
)
def test_a_wrong_format_is_wrong_usage_before_anything_is_asked(form: str, expected: str) -> None:
    result = CliRunner().invoke(main.root, ["group", "list", "--shard", "a", "-o", form])
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
