"""Runs one mutant against the suite in an interpreter of its own, and prints what killed it, or that it lives.

First the seeds that are known to find it, then more seeds, then every crash point, or the tests that the catalogue names.
"""

import sys
from typing import Any

from sim.mutants import patching
from sim.mutants.catalogue import CATALOGUE

SEEDS = 250


class First:
    """A pytest plugin that remembers which test failed first."""

    nodeid: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.nodeid is None:
            self.nodeid = report.nodeid


def hunt(name: str, seeds: int) -> str | None:
    mutant = next(m for m in CATALOGUE if m.name == name)
    patching.install(mutant)
    if mutant.tests:
        import pytest

        first = First()
        pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-n0", *mutant.tests], plugins=[first])
        return first.nodeid
    from nstance.sim.search import exhaustive
    from nstance.sim.search.schedule import play

    for seed in (*mutant.seeds, *range(seeds)):
        if found := play(seed).violations:
            return f"seed {seed}: {found[0]}"
    for case in exhaustive.singles():
        if found := exhaustive.play(case).violations:
            return f"exhaustive, {case}: {found[0]}"
    return None


if __name__ == "__main__":
    killer = hunt(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else SEEDS)
    print(f"killed by {killer}" if killer else "lives")
    raise SystemExit(0 if killer else 1)
