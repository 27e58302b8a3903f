"""What Debian 12's Python 3.11.2 does wrong and the newest one does not: the source is searched for it.

Before 3.11.5, possessive quantifiers are matched wrongly (gh-100061, gh-106052). In 3.11.2 a TLS transport that was closed
after it lost its connection cannot be aborted: `wire.peer.cut` can.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHARACTER_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
POSSESSIVE = re.compile(r"(?:(?<!\\)[*+?]|\{\d+,?\d*\}|\{,\d+\})\+")


def possessive(source: str) -> list[str]:
    """The strings in this source that, read as a pattern, hold a possessive quantifier."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if POSSESSIVE.search(CHARACTER_CLASS.sub("x", text)):
                found.append(text)
    return found


def test_no_pattern_has_a_possessive_quantifier() -> None:
    paths = [path for folder in ("src", "bench", "chaos") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 300
    assert {str(path.relative_to(ROOT)): found for path in paths if (found := possessive(path.read_text()))} == {}


@pytest.mark.parametrize("pattern", ["a*+", "a++", "a?+", "(?:ab)*+", "[^-]++", "a{2}+", "a{2,}+", "a{,3}+", "a{1,3}+"])
def test_each_kind_is_found(pattern: str) -> None:
    assert possessive(f"import re\nre.compile(r'{pattern}')\nre.compile(rb'{pattern}')\n") == [pattern, pattern]


def test_parts_of_an_f_string_are_searched_too() -> None:
    assert possessive("re.compile(rf'{name}|a{{2}}+')") == ["|a{2}+"]


@pytest.mark.parametrize("pattern", ["[*+]+", r"\++", "(?>a*)", "a+b+", "a+?", r"[\]*+]", "[]*+]", "a*"])
def test_others_are_left_alone(pattern: str) -> None:
    assert possessive(f"re.compile(r'{pattern}')") == []


def test_transports_are_aborted_in_one_place() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"transport\.abort\b", path.read_text())
    }
    assert found == {"src/nstance/wire/peer.py"}
