"""Real Chromium in front of a real shard. `make test-ui` runs these tests; elsewhere they are skipped."""

import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    if reason:
        for item in items:
            if "tests/ui/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str:
    """Why the tests cannot run here; empty if they can."""
    if not os.environ.get("NSTANCE_TEST_UI"):
        return "tests in a browser: run `make test-ui`"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "the Python package playwright is missing: pip install -e '.[ui]'"
    return "" if browser_path() else f"no browser: install one of {', '.join(BROWSERS)}"


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest_asyncio.fixture
async def chromium() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield browser
        await browser.close()
