"""The harness itself: some deliberate defects die within a few seeds, and all of them still fit the source.

`make mutants` hunts all of them and prints who kills which.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.mutants import patching
from sim.mutants.catalogue import CATALOGUE, Mutant

TESTS = Path(__file__).resolve().parents[1]
QUICK = (
    "effect-before-commit",
    "answer-before-commit",
    "pending-is-no-capacity",
    "look-error-is-gone",
    "ports-stay-open",
)


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda m: m.name)
def test_it_still_fits_the_source(mutant: Mutant) -> None:
    compile(patching.mutated(mutant), mutant.module, "exec")


@pytest.mark.parametrize("name", QUICK)
def test_it_is_killed(name: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "sim.mutants.hunt", name, "60"]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_many() -> None:
    assert len(CATALOGUE) >= 30
    assert len({m.name for m in CATALOGUE}) == len(CATALOGUE)
