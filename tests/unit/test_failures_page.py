"""docs/failures.md links the tests that prove its rows."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"


def test_every_linked_test_exists() -> None:
    links = re.findall(r"\[test\]\(([^)]+)\)", PAGE.read_text())
    assert len(links) > 40
    for link in links:
        assert "def test_" in (PAGE.parent / link).read_text(), link
