"""An instance installs what its agent imports, and nothing else."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[3]
# What the agent's modules load by themselves.
LOADED = """
import importlib, pkgutil, sys, nstance.agent
for found in pkgutil.iter_modules(nstance.agent.__path__):
    importlib.import_module(f"nstance.agent.{found.name}")
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

# What `nstance-agent` without arguments imports.
STARTED = """
import sys
from nstance.agent import main, lifecycle
print(*sys.modules)
"""


def test_the_extra_of_the_agent_names_what_the_agent_imports() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[=><\[]", wanted)[0] for wanted in extras["agent"]}
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split()) | {"cryptography"}  # that one is for the short-lived process that works with keys
    modules = {"protobuf": "google"}
    assert {wanted for wanted in named if modules.get(wanted, wanted) not in loaded} == set()
    servers = {re.split(r"[=><\[]", wanted)[0] for wanted in extras["server"]}
    assert loaded.isdisjoint(servers - named)


def test_every_vm_has_the_memory_of_only_what_its_agent_needs() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"argparse", "cryptography", "nstance.model.instance", "shutil", "tempfile", "unicodedata"}
    assert set(done.stdout.split()).isdisjoint(heavy)
