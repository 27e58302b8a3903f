"""The reader: what it accepts, where it says things are, and that no text makes it slow or fall over (B27)."""

import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import jsonc
from nstance.config.errors import MOST, ConfigError, Problem

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def read(text: str | bytes) -> object:
    return jsonc.read(text, source="test").value


def problems(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1} // end', {"a": 1}),
        ('/* head */ {"a": /* in */ 1,}', {"a": 1}),
        ('{"a": [1, 2, /* last */ ],\n}', {"a": [1, 2]}),
        ('{"url": "http://x/*y*/", "c": "a,]"}', {"url": "http://x/*y*/", "c": "a,]"}),
        ('{"a": "\\"//\\\\"}', {"a": '"//\\'}),
        ('\ufeff{"a": "é"}', {"a": "é"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ("/**/[]", []),
        (b'{"a": "\xc3\xa9"}', {"a": "é"}),
    ],
)
def test_accepted(text: str | bytes, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "expected a value, found the end"),
        ('{"a": 1', 1, 8, "expected a comma or the end"),
        ('{"a" 1}', 1, 6, "expected a colon"),
        ('{\n  "a": ,\n}', 2, 8, "expected a value"),
        ("[,]", 1, 2, "expected a value"),
        ("{,}", 1, 2, "expected a key in double quotes"),
        ("[1,,]", 1, 4, "expected a value"),
        ("{a: 1}", 1, 2, "expected a key in double quotes"),
        ('{"a": 1} {"b": 2}', 1, 10, "expected nothing after"),
        ('{"a": "x\ny"}', 1, 9, "expected no control character"),
        ('{"a": "x', 1, 7, "expected the closing quote"),
        ('{"a": "\\x"}', 1, 8, "expected one of the escapes"),
        ('{"a": 1} /* never', 1, 10, "closed by */"),
        ('{"a": 1 /*/ }', 1, 9, "closed by */"),
        (b'{"a": "\xff"}', 1, 1, "UTF-8"),
        ("[" * 65 + "]" * 65, 1, 65, "64 levels"),
        ("[" * 100_000, 1, 65, "64 levels"),
        ("x" * (jsonc.MAX_BYTES + 1), 1, 1, "4,194,304 bytes"),
        ("é" * (jsonc.MAX_BYTES // 2 + 1), 1, 1, "4,194,304 bytes"),
    ],
)
def test_broken_text_is_one_problem_with_its_place(text: str | bytes, line: int, column: int, says: str) -> None:
    (problem,) = problems(text)
    assert says in problem.message
    assert (problem.line, problem.column) == (line, column)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 19, "1" * 5000])
def test_numbers_that_nobody_agrees_on_are_refused(number: str) -> None:
    (problem,) = problems('{"a": [0,\n  ' + number + "]}")
    assert (problem.path, problem.line, problem.column) == ("a[1]", 2, 3)
    assert len(str(problem)) < 300


def test_every_repeated_key_is_reported_once() -> None:
    text = '{"a": {"x": 1,\n "x": 2}, "b": 1, "a": {"x": 3},\n "b": 2}'
    assert [(p.path, p.line, p.column) for p in problems(text)] == [("a.x", 2, 2), ("a", 2, 19), ("b", 3, 2)]


def test_a_flood_of_repeated_keys_is_told_shortly() -> None:
    assert len(problems("{" + ",".join(['"a":1'] * 100_000) + "}")) == MOST


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert [(p.path, p.column) for p in problems('{"a": "\\ud800", "\\udc00": 1}')] == [("a", 7), ('["\\udc00"]', 17)]


def test_places_of_keys_and_values() -> None:
    document = jsonc.read('{ // c\n  "a": {"b": [10, {"c": null}]},\n  "d":\n    "x",\n}', source="test")
    wanted: list[jsonc.Path] = [(), ("a",), ("a", "b", 1), ("a", "b", 1, "c"), ("d",), ("nope",)]
    places = document.locate(wanted)
    assert {
        path: (place.key and document.position(place.key), document.position(place.value))
        for path, place in places.items()
    } == {
        (): (None, (1, 1)),
        ("a",): ((2, 3), (2, 8)),
        ("a", "b", 1): (None, (2, 19)),
        ("a", "b", 1, "c"): ((2, 20), (2, 25)),
        ("d",): ((3, 3), (4, 5)),
    }


def test_place_of_a_character_counts_escapes() -> None:
    text = '["a\\n\\u00e9\\ud83d\\ude00b"]'
    document = jsonc.read(text, source="test")
    assert text[document.inside(1, 4)] == "b"


@given(VALUES, st.sampled_from([None, 2]))
def test_reads_what_json_writes_and_finds_every_place(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    document = jsonc.read(text, source="test")
    assert document.value == value
    decoder = json.JSONDecoder()
    for path, place, _ in document._walk():
        at: object = value
        for part in path:
            at = at[part]  # type: ignore[index]
        assert decoder.raw_decode(text, place.value)[0] == at


@given(st.text(alphabet='{}[],:"\\/* \n01.eEtruaNn-', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        json.dumps(read(text), allow_nan=False)


@pytest.mark.parametrize(
    "piece", ['"\\"', "/*/", ", ", '"', "//", "/", ",\n", "/* ", "[{", '{"a":', "\\", '"a\n'], ids=repr
)
def test_hostile_repetition_is_refused_in_linear_time(piece: str) -> None:
    """A megabyte takes a moment; were any pattern to scan its rest again and again, it would take hours."""
    with pytest.raises(ConfigError):
        read(piece * (1_000_000 // len(piece)))


def test_a_string_of_escapes_takes_memory_in_proportion() -> None:
    text = json.dumps(["\\" * 1_000_000])
    tracemalloc.start()
    assert read(text) == ["\\" * 1_000_000]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(text)


def test_paths_for_people() -> None:
    assert jsonc.show(("groups", "default", "web", "vars", "odd key", 3)) == 'groups.default.web.vars["odd key"][3]'
    assert jsonc.show(("a\x1b[31m\n" + "x" * 200,)) == '["a\\u001b[31m\\u000a' + "x" * 73 + '…"]'
