"""docs/failures.md promises a test for each of its numbers."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
_RANGE = re.compile(r"\b([FB])(\d+) to \1(\d+)\b")
# In prose as F14, in the name of a test as f14.
_NUMBER = re.compile(r"(?<![A-Za-z0-9])([FfBb])(\d{1,2})(?![A-Za-z0-9])")


def numbers(text: str) -> set[str]:
    ranges = {f"{kind}{n}" for kind, first, last in _RANGE.findall(text) for n in range(int(first), int(last) + 1)}
    return ranges | {f"{kind.upper()}{n}" for kind, n in _NUMBER.findall(text.replace("_", " "))}


def test_every_fault_on_the_page_has_a_test() -> None:
    here = Path(__file__).resolve()
    tests = [path for path in PROJECT.glob("tests/**/test_*.py") if path.resolve() != here]
    tested: set[str] = set().union(*(numbers(path.read_text()) for path in tests))
    told = numbers((PROJECT / "docs" / "failures.md").read_text())
    assert len(told) > 40
    assert told - tested == set()
