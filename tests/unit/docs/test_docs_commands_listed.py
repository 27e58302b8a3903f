"""Every command of every page is run by a test or listed with a reason; commands within sentences exist."""

import re

import click
import pytest

from nstance.admin import main
from support import docs_pages
from support.docs_pages import NOT_RUN, PAGES, ROOT, RUN_BY


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_holds(page: str) -> None:
    """Only so it is known which of them are commands."""
    opening = re.findall(r"^ *```(\w*)\n.*?^ *```$", PAGES[page].read_text(), re.DOTALL | re.MULTILINE)
    assert set(opening) <= docs_pages.LANGUAGES


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_has_its_reason(page: str) -> None:
    if page not in RUN_BY:
        assert docs_pages.runnable(page) == []
    for test in RUN_BY.get(page, ()):
        assert docs_pages.runnable(page)
        assert page in (ROOT / "tests" / test).read_text(), f"tests/{test} does not name {page}"


def test_no_reason_has_outlived_its_command() -> None:
    stale = [
        (page, begins)
        for page, reasons in NOT_RUN.items()
        for begins in reasons
        if not any(command.startswith(begins) for command in docs_pages.commands(page))
    ]
    assert stale == []
    named = {
        name for reasons in NOT_RUN.values() for why in reasons.values() for name in re.findall(r"test_\w+\.py", why)
    }
    assert {name for name in named if not list((ROOT / "tests").rglob(name))} == set()


def _check(words: list[str]) -> None:
    """Raises AssertionError if the admin tool has no such command or flag."""
    here: click.Command = main.root
    context = click.Context(here)
    for word in words:
        if word.startswith("-"):
            known = {"--help"} | {name for option in here.params for name in (*option.opts, *option.secondary_opts)}
            assert word.split("=")[0] in known, f"{here.name} has no {word}"
        elif isinstance(here, click.Group):
            found = here.get_command(context, word)
            assert found is not None, f"{here.name} has no command {word}"
            here = found


@pytest.mark.parametrize("page", [page for page in PAGES if "nstance-admin" in PAGES[page].read_text()])
def test_commands_within_sentences_exist(page: str) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", PAGES[page].read_text(), flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`nstance-admin ([^`\n]+)`", prose):
        _check([word for word in code.split() if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?|[a-z-]+", word)])
