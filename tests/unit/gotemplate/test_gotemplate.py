"""Places in errors, the fields a template uses, missing keys, limits, and that nothing but TemplateError ever escapes."""

import contextlib
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance import gotemplate
from nstance.gotemplate import FieldUse, Limits, TemplateError, parse, render

DATA: Mapping[str, Any] = {
    "Instance": {"ID": "knc-1", "IP4": "10.0.0.1"},
    "Vars": {"zone": "a"},
    "List": ["a", "b"],
    "Big": ["x" * 100] * 1000,
    "N": 3,
}


@pytest.mark.parametrize(
    ("template", "line", "column"),
    [
        pytest.param("a\nb {{ nofunc }}", 2, 6, id="unknown function"),
        pytest.param("{{ $x }}", 1, 4, id="undefined variable"),
        pytest.param("ünï {{ .A.b-c }}", 1, 10, id="columns count characters"),
        pytest.param("x\n{{ if .N }}\n\n", 2, 4, id="an unclosed block is shown where it began"),
        pytest.param("x\n  {{ end }}", 2, 6, id="an end too many"),
        pytest.param('x\n{{ "abc }}', 2, 4, id="unterminated string"),
        pytest.param("\n\n{{ .N", 3, 1, id="unclosed action"),
        pytest.param("{{/* x", 1, 1, id="unclosed comment"),
        pytest.param("{{ print (1 }}", 1, 10, id="unclosed parenthesis"),
        pytest.param("{{ .N | 3 }}", 1, 9, id="value after a pipe"),
        pytest.param("{{ if }}x{{ end }}", 1, 7, id="missing value"),
        pytest.param(r'{{ print "\z" }}', 1, 10, id="bad escape"),
        pytest.param("a\n {{ index .List 7 }}", 2, 5, id="fault of a function"),
        pytest.param("{{ upper .N }}", 1, 10, id="argument of a wrong type"),
        pytest.param("{{ .N }}\n{{ .N.x }}", 2, 4, id="field of a number"),
        pytest.param("{{ .N 1 }}", 1, 4, id="arguments for a field"),
        pytest.param("{{ range .N.x }}{{ end }}", 1, 10, id="fault in a loop's head"),
        pytest.param("{{ if true }}{{ lt 1 `a` }}{{ end }}", 1, 17, id="fault in a body"),
    ],
)
def test_errors_have_their_place(template: str, line: int, column: int) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template, DATA)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def test_an_error_does_not_quote_data() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ lt .Secret 1 }}", {"Secret": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        pytest.param("plain", [], id="none"),
        pytest.param("{{.A.B}} {{.C}}", [("A", "B"), ("C",)], id="plain fields"),
        pytest.param(
            "{{range .L}}{{.x}}{{$.A.B}}{{else}}{{.C}}{{end}}", [("L",), ("A", "B"), ("C",)], id="dot moves in range"
        ),
        pytest.param(
            "{{with .A}}{{.B}}{{with .C}}{{.D}}{{end}}{{end}}",
            [("A",), ("A", "B"), ("A", "C"), ("A", "C", "D")],
            id="with",
        ),
        pytest.param("{{with $.A}}{{.B}}{{else}}{{.C}}{{end}}", [("A",), ("A", "B"), ("C",)], id="else of with"),
        pytest.param("{{with index .A 0}}{{.B}}{{end}}", [("A",)], id="with of something else"),
        pytest.param("{{$x := .A}}{{$x.B}}", [("A",)], id="variables are not followed"),
        pytest.param('{{if eq (printf "%s" .A.B) .C}}{{end}}', [("A", "B"), ("C",)], id="arguments"),
        pytest.param("{{with .A}}{{end}}{{.B}}", [("A",), ("B",)], id="dot comes back"),
    ],
)
def test_fields(template: str, paths: list[tuple[str, ...]]) -> None:
    parsed = parse(template)
    assert [use.path for use in parsed.uses()] == paths
    assert parsed.fields() == frozenset(paths)


def test_uses_have_their_place() -> None:
    assert parse("a\n b {{ print .A.B $.C }}").uses() == (FieldUse(("A", "B"), 2, 13), FieldUse(("C",), 2, 18))


def test_missing_keys_are_reported_once_when_printed() -> None:
    """A missing variable renders empty and is reported."""
    reported: list[str] = []
    template = (
        "{{.Vars.a}}{{.Vars.a}}{{upper .Vars.b}}{{printf `%s` .c}}{{index .Vars `d`}}{{$.e}}{{with .Instance}}{{.f}}{{end}}"
        "{{if .no}}{{end}}{{.no | default `x`}}{{or .no `y`}}{{eq .no nil}}{{range .no}}{{end}}{{.Vars.zone}}"
    )
    assert parse(template).render(DATA, missing=reported.append) == "xytruea"
    assert reported == [".Vars.a", ".Vars.b", ".c", ".Vars.d", ".e", ".f"]


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ range 1000000000 }}{{ end }}", id="loop over a number"),
        pytest.param(
            "{{ range .Big }}{{ range $.Big }}{{ range $.Big }}{{ end }}{{ end }}{{ end }}", id="nested loops"
        ),
        pytest.param("{{ range .Big }}{{ range $.Big }}{{ . }}{{ end }}{{ end }}", id="much output"),
        pytest.param('{{ printf "%9999999d" 1 }}', id="width"),
        pytest.param('{{ printf "%*d%*d%*d%*d%*d" 999999 1 999999 1 999999 1 999999 1 999999 1 }}', id="widths"),
        pytest.param('{{ printf "%.9999999f" 1.5 }}', id="precision"),
        pytest.param('{{ printf "%9999d" .Big }}', id="width of each element"),
        pytest.param('{{ indent 999999999999999 "a" }}', id="indent"),
        pytest.param('{{ $x := printf "%99999d" 1 }}{{ $y := replace " " $x $x }}', id="replace"),
        pytest.param('{{ $x := printf "%99999d" 1 }}{{ join $x .Big }}', id="join"),
        pytest.param('{{ $x := printf "%99999d" 1 }}{{ split "" $x }}', id="split"),
        pytest.param(
            '{{ $x := printf "%999999d" 1 }}{{ range 10000 }}{{ $y := len $x }}{{ end }}', id="long texts in a loop"
        ),
        pytest.param('{{ $x := "a" }}{{ range 99 }}{{ $x = print $x $x }}{{ end }}', id="doubling"),
        pytest.param("{{ range 9999 }}{{ $x := toJson $.Big }}{{ end }}", id="json in a loop"),
        pytest.param("{{ range 9999 }}{{ $x := quote $.Big }}{{ end }}", id="quoting in a loop"),
    ],
)
def test_hostile_templates_are_stopped(template: str) -> None:
    """A short template cannot use much time or memory."""
    with pytest.raises(TemplateError, match="more than"):
        render(template, DATA)


