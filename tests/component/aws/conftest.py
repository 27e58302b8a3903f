"""These tests take minutes: `make test-aws` runs them, `make test` does not."""

import os

import pytest


@pytest.fixture(autouse=True)
def _is_asked_for() -> None:
    if not os.environ.get("NSTANCE_TEST_AWS"):
        pytest.skip("run by 'make test-aws'")
