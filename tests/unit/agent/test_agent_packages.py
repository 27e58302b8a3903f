"""The lists of packages that bundles are built from."""

from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("program", ["agent", "server"])
def test_the_list_names_what_the_program_imports(program: str) -> None:
    graph = grimp.build_graph("nstance")
    modules = graph.find_upstream_modules(f"nstance.{program}", as_package=True) | {f"nstance.{program}"}
    packages = {name.split(".")[1] for name in modules if "." in name}
    listed = set((ROOT / "scripts" / f"{program}-packages.txt").read_text().split())
    single = {path.stem for path in (ROOT / "src" / "nstance").glob("*.py")}  # files, which are always there
    assert packages - single == listed
