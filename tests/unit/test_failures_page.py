"""Every row of docs/failures.md names at least one test that exists."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "failures.md").read_text()
# Tables about faults end in this column; the table of measured times does not.
HEADER = "| fault | what follows | proved by |"


def rows() -> list[list[str]]:
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("|")]
    return [row for row in found if len(row) == 3 and row[0].strip() != "fault" and "---" not in row[0]]


def existing_tests() -> dict[str, set[str]]:
    """Names of test functions by file."""
    return {
        path.name: {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        }
        for path in PROJECT.glob("tests/**/test_*.py")
    }


def test_every_row_names_tests_that_exist() -> None:
    existing = existing_tests()
    every = set[str]().union(*existing.values())
    assert PAGE.count(HEADER) == 5
    assert len(rows()) > 50
    for fault, _, proof in rows():
        named = re.findall(r"`(?:([\w/]+/)?(test_\w+\.py)::)?(test_\w+)`", proof)
        assert named, f"no test is named for: {fault}"
        for _, file, name in named:
            assert name in (existing.get(file, set()) if file else every), f"{name} does not exist, named for: {fault}"


def test_no_row_has_another_number_of_columns() -> None:
    """Such a row would escape the check above."""
    for table in PAGE.split(HEADER)[1:]:
        body = table.split("\n\n")[0]
        assert {len(re.split(r"(?<!\\)\|", line)) for line in body.splitlines() if line} == {5}
