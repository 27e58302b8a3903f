"""The judge is Go: each row holds what its text/template makes of a template."""

import json
from pathlib import Path
from typing import Any

import pytest

from nstance import gotemplate


def rows() -> list[Any]:
    found = []
    for name in ("go_results_basic.json", "go_results.json"):
        content = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
        found += [pytest.param(content["data"], case, id=case["template"]) for case in content["cases"]]
    return found


def outcome(template: str, data: dict[str, Any]) -> dict[str, str]:
    try:
        parsed = gotemplate.parse(template)
    except gotemplate.TemplateError:
        return {"error": "parse"}
    try:
        return {"output": parsed.render(data)}
    except gotemplate.TemplateError:
        return {"error": "execute"}


@pytest.mark.parametrize(("data", "case"), rows())
def test_renders_or_fails_as_in_go(data: dict[str, Any], case: dict[str, str]) -> None:
    expected = {key: case[key] for key in ("output", "error") if key in case}
    assert outcome(case["template"], data) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param("[{{.Nope}}]", {"output": "[]"}, id="a missing key prints nothing, not <no value>"),
        pytest.param("[{{.Nope.deeper}}]", {"output": "[]"}, id="and so do its fields"),
        pytest.param('[{{printf "%s:%v:%q" .Nope .Nope .Nope}}]', {"output": '[::""]'}, id="also through printf"),
        pytest.param("[{{.Nope | upper}}]", {"output": "[]"}, id="also through functions of texts"),
        pytest.param('[{{index .M "nope"}}]', {"output": "[]"}, id="also through index"),
        pytest.param("{{toJson .Nope}}", {"output": "null"}, id="but it is nil as a value"),
        pytest.param("{{$x = 1}}", {"error": "parse"}, id="assignment to an undeclared variable"),
        pytest.param("{{9223372036854775808}}", {"error": "parse"}, id="a constant beyond 64 bits"),
        pytest.param('{{define "x"}}{{end}}', {"error": "parse"}, id="define"),
        pytest.param('{{template "x"}}', {"error": "parse"}, id="template"),
        pytest.param('{{block "x" .}}{{end}}', {"error": "parse"}, id="block"),
        pytest.param("{{1i}}", {"error": "parse"}, id="complex numbers"),
        pytest.param('{{printf "%x" 1.5}}', {"error": "execute"}, id="hexadecimal floats"),
        pytest.param(r'{{"\xff"}}', {"error": "execute"}, id="output that is not Unicode"),
    ],
)
def test_differs_from_go_on_purpose(template: str, expected: dict[str, str]) -> None:
    assert outcome(template, {"M": {}}) == expected
