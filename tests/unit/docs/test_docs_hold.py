"""What the documentation says about the project's own files."""

import re
import tomllib
from pathlib import Path

import pytest

from support import docs_pages

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def test_every_dependency_has_its_reason() -> None:
    decisions = "\n".join(path.read_text() for path in (ROOT / "docs/decisions").glob("*.md")).lower()
    named = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    named += [name for extra in PROJECT["project"]["optional-dependencies"].values() for name in extra]
    libraries = {re.split(r"[\s\[<>=!~;]", name)[0].lower() for name in named} - {"nstance"}
    assert libraries
    assert {library for library in libraries if f"`{library}`" not in decisions} == set()


def test_the_drawing_shows_the_storeys_that_are_checked() -> None:
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    storeys = [[name.strip().removeprefix("nstance.") for name in layer.split("|")] for layer in layers]
    drawing = (ROOT / "docs/architecture.md").read_text().split("```text\n")[1].split("```")[0]
    drawn = [re.split(r"\s{3,}", line)[0].split() for line in drawing.strip().split("\n")]
    assert [sorted(each) for each in drawn] == [sorted(each) for each in storeys]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    programs = re.findall(r"^PROGRAMS := (.*)$", makefile, re.MULTILINE)[0].split()
    targets = {*re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE), *programs}
    used = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", path.read_text(), re.MULTILINE))
    assert used - targets == set()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_that_are_named_exist(path: Path) -> None:
    """Paths are relative to the repository or to src/nstance; the changelog speaks of the past."""
    named = re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)`", path.read_text()) if path.name != "CHANGELOG.md" else []
    assert [each for each in named if not any((root / each).exists() for root in (ROOT, ROOT / "src/nstance"))] == []


def test_the_architecture_page_lists_every_package() -> None:
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    packages = {each.stem for each in (ROOT / "src/nstance").iterdir() if each.is_dir() or each.suffix == ".py"}
    assert sorted(table) == sorted(packages - {"__init__", "__pycache__"})


def test_the_drawing_shows_the_rooms_that_are_checked() -> None:
    [contract] = [each for each in PROJECT["tool"]["importlinter"]["contracts"] if each.get("containers")]
    rooms = [sorted(layer.replace("|", " ").split()) for layer in contract["layers"]]
    drawing = (ROOT / "docs/architecture.md").read_text().split("```text\n")[2].split("```")[0]
    assert [sorted(re.split(r"\s{3,}", line)[0].split()) for line in drawing.strip().split("\n")] == rooms


def test_the_two_headline_commands() -> None:
    assert docs_pages.commands("README.md") == ["make dev", "make test"]
