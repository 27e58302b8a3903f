"""`make mutants`: the table of deliberate defects and of what kills each. Exit 1 if one lives."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from sim.mutants.catalogue import CATALOGUE, Mutant  # noqa: E402

TIMEOUT = 600


def hunted(mutant: Mutant) -> tuple[bool, str]:
    command = [sys.executable, "-m", "sim.mutants.hunt", mutant.name]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return False, f"undecided: not found within {TIMEOUT} s"
    lines = done.stdout.strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else done.stderr.strip()[-200:]


def main() -> int:
    wanted = sys.argv[1:]
    chosen = [m for m in CATALOGUE if not wanted or m.name in wanted]
    living = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for mutant, (killed, by) in zip(chosen, pool.map(hunted, chosen), strict=True):
            living += not killed
            print(f"{'' if killed else 'LIVES  '}{mutant.name:34} {mutant.why:62} {by[:150]}", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - living} killed")
    return 1 if living else 0


raise SystemExit(main())