def test_limits_are_the_callers() -> None:
    assert parse("{{ .N }}").render(DATA, limits=Limits(output=1)) == "3"
    with pytest.raises(TemplateError, match="more than 3 bytes"):
        parse("éé").render(DATA, limits=Limits(output=3))
    with pytest.raises(TemplateError, match="more than 2 steps"):
        parse("{{ .N }}{{ .N }}").render(DATA, limits=Limits(steps=2))


@pytest.mark.parametrize(
    "template",
    ["{{if 1}}" * 5000, "{{range 1}}" * 5000, "{{with 1}}" * 5000, "{{print " + "(" * 5000, "{{" + "(print " * 5000],
)
def test_deep_nesting_is_refused(template: str) -> None:
    with pytest.raises(TemplateError, match="nested more than"):
        parse(template)


def test_long_chains_and_nested_data() -> None:
    chain = "{{if eq .N 0}}0" + "".join(f"{{{{else if eq .N {n}}}}}{n}" for n in range(1, 2000)) + "{{end}}"
    assert parse(chain).render({"N": 1999}) == "1999"
    loop: list[Any] = []
    loop.append(loop)
    for template in ("{{ .L }}", "{{ toJson .L }}"):
        with pytest.raises(TemplateError, match="nested more than"):
            render(template, {"L": loop})


@pytest.mark.parametrize(
    "template",
    [
        "{{ .X.__class__ }}",
        "{{ ''.__class__ }}",
        '{{ index .X "__class__" }}',
        "{{ .X }}",
        "{{ len .X }}",
        "{{ if .X }}{{ end }}",
    ],
)
def test_python_objects_stay_out_of_reach(template: str) -> None:
    """Only map keys are read, never attributes; other objects are rejected."""
    with pytest.raises(TemplateError):
        render(template, {"X": Path("/")})


def test_attributes_are_no_keys() -> None:
    assert render("{{ .Vars.keys }}{{ .__class__ }}{{ .List | print }}", DATA) == "[a b]"
    with pytest.raises(TemplateError):
        render("{{ .List.append }}", DATA)


def test_a_look_up_leaves_the_data_alone() -> None:
    data: defaultdict[str, str] = defaultdict(lambda: "made up")
    assert render("{{ .a }}", data) == ""
    assert not data


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), {1: "x"}, 1 << 80, [Path("/")]])
def test_other_data_is_refused(value: object) -> None:
    with pytest.raises(TemplateError):
        render("{{ .X }}", {"X": value})


def test_equal_texts_are_parsed_once() -> None:
    assert parse("{{ .N }} cached") is parse("{{ .N }} cached")
    assert parse("x" * 100_000).render({}) == "x" * 100_000


_WORDS = """{{ }} {{- -}} ( ) | . $ $x .N .Vars .List := = , " ` ' \\ % %d %[1] %* if else end range with break nil true 0x1 1e3
-1 _ é print printf index len eq and or not default quote join split b64dec indent toJson /* */"""
PIECES = st.sampled_from([*_WORDS.split(), "\n", "\ud800"])


def place_of_error(template: str) -> tuple[int, int] | None:
    try:
        parse(template).render(DATA)
    except TemplateError as error:
        return error.line, error.column
    return None


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map(" ".join), st.lists(PIECES, max_size=40).map("".join)))
def test_any_text_renders_or_raises_template_error(text: str) -> None:
    for template in (text, "{{ " + text + " }}", '{{ printf "' + text + '" .N .List }}'):
        if (place := place_of_error(template)) is not None:
            line, column = place
            lines = template.split("\n")
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
CALLS = [
    "{{.V}}",
    '{{printf "%5.2v|%d|%x|%q|%+08.3f" .V .V .V .V .V}}',
    "{{quote .V}}{{shquote .V}}",
    "{{toJson .V}}",
    "{{len .V}}",
]
CALLS += [
    "{{lower .V}}",
    "{{b64dec .V}}",
    "{{index .V 0}}",
    "{{range $k, $v := .V}}{{$k}}{{$v}}{{end}}",
    "{{eq .V .V}}{{lt .V .V}}",
]


@given(VALUES, st.sampled_from(CALLS))
def test_any_data_renders_or_raises_template_error(value: object, template: str) -> None:
    with contextlib.suppress(TemplateError):
        render(template, {"V": value})


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_and_base64_read_back(text: str) -> None:
    assert json.loads(render("{{ toJson .V }}", {"V": text})) == text
    assert render("{{ .V | b64enc | b64dec }}", {"V": text}) == text


def test_the_public_names() -> None:
    assert {"Limits", "Template", "TemplateError", "FieldUse", "parse", "render"} <= set(gotemplate.__all__)
